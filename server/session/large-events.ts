/** Puts the pieces of large events together. */
import { type ByteBudget, checkBytes, MAX_CALL_BYTES } from "../../kit/byte-budget.ts";
import { invalidField } from "../../kit/errors.ts";
import { MAX_EVENT_BYTES } from "../../kit/limits.ts";
import {
  type EmitEventsRequest,
  type EmitLargeEventsRequest,
  EventText,
  type EventTextPiece,
} from "../../proto/gen/tendon/v1/session_service_pb.js";

/** What a caller sends, piece by piece; `close` gives the memory back. */
export class LargeEvents {
  private readonly budget: ByteBudget;
  private readonly texts = new Map<
    string,
    { event: number; text: "payload" | "internal"; pieces: Uint8Array[] }
  >();
  private readonly eventBytes = new Map<number, number>();
  private bytes = 0;

  constructor(budget: ByteBudget) {
    this.budget = budget;
  }

  /**
   * Reads the stream to its end. `onRequest` may refuse before anything large is read. INVALID_FIELD, MESSAGE_TOO_LARGE,
   * UNAVAILABLE.
   */
  async read(
    requests: AsyncIterable<EmitLargeEventsRequest>,
    onRequest: (request: EmitEventsRequest) => Promise<void>,
  ): Promise<EmitEventsRequest> {
    let request: EmitEventsRequest | undefined;
    let isWhole = false;
    for await (const { kind } of requests) {
      if (isWhole) throw invalidField("end", "must be the last message of the stream");
      if (request === undefined) {
        if (kind.case !== "request") throw invalidField("request", "must be the first message of the stream");
        request = kind.value;
        await onRequest(request);
      } else if (kind.case === "piece") this.add(request, kind.value);
      else if (kind.case === "end") isWhole = true;
      else throw invalidField("piece", "after the first message come pieces, then the end");
    }
    if (request === undefined) throw invalidField("request", "must be the first message of the stream");
    if (!isWhole) throw invalidField("end", "is missing: the stream broke off, and nothing was appended");
    for (const { event, text, pieces } of this.texts.values()) {
      request.events[event]![text] = textOf(pieces, `events[${event}].${text}`);
    }
    return request;
  }

  close(): void {
    this.texts.clear();
    this.budget.giveBack(this.bytes);
    this.bytes = 0;
  }

  private add(request: EmitEventsRequest, { eventIndex, text, chunk }: EventTextPiece): void {
    const event = request.events[eventIndex];
    if (!event) throw invalidField("piece.event_index", `the request has ${request.events.length} events`);
    const name = text === EventText.INTERNAL ? "internal" : "payload";
    const key = `${name} ${eventIndex}`;
    const known = this.texts.get(key);
    if (!known && event[name] !== "") {
      throw invalidField(`events[${eventIndex}].${name}`, "is in the request already");
    }
    const eventBytes = (this.eventBytes.get(eventIndex) ?? 0) + chunk.length;
    checkBytes(eventBytes, MAX_EVENT_BYTES, `events[${eventIndex}]`);
    checkBytes(this.bytes + chunk.length, MAX_CALL_BYTES, "events");
    this.budget.take(chunk.length);
    this.bytes += chunk.length;
    this.eventBytes.set(eventIndex, eventBytes);
    if (known) known.pieces.push(chunk);
    else this.texts.set(key, { event: eventIndex, text: name, pieces: [chunk] });
  }
}

function textOf(pieces: readonly Uint8Array[], path: string): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Buffer.concat(pieces));
  } catch {
    throw invalidField(path, "is not UTF-8");
  }
}

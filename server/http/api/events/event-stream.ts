/**
 * A session's events as a stream of server-sent events.
 *
 * T1 Without a cursor it is a live tail: nothing that was said before it is told. With one (`Last-Event-ID`, `?after=`)
 *    everything after it is, without a gap and without a repeat (L4).
 * T2 The head of the answer is sent once the watch stands: what is said after it was seen is told.
 * T3 What a client said is told when it is queued, and again with its time when a brain takes it in; the second time the
 *    frame's id is the position at which that happened (L6).
 * T4 A reader that is slow holds up its own watch alone.
 */
import type { ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { Clock } from "../../../../kit/clock.ts";
import { invalidField, isTendonError } from "../../../../kit/errors.ts";
import { newId } from "../../../../kit/ids.ts";
import type { Event, Preview } from "../../../../proto/gen/tendon/v1/event_pb.js";
import { EventOrder, SessionService } from "../../../../proto/gen/tendon/v1/session_service_pb.js";
import type { ApiCall } from "../api-route.ts";
import { valuesOf } from "../list-query.ts";
import { eventText, isShown, isToldAgain } from "./event-json.ts";
import { wholeEventText } from "./event-texts.ts";
import { SharedFrame } from "./shared-frame.ts";

const DELTA_TYPES = ["agent.message", "agent.thinking"];
const MAX_DELTA_VALUES = 100;
const MAX_TAKEN_IN = 256;
const DELETED_WITHIN_MS = 3_000;
const ASK_AGAIN_MS = 100;
/** Events of which a preview is told; the oldest is forgotten. */
const MAX_FORMING = 64;

const { method } = SessionService;

/** Of a session, or of a thread. */
export async function streamEvents(call: ApiCall, sessionId: string, clock: Clock): Promise<void> {
  const previews = deltaTypes(call.query);
  const after = await cursorOf(call, sessionId);
  await new EventStream(call, sessionId, previews, clock).run(after);
}

class EventStream {
  private readonly call: ApiCall;
  private readonly sessionId: string;
  private readonly response: ServerResponse;
  private readonly previews: ReadonlySet<string>;
  private readonly forming = new Map<string, string>();

  private readonly clock: Clock;

  constructor(call: ApiCall, sessionId: string, previews: ReadonlySet<string>, clock: Clock) {
    this.clock = clock;
    this.call = call;
    this.sessionId = sessionId;
    this.response = call.exchange.response;
    this.previews = previews;
  }

  async run(afterPosition: bigint): Promise<void> {
    const request = { sessionId: this.sessionId, afterPosition, previews: this.previews.size > 0 };
    try {
      for await (const { kind } of this.call.services.stream(method.watchEvents, request)) {
        this.begin();
        if (kind.case === "event") await this.tell(kind.value);
        else if (kind.case === "preview") await this.preview(kind.value);
        else if (kind.case === "progress") await this.write(": alive\n\n");
      }
    } catch (error) {
      if (!this.response.headersSent) throw error;
      // A stream that has begun has no status left to say it with: it breaks off, and clients come again.
      if (!isTendonError(error, "NOT_FOUND")) return void this.response.destroy();
    }
    if (await this.isDeleted()) await this.deleted();
    this.response.end();
  }

  private begin(): void {
    if (this.response.headersSent) return;
    this.response.writeHead(200, {
      "content-type": "text/event-stream; charset=utf-8",
      "cache-control": "no-store",
      "x-accel-buffering": "no",
    });
    this.response.flushHeaders();
  }

  private async tell(event: Event): Promise<void> {
    this.forming.delete(event.id);
    if (event.type === "brain.inputs_consumed") return this.takenIn(event);
    if (isShown(event)) await this.frame(event, event.position);
  }

  /** T3. */
  private async takenIn(marker: Event): Promise<void> {
    const { event_ids: ids } = JSON.parse(marker.payload || "{}") as { event_ids?: string[] };
    const wanted = new Set(ids ?? []);
    let beforePosition = marker.position;
    while (wanted.size > 0) {
      const { events, hasMore } = await this.call.services.call(method.getEvents, {
        sessionId: this.sessionId,
        beforePosition,
        limit: MAX_TAKEN_IN,
        order: EventOrder.DESCENDING,
      });
      const found = events.filter(({ id }) => wanted.delete(id));
      for (const event of found.reverse().filter(isToldAgain)) await this.frame(event, marker.position);
      const last = events.at(-1);
      if (!hasMore || last === undefined) return;
      beforePosition = last.position;
    }
  }

  private async frame(event: Event, position: bigint): Promise<void> {
    const { response } = this;
    if (position === event.position && event.payloadOmitted === undefined) {
      return this.room(response.destroyed ? undefined : frameOfMany(event).writeTo(response));
    }
    const text = await wholeEventText(this.call.services, this.sessionId, event);
    await this.write(frameText(event.type, position, text));
  }

  private async preview({ kind }: Preview): Promise<void> {
    if (kind.case === "start" && this.previews.has(kind.value.type)) {
      const { eventId, type } = kind.value;
      if (this.forming.size >= MAX_FORMING) this.forming.delete(this.forming.keys().next().value!);
      this.forming.set(eventId, type);
      await this.message("event_start", { event: { type, id: eventId } });
    } else if (kind.case === "text" && this.forming.get(kind.value.eventId) === "agent.message") {
      const { eventId, index, text } = kind.value;
      const delta = { type: "content_delta", index, content: { type: "text", text } };
      await this.message("event_delta", { event_id: eventId, delta });
    }
  }

  /** A session that is deleted is archived first, which is what ends its watches; what follows comes a little later. */
  private async isDeleted(): Promise<boolean> {
    const untilMs = this.clock.monotonicMs() + DELETED_WITHIN_MS;
    do {
      try {
        await this.call.services.call(method.getSession, { sessionId: this.sessionId });
      } catch (error) {
        return isTendonError(error, "NOT_FOUND");
      }
      await this.clock.sleep(ASK_AGAIN_MS, this.call.signal).catch(() => {});
    } while (this.clock.monotonicMs() < untilMs && !this.call.signal.aborted);
    return false;
  }

  private async deleted(): Promise<void> {
    const time = new Date(this.clock.nowMs()).toISOString();
    await this.message("session.deleted", { id: newId("event"), processed_at: time });
  }

  private message(type: string, fields: object): Promise<void> {
    return this.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...fields })}\n\n`);
  }

  /** Resolves when there is room for more. */
  private write(text: string): Promise<void> {
    const { response } = this;
    return this.room(response.destroyed || response.write(text) ? undefined : response);
  }

  private room(full: ServerResponse | Socket | undefined): Promise<void> {
    if (full === undefined) return Promise.resolve();
    return new Promise((resolve) => {
      const go = () => {
        full.off("drain", go).off("close", go);
        resolve();
      };
      full.once("drain", go).once("close", go);
    });
  }
}

const frames = new WeakMap<Event, SharedFrame>();

/** Watches of one session are told of the same message: its frame is made once. */
function frameOfMany(event: Event): SharedFrame {
  let frame = frames.get(event);
  if (frame === undefined) {
    frame = new SharedFrame(frameText(event.type, event.position, eventText(event)));
    frames.set(event, frame);
  }
  return frame;
}

function frameText(type: string, position: bigint, text: string): string {
  return `event: ${type}\nid: ${position}\n${dataLines(text)}\n\n`;
}

/** A line of an event's data must not hold a line break; one in a payload's white space is kept as a line of its own. */
function dataLines(text: string): string {
  return text
    .split(/\r\n|\r|\n/)
    .map((line) => `data: ${line}`)
    .join("\n");
}

function deltaTypes(query: URLSearchParams): ReadonlySet<string> {
  const values = valuesOf(query, "event_deltas");
  if (values.length > MAX_DELTA_VALUES)
    throw invalidField("event_deltas", `has more than ${MAX_DELTA_VALUES} values`);
  const unknown = values.find((value) => !DELTA_TYPES.includes(value));
  if (unknown !== undefined) throw invalidField("event_deltas", `must be ${DELTA_TYPES.join(" or ")}`);
  return new Set(values);
}

/** Position after which to tell; -1 for a live tail. */
async function cursorOf({ exchange, query, services }: ApiCall, sessionId: string): Promise<bigint> {
  const header = exchange.request.headers["last-event-id"];
  const after = query.get("after");
  if (after === null) {
    if (header === undefined || header === "") return -1n;
    if (typeof header === "string" && /^\d{1,18}$/.test(header)) return BigInt(header);
    throw invalidField("Last-Event-ID", "is no id of a frame of this stream");
  }
  const request = {
    sessionId,
    beforeEventId: after,
    limit: 1,
    order: EventOrder.DESCENDING,
  };
  const { events } = await services.call(method.getEvents, request);
  const [before] = events;
  return (before?.position ?? 0n) + 1n;
}

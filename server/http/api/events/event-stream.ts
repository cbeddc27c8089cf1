/**
 * A session's events as a stream of server-sent events.
 *
 * T1 Without a cursor it is a live tail: nothing that was said before it is told. With one (`Last-Event-ID`, `?after=`)
 *    everything after it is, without a gap and without a repeat (L4).
 * T2 The head of the answer is sent once the watch stands: what is said after it was seen is told.
 * T3 What a client said is told when it is queued, and again with its time when a brain takes it in; the second time the
 *    frame's id is the position at which that happened (L6).
 * T4 A reader that is slow holds up its own watch alone.
 * T5 What is told of the primary thread (thread-status.ts) has no position of its own: its frames have no id.
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
import { eventText, isShown, isToldAgain, toldType } from "./event-json.ts";
import { isWhole, wholeEventText } from "./event-texts.ts";
import { FormingText } from "./forming-text.ts";
import { Frame, FrameWriter } from "./frame-writer.ts";
import {
  IDLE,
  isOwn,
  isOwnStatus,
  sourceId,
  type ToldLog,
  tellsOfPrimary,
  threadStatusText,
  threadStatusType,
  USAGE,
} from "./thread-status.ts";

const DELTA_TYPES = ["agent.message", "agent.thinking"];
const MAX_DELTA_VALUES = 100;
const MAX_TAKEN_IN = 256;
const DELETED_WITHIN_MS = 3_000;
const ASK_AGAIN_MS = 100;

const { method } = SessionService;

/** Of a session, or of a thread. */
export async function streamEvents(call: ApiCall, log: ToldLog, clock: Clock): Promise<void> {
  const previews = deltaTypes(call.query);
  const after = await cursorOf(call, log.sessionId);
  await new EventStream(call, log, previews, clock).run(after);
}

class EventStream {
  private readonly call: ApiCall;
  private readonly log: ToldLog;
  private readonly sessionId: string;
  private readonly response: ServerResponse;
  private readonly frames: FrameWriter;
  private readonly wantsPreviews: boolean;
  private readonly forming: FormingText;
  /** A usage waits for the idle event that is appended with it: what is told of the primary thread stands before both. */
  private held: Event | undefined;

  private readonly clock: Clock;

  constructor(call: ApiCall, log: ToldLog, previews: ReadonlySet<string>, clock: Clock) {
    this.clock = clock;
    this.call = call;
    this.log = log;
    this.sessionId = log.sessionId;
    this.response = call.exchange.response;
    this.frames = new FrameWriter(this.response);
    this.wantsPreviews = previews.size > 0;
    this.forming = new FormingText(previews);
  }

  async run({ position, withoutPrimary }: Cursor): Promise<void> {
    const request = { sessionId: this.sessionId, afterPosition: position, previews: this.wantsPreviews };
    try {
      for await (const { kind } of this.call.services.stream(method.watchEvents, request)) {
        this.begin();
        if (kind.case === "event") await this.tell(kind.value, withoutPrimary);
        else if (kind.case === "preview") await this.preview(kind.value);
        else if (kind.case === "progress") await this.progress();
      }
      await this.release();
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

  /** `withoutPrimary`: id of an event with which nothing is told of the primary thread any more. */
  private async tell(event: Event, withoutPrimary: string): Promise<void> {
    this.forming.ends(event.id);
    const isWith = this.held !== undefined && isOwn(event, IDLE);
    if (!isWith) await this.release();
    if (event.id !== withoutPrimary && tellsOfPrimary(event, this.log)) await this.threadStatus(event);
    await this.release();
    if (!this.log.isThread && isOwn(event, USAGE)) {
      this.held = event;
      return;
    }
    if (event.type === "brain.inputs_consumed") return this.takenIn(event);
    if (!isShown(event)) return;
    if (this.log.isThread && isOwnStatus(event)) return this.threadStatus(event, event.position);
    await this.frame(event, event.position);
  }

  private async release(): Promise<void> {
    const { held } = this;
    this.held = undefined;
    if (held !== undefined) await this.frame(held, held.position);
  }

  private async progress(): Promise<void> {
    await this.release();
    await this.write(": alive\n\n");
  }

  private async threadStatus(event: Event, position?: bigint): Promise<void> {
    const { log } = this;
    // Who was asked first may have gone away meanwhile.
    const frame = statusFrameOfMany(event, log, position).catch(() => statusFrame(event, log, position));
    await this.shared(await frame);
  }

  /** T3. Who comes again after a part of them is told all of them: only the last one's frame has an id. */
  private async takenIn(marker: Event): Promise<void> {
    const { event_ids: ids } = JSON.parse(marker.payload || "{}") as { event_ids?: string[] };
    const wanted = new Set(ids ?? []);
    let beforePosition = marker.position;
    let last: Event | undefined;
    while (wanted.size > 0) {
      const { events, hasMore } = await this.call.services.call(method.getEvents, {
        sessionId: this.sessionId,
        beforePosition,
        limit: MAX_TAKEN_IN,
        order: EventOrder.DESCENDING,
      });
      const found = events.filter(({ id }) => wanted.delete(id));
      for (const event of found.reverse().filter(isToldAgain)) {
        if (last !== undefined) await this.frame(last);
        last = event;
      }
      const oldest = events.at(-1);
      if (!hasMore || oldest === undefined) break;
      beforePosition = oldest.position;
    }
    if (last !== undefined) await this.frame(last, marker.position);
  }

  private async frame(event: Event, position?: bigint): Promise<void> {
    if (position === event.position && isWhole(event)) return this.shared(frameOfMany(event));
    const text = await wholeEventText(this.call.services, this.sessionId, event);
    await this.write(frameText(toldType(event), position, text));
  }

  private async preview({ kind }: Preview): Promise<void> {
    if (kind.case === "start" && this.forming.begins(kind.value)) {
      const { eventId, type } = kind.value;
      await this.message("event_start", { event: { type, id: eventId } });
    } else if (kind.case === "text" && this.forming.continues(kind.value)) {
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

  private write(text: string): Promise<void> {
    return this.shared(new Frame(text));
  }

  /** Resolves when there is room for more. */
  private shared(frame: Frame): Promise<void> {
    return this.room(this.frames.write(frame));
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

const frames = new WeakMap<Event, Frame>();

/** Watches of one session are told of the same message: its frame is made once. */
function frameOfMany(event: Event): Frame {
  let frame = frames.get(event);
  if (frame === undefined) {
    frame = new Frame(frameText(toldType(event), event.position, eventText(event)));
    frames.set(event, frame);
  }
  return frame;
}

const statusFrames = new WeakMap<Event, Promise<Frame>>();

/** The same of what is told of a thread: its agent's name is read once. */
function statusFrameOfMany(event: Event, log: ToldLog, position?: bigint): Promise<Frame> {
  let frame = statusFrames.get(event);
  if (frame === undefined) {
    frame = statusFrame(event, log, position);
    frame.catch(() => statusFrames.delete(event));
    statusFrames.set(event, frame);
  }
  return frame;
}

async function statusFrame(event: Event, log: ToldLog, position?: bigint): Promise<Frame> {
  const text = await threadStatusText(event, log);
  return new Frame(frameText(threadStatusType(event.type), position, text));
}

/** Without a position its id stays that of the frame before it. */
function frameText(type: string, position: bigint | undefined, text: string): string {
  const id = position === undefined ? "" : `id: ${position}\n`;
  return `event: ${type}\n${id}${dataLines(text)}\n\n`;
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

interface Cursor {
  /** After which to tell; -1 for a live tail. */
  readonly position: bigint;
  /** Id of the event before which the caller was told already of the primary thread; may be empty. */
  readonly withoutPrimary: string;
}

async function cursorOf({ exchange, query, services }: ApiCall, sessionId: string): Promise<Cursor> {
  const header = exchange.request.headers["last-event-id"];
  const after = query.get("after");
  if (after === null) {
    if (header === undefined || header === "") return { position: -1n, withoutPrimary: "" };
    if (typeof header === "string" && /^\d{1,18}$/.test(header))
      return { position: BigInt(header), withoutPrimary: "" };
    throw invalidField("Last-Event-ID", "is no id of a frame of this stream");
  }
  const { id, isOfPrimary } = sourceId(after);
  const request = { sessionId, beforeEventId: id, limit: 1, order: EventOrder.DESCENDING };
  const { events } = await services.call(method.getEvents, request);
  const [before] = events;
  if (!isOfPrimary) return { position: (before?.position ?? 0n) + 1n, withoutPrimary: "" };
  // What goes on is the event itself, or the usage that comes with it.
  const withUsage = before !== undefined && isOwn(before, USAGE);
  return { position: (before?.position ?? 0n) - (withUsage ? 1n : 0n), withoutPrimary: id };
}

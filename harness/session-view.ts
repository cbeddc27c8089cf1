/**
 * A session's log as its brain sees it: what was folded of it, and the events that matter to a model.
 *
 * V1 Events are taken in by position, each once, with no gap; what arrives out of order is read from the server instead.
 * V2 Texts that the server left out for their size are read before the event is taken in, so a history is always whole.
 * V3 Events that no model sees are folded and forgotten; what nobody folds either is not read where it is large.
 * V4 What is read from the server is reserved first (history-room.ts). A history that is too large for any harness is folded
 *    and not kept: whoever holds the session can end what goes on, and ask a model nothing.
 */
import { create } from "@bufbuild/protobuf";
import type { Clock } from "../kit/clock.ts";
import type { Client } from "../kit/rpc/client.ts";
import { type Event, type EventInput, EventSchema } from "../proto/gen/tendon/v1/event_pb.js";
import { EventText, type SessionService } from "../proto/gen/tendon/v1/session_service_pb.js";
import { withGivenFiles } from "./given-files.ts";
import { HeldHistory } from "./held-history.ts";
import { type HistoryShare, HistoryTooLarge } from "./history-room.ts";
import type { Lease } from "./lease.ts";
import type { Loop } from "./loops/loop.ts";
import { EVALUATION_END, OUTCOME_DEFINED } from "./outcome/outcome-state.ts";
import { loopEvent } from "./outcome/outcome-words.ts";
import type { ServerCalls } from "./server-calls.ts";
import { applyEvent, isFolded } from "./session-fold.ts";
import { newSessionState, type SessionState } from "./session-state.ts";

export interface SessionViewOptions {
  readonly sessions: Client<typeof SessionService>;
  readonly calls: ServerCalls;
  readonly lease: Lease;
  readonly clock: Clock;
  /** The room that the session has for its history. */
  readonly share: HistoryShare;
  /** Aborts when nothing is waited for any more that the next holder can wait for. */
  readonly leaving: AbortSignal;
  /** The loop's, if it has that. */
  readonly spent?: Loop["spent"];
}

const PAGE_EVENTS = 1000;
const PAGE_BYTES = 1024 * 1024;
const INLINE_LIMIT_BYTES = 1024 * 1024;
/** For one text of up to 32 MiB; asked for again, it comes from its beginning. */
const LARGE_READ_MS = 60_000;
/** Before asking again for a page that should have held events. */
const NO_PROGRESS_MS = 50;

/** Events of these types, or with one of these prefixes, can matter to a model. */
const HISTORY_TYPES = new Set([
  "user.message",
  "system.message",
  OUTCOME_DEFINED,
  EVALUATION_END,
  "user.custom_tool_result",
  "user.tool_result",
  "brain.inputs_consumed",
  "brain.context_changed",
  "span.model_request_start",
  "span.model_request_end",
  "hand.lost",
  "hand.handed_over",
]);
const matters = (type: string) => HISTORY_TYPES.has(type) || type.startsWith("agent.");

/** The event as a loop sees it; undefined for what matters to no model. */
export function historyEvent(event: Event): Event | undefined {
  return event.threadId === "" && matters(event.type) ? loopEvent(withGivenFiles(event)) : undefined;
}

export class SessionView {
  readonly state: SessionState = newSessionState();
  private readonly held: HeldHistory;
  private readonly options: SessionViewOptions;
  private readonly listeners = new Set<() => void>();
  /** Ends the waiting for room. */
  private readonly stopping: AbortSignal;
  private knownHead = 0n;
  private reading: Promise<void> | undefined;

  constructor(options: SessionViewOptions) {
    this.options = options;
    this.held = new HeldHistory(options.share, options.spent);
    this.stopping = AbortSignal.any([options.lease.signal, options.leaving]);
  }

  /** In log order; the same array for the whole life of the view. Empty where it is too large. */
  get history(): readonly Event[] {
    return this.held.events;
  }

  /** V4: no model can be asked anything. */
  get isTooLarge(): boolean {
    return this.held.isTooLarge;
  }

  /** Takes in the assignment's tail, reads what is before it and up to `head`. Rejects when the lease is over. */
  async load(tail: readonly Event[], head: bigint): Promise<void> {
    const first = tail[0];
    this.knownHead = head;
    if (first !== undefined) {
      const last = tail.at(-1)!.position;
      if (last > head) this.knownHead = last;
      this.reading = this.readUpTo(first.position - 1n).then(() => this.offer(tail));
      await this.reading.finally(() => {
        this.reading = undefined;
      });
    }
    await this.catchUp();
  }

  /** News from the server: events after the last ones sent, or only where the log's head is now. */
  advanced(head: bigint, events: readonly Event[]): void {
    if (head > this.knownHead) this.knownHead = head;
    if (this.reading === undefined && events.every(isWhole)) this.takeAll(events);
    // Failures end with the lease; whoever needs the events asks again.
    if (this.knownHead > this.state.head) void this.catchUp().catch(() => {});
  }

  /** Takes in what this brain itself has appended, from the positions that the server gave. */
  appended(inputs: readonly EventInput[], positions: readonly bigint[]): void {
    const events = inputs.map((input, i) => {
      const { id, type, threadId, payload, internal } = input;
      const event = { id, position: positions[i]!, type, threadId, payload: payload || "{}", internal };
      return create(EventSchema, event);
    });
    const head = positions.at(-1)!;
    if (head > this.knownHead) this.knownHead = head;
    if (this.reading === undefined) this.takeAll(events);
  }

  /** Reads until everything that is known to be in the log is taken in. */
  async catchUp(): Promise<void> {
    while (this.knownHead > this.state.head) {
      this.reading ??= this.readUpTo(this.knownHead).finally(() => {
        this.reading = undefined;
      });
      await this.reading;
    }
  }

  /** Asks the server where the log's head is, and reads up to there. */
  async refresh(): Promise<void> {
    await this.catchUp();
    await this.readPage();
    await this.catchUp();
  }

  /** Calls `listener` after each event that was taken in; the returned function ends that. */
  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Resolves when `check` holds; rejects with the signal's reason when that aborts first. */
  until(check: () => boolean, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(signal.reason);
      if (check()) return resolve();
      const done = () => {
        stop();
        signal.removeEventListener("abort", aborted);
      };
      const aborted = () => {
        done();
        reject(signal.reason);
      };
      const stop = this.onChange(() => {
        if (!check()) return;
        done();
        resolve();
      });
      signal.addEventListener("abort", aborted, { once: true });
    });
  }

  private async readUpTo(head: bigint): Promise<void> {
    while (this.state.head < head) await this.readPage();
  }

  private async readPage(): Promise<void> {
    const { sessions, calls, lease, clock } = this.options;
    const request = {
      sessionId: lease.sessionId,
      afterPosition: this.state.head,
      limit: PAGE_EVENTS,
      maxBytes: PAGE_BYTES,
      inlineLimitBytes: INLINE_LIMIT_BYTES,
      lease: lease.proof,
    };
    // Whether there is too much is seen once it is there: most of a page may matter to no model.
    const page = await this.reserved(this.options.share.possible(PAGE_BYTES), () =>
      calls.repeat((options) => sessions.getEvents(request, options)),
    );
    if (page.head > this.knownHead) this.knownHead = page.head;
    const before = this.state.head;
    await this.offer(page.events);
    if (this.state.head === before && page.head > before) await clock.sleep(NO_PROGRESS_MS, lease.signal);
  }

  private async offer(events: readonly Event[]): Promise<void> {
    for (const event of events) {
      if (event.position !== this.state.head + 1n) continue;
      if (isWhole(event) || !isOfInterest(event)) this.take(event);
      else await this.takeWhole(event);
    }
  }

  private takeAll(events: readonly Event[]): void {
    for (const event of events) if (event.position === this.state.head + 1n) this.take(event);
  }

  private take(event: Event): void {
    applyEvent(this.state, event);
    this.options.lease.position = event.position;
    const seen = this.isTooLarge ? undefined : historyEvent(event);
    if (seen !== undefined) this.held.add(seen);
    for (const listener of [...this.listeners]) listener();
  }

  private async takeWhole(event: Event): Promise<void> {
    const { payloadOmitted: inPayload, internalOmitted: inInternal } = event;
    const bytes = Number((inPayload?.sizeBytes ?? 0n) + (inInternal?.sizeBytes ?? 0n));
    await this.reserved(bytes, async () => {
      const payload = inPayload ? await this.readText(event, EventText.PAYLOAD) : event.payload;
      const internal = inInternal ? await this.readText(event, EventText.INTERNAL) : event.internal;
      // Meanwhile the same event may have arrived by the other way.
      if (event.position === this.state.head + 1n)
        this.take(create(EventSchema, { ...event, payload, internal }));
    });
  }

  /** What is too large to be kept is read all the same, for what it says of the session. */
  private async reserved<T>(bytes: number, read: () => Promise<T>): Promise<T> {
    const { share } = this.options;
    if (!this.isTooLarge) {
      try {
        return await share.read(bytes, this.stopping, read);
      } catch (error) {
        if (!(error instanceof HistoryTooLarge)) throw error;
        this.held.drop();
      }
    }
    return share.read(share.possible(bytes), this.stopping, read);
  }

  private readText(
    { id: eventId, payloadOmitted, internalOmitted }: Event,
    text: EventText,
  ): Promise<string> {
    const { sessions, calls, lease } = this.options;
    const request = { sessionId: lease.sessionId, eventId, text, lease: lease.proof };
    const omitted = text === EventText.PAYLOAD ? payloadOmitted : internalOmitted;
    return calls.repeat(async (options) => {
      // One copy beside the text itself, however many pieces it comes in.
      const bytes = Buffer.alloc(Number(omitted?.sizeBytes ?? 0n));
      let length = 0;
      for await (const { chunk } of sessions.readPayload(request, options)) {
        bytes.set(chunk, length);
        length += chunk.length;
      }
      return bytes.toString("utf8", 0, length);
    }, LARGE_READ_MS);
  }
}

function isWhole({ payloadOmitted, internalOmitted }: Event): boolean {
  return payloadOmitted === undefined && internalOmitted === undefined;
}

/** Whether anything follows from what the event says, for a brain of this thread. */
function isOfInterest({ threadId, type }: Event): boolean {
  return threadId === "" && (isFolded(type) || matters(type));
}

/**
 * A session's log as its brain sees it: what was folded of it, and the events that matter to a model.
 *
 * V1 Events are taken in by position, each once, with no gap; what arrives out of order is read from the server instead.
 * V2 Texts that the server left out for their size are read before the event is taken in, so a history is always whole.
 * V3 Events that no model sees are folded and forgotten.
 */
import { create } from "@bufbuild/protobuf";
import type { Clock } from "../kit/clock.ts";
import type { Client } from "../kit/rpc/client.ts";
import { type Event, type EventInput, EventSchema } from "../proto/gen/tendon/v1/event_pb.js";
import { EventText, type SessionService } from "../proto/gen/tendon/v1/session_service_pb.js";
import { withGivenFiles } from "./given-files.ts";
import type { Lease } from "./lease.ts";
import { EVALUATION_END, OUTCOME_DEFINED } from "./outcome/outcome-state.ts";
import { loopEvent } from "./outcome/outcome-words.ts";
import type { ServerCalls } from "./server-calls.ts";
import { applyEvent } from "./session-fold.ts";
import { newSessionState, type SessionState } from "./session-state.ts";

export interface SessionViewOptions {
  readonly sessions: Client<typeof SessionService>;
  readonly calls: ServerCalls;
  readonly lease: Lease;
  readonly clock: Clock;
}

const PAGE_EVENTS = 1000;
const INLINE_LIMIT_BYTES = 1024 * 1024;
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
  private readonly events: Event[] = [];
  private readonly options: SessionViewOptions;
  private readonly listeners = new Set<() => void>();
  private knownHead = 0n;
  private reading: Promise<void> | undefined;

  constructor(options: SessionViewOptions) {
    this.options = options;
  }

  /** In log order; the same array for the whole life of the view. */
  get history(): readonly Event[] {
    return this.events;
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
    const whole = events.every(
      (event) => event.payloadOmitted === undefined && event.internalOmitted === undefined,
    );
    if (this.reading === undefined && whole) this.takeAll(events);
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
      inlineLimitBytes: INLINE_LIMIT_BYTES,
      lease: lease.proof,
    };
    const page = await calls.repeat((options) => sessions.getEvents(request, options));
    if (page.head > this.knownHead) this.knownHead = page.head;
    const before = this.state.head;
    await this.offer(page.events);
    if (this.state.head === before && page.head > before) await clock.sleep(NO_PROGRESS_MS, lease.signal);
  }

  private async offer(events: readonly Event[]): Promise<void> {
    for (const event of events) {
      if (event.position !== this.state.head + 1n) continue;
      const whole = await this.whole(event);
      // Meanwhile the same event may have arrived by the other way.
      if (event.position === this.state.head + 1n) this.take(whole);
    }
  }

  private takeAll(events: readonly Event[]): void {
    for (const event of events) if (event.position === this.state.head + 1n) this.take(event);
  }

  private take(event: Event): void {
    applyEvent(this.state, event);
    this.options.lease.position = event.position;
    const seen = historyEvent(event);
    if (seen !== undefined) this.events.push(seen);
    for (const listener of [...this.listeners]) listener();
  }

  private async whole(event: Event): Promise<Event> {
    if (event.payloadOmitted === undefined && event.internalOmitted === undefined) return event;
    const payload = event.payloadOmitted ? await this.readText(event.id, EventText.PAYLOAD) : event.payload;
    const internal = event.internalOmitted
      ? await this.readText(event.id, EventText.INTERNAL)
      : event.internal;
    return create(EventSchema, { ...event, payload, internal });
  }

  private readText(eventId: string, text: EventText): Promise<string> {
    const { sessions, calls, lease } = this.options;
    const request = { sessionId: lease.sessionId, eventId, text, lease: lease.proof };
    return calls.repeat(async (options) => {
      const chunks: Uint8Array[] = [];
      for await (const { chunk } of sessions.readPayload(request, options)) chunks.push(chunk);
      return Buffer.concat(chunks).toString("utf8");
    });
  }
}

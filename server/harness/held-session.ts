/** One session that a harness of this replica holds: passes on what others append to its log. */
import { create } from "@bufbuild/protobuf";
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { LogAdvancedSchema, type WorkResponse } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import type { Advance, SessionLog } from "../ports/session-log.ts";
import { LOG_MESSAGE_BYTES } from "./limits.ts";

export type WorkMessage = WorkResponse["kind"];

export interface HeldSessionDeps {
  readonly sessionLog: SessionLog;
  readonly log: Logger;
  readonly send: (message: WorkMessage) => void;
}

const MAX_AT_HAND_CHARS = LOG_MESSAGE_BYTES / 4;

export class HeldSession {
  readonly sessionId: string;
  readonly workspaceId: string;
  readonly leaseId: string;
  readonly epoch: bigint;
  tokenIssuedAtMs = 0;
  /** Everything up to here was sent to the harness, or comes from it. */
  private known: bigint;
  private head: bigint;
  private pumping = false;
  private closed = false;
  private readonly deps: HeldSessionDeps;

  constructor(
    lease: { sessionId: string; workspaceId: string; leaseId: string; epoch: bigint },
    known: bigint,
    deps: HeldSessionDeps,
  ) {
    this.sessionId = lease.sessionId;
    this.workspaceId = lease.workspaceId;
    this.leaseId = lease.leaseId;
    this.epoch = lease.epoch;
    this.known = known;
    this.head = known;
    this.deps = deps;
  }

  close(): void {
    this.closed = true;
  }

  advanced(advance: Advance): void {
    if (advance.head > this.head) this.head = advance.head;
    // What the holder itself appended directly after what it knows needs no echo.
    const own = advance.byLease;
    if (own?.leaseId === this.leaseId && own.firstPosition <= this.known + 1n && advance.head > this.known)
      this.known = advance.head;
    if (this.head > this.known && !this.passOn(advance)) void this.pump();
  }

  /** Sends events that are at hand and come directly after what the holder knows; false when they have to be read. */
  private passOn({ events: atHand, head }: Advance): boolean {
    if (this.pumping || this.closed || this.head !== head) return false;
    const events = atHand?.() ?? [];
    if (events[0]?.position !== this.known + 1n || events.at(-1)?.position !== head) return false;
    const length = events.reduce((sum, { payload, internal }) => sum + payload.length + internal.length, 0);
    // Longer ones are cut into messages where they are read.
    if (length > MAX_AT_HAND_CHARS) return false;
    this.known = head;
    this.tell([...events]);
    return true;
  }

  private tell(events: Event[]): void {
    const value = create(LogAdvancedSchema, { leaseId: this.leaseId, head: this.known, events });
    this.deps.send({ case: "logAdvanced", value });
  }

  private async pump(): Promise<void> {
    if (this.pumping) return;
    this.pumping = true;
    try {
      while (!this.closed && this.head > this.known) {
        const { events, head } = await this.deps.sessionLog.read({
          sessionId: this.sessionId,
          afterPosition: this.known,
          maxBytes: LOG_MESSAGE_BYTES,
        });
        const last = events.at(-1);
        if (this.closed || last === undefined) break;
        if (last.position > this.known) this.known = last.position;
        if (head > this.head) this.head = head;
        // An event larger than a message is not sent: the harness finds the gap and reads it in pieces.
        const fits = last.payload.length + last.internal.length <= LOG_MESSAGE_BYTES;
        this.tell(fits ? events : []);
      }
    } catch (error) {
      // The next advance, or the poll that stands in for lost hints, tries again.
      this.deps.log.warn({ sessionId: this.sessionId, error: messageOf(error) }, "could not pass on the log");
    } finally {
      this.pumping = false;
    }
  }
}

/** What the other areas may ask of the session log. */
import type {
  Event,
  EventInput,
  EventReceipt,
  LeaseProof,
  Preview,
} from "../../proto/gen/tendon/v1/event_pb.js";

/** A committed append. */
export interface Advance {
  readonly sessionId: string;
  /** Position of the newest event. */
  readonly head: bigint;
  /** Whether the session may have work that no brain has seen. A hint: the dispatcher asks the database. */
  readonly hasWork: boolean;
  /** Set when this replica appended it under a lease: then its holder knows these events already. */
  readonly byLease?: { readonly leaseId: string; readonly firstPosition: bigint };
  /** What was appended, with `internal`: every event from the first of them to `head`. Set when it is at hand here. */
  readonly events?: () => readonly Event[];
  /** A tamper-evident session came to rest with this append of this replica: there is a checkpoint to sign. */
  readonly checkpointDue?: boolean;
}

/** An event as it was committed. */
export interface CommittedEvent {
  readonly id: string;
  readonly position: number;
  readonly type: string;
  readonly threadId: string;
  readonly createdAt: Date;
  readonly payload: string;
  readonly internal: string | undefined;
}

export interface SessionLog {
  /** Appends as the server itself, which may append any type. Resolves when the events are on disk. */
  append(request: {
    sessionId: string;
    events: readonly EventInput[];
    expectedPosition?: bigint;
    lease?: LeaseProof;
  }): Promise<{ receipts: EventReceipt[]; head: bigint }>;
  /**
   * Another area's transaction has committed events: watchers here are told at once, other replicas by a hint. `added`
   * saves reading them: all events up to the head, without a gap.
   */
  announce(advance: Advance, added?: readonly CommittedEvent[]): void;
  /**
   * Called for every committed append that this replica learns of, its own and others'. May be called late, more than
   * once, or with an older head than before; never before the events are readable.
   */
  onAdvance(listener: (advance: Advance) => void): () => void;
  /** Events with their `internal`, oldest first, at most `maxBytes` (at least one event). */
  read(request: {
    sessionId: string;
    afterPosition: bigint;
    maxBytes: number;
  }): Promise<{ events: Event[]; head: bigint; hasMore: boolean }>;
  /** The newest events with their `internal`, oldest first, at most `maxBytes`. */
  readTail(request: { sessionId: string; maxBytes: number }): Promise<{ events: Event[]; head: bigint }>;
  /** Tells watchers what is forming. Lossy: never blocks, drops what slow watchers cannot take. */
  publishPreviews(sessionId: string, previews: readonly Preview[]): void;
}

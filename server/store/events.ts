/** The log's events. All times are the database's. */
import type { LogAdvance } from "./session-append.ts";

/** Who appends: decides what an archived session, a call that has a result, and a result itself mean. */
export type Authority =
  /** A client: nothing after archiving; a second answer is refused; results must answer a call of the log. */
  | "client"
  /** The session's brain, by its lease. */
  | "brain"
  /** The server itself: also after archiving; a second answer gives the receipt of the first; results are work. */
  | "server";

export interface NewEvent {
  readonly id: string;
  readonly type: string;
  /** Empty for the primary thread. */
  readonly threadId: string;
  /** JSON text of one object. */
  readonly payload: string;
  readonly internal: string | undefined;
}

export interface AppendRequest {
  readonly sessionId: string;
  /** At least one. No two have the same id or answer the same call. */
  readonly events: readonly NewEvent[];
  readonly authority: Authority;
  /** Position that the newest event must have. */
  readonly expectedPosition?: bigint | undefined;
  /** Must be the session's newest lease, whoever appends. */
  readonly lease?: { readonly leaseId: string; readonly epoch: bigint } | undefined;
  /** W3C `traceparent` of the call, to be kept beside the events; a part of neither them nor their comparison. */
  readonly traceParent?: string | undefined;
}

export interface AppendReceipt {
  /** The event's, or for the server's second answer to a call the id of the first. */
  readonly id: string;
  readonly position: number;
  readonly duplicate: boolean;
}

export interface Appended {
  readonly receipts: AppendReceipt[];
  readonly head: number;
  readonly hasWork: boolean;
  /** Those that this append added, in order. */
  readonly added: EventRecord[];
  /** A tamper-evident session came to rest: there is a checkpoint to sign. */
  readonly checkpointDue?: boolean;
}

export interface EventRecord {
  readonly id: string;
  readonly position: number;
  readonly type: string;
  readonly threadId: string;
  readonly createdAt: Date;
  /** Undefined when left out for its size. */
  readonly payload: string | undefined;
  readonly payloadOmitted: OmittedRecord | undefined;
  /** Undefined when there is none, it was left out, or it was not asked for. */
  readonly internal: string | undefined;
  readonly internalOmitted: OmittedRecord | undefined;
  /** When a brain took it in. */
  readonly processedAt: Date | undefined;
  /** Only with `internal`: the trace that it came with. */
  readonly traceParent?: string | undefined;
  /** Lower-case hex; undefined in a session that is not tamper-evident, or when it was not asked for. */
  readonly hash?: string | undefined;
  /** Of an `internal` that is not shown; only beside `hash`. */
  readonly internalSha256?: string | undefined;
}

export interface OmittedRecord {
  readonly sizeBytes: number;
  /** Lower-case hex. */
  readonly sha256: string;
}

export interface ReadRequest {
  readonly sessionId: string;
  readonly afterPosition: number;
  /** Undefined: up to the head. */
  readonly beforePosition?: number | undefined;
  readonly descending?: boolean;
  /** Empty: all. */
  readonly types?: readonly string[];
  readonly limit: number;
  /** Of payload and internal as they are returned; what is left out counts a sixty-fourth. At least one event is returned. */
  readonly maxBytes: number;
  readonly inlineLimitBytes: number;
  readonly withInternal: boolean;
  /** Also hashes, and the digests of texts that are not shown. */
  readonly withHashes?: boolean;
}

export interface EventSlice {
  readonly events: EventRecord[];
  /** Whether the limits cut the slice short. */
  readonly hasMore: boolean;
}

export interface EventStore {
  /**
   * Appends all of the request's events or none; they are on disk when it resolves. Appends that wait are committed
   * together, each with its own outcome.
   *
   * Events whose ids are in the log already, with equal type, thread, payload and internal, keep their first positions:
   * a repeated request gets its first answer, whatever happened to the session since. A request may have grown: known
   * events first, then new ones. In any other mixture the log would not have the request's order, and it fails.
   *
   * NOT_FOUND, EVENT_CONTENT_DIFFERS, LEASE_FENCED (metadata `epoch`), SESSION_ARCHIVED, POSITION_MISMATCH (metadata
   * `head`), CALL_ALREADY_ANSWERED (metadata `tool_use_id`, `event_id`, `position`), INVALID_FIELD for a result without
   * its call, UNAVAILABLE when the outcome is unknown.
   */
  append(request: AppendRequest): Promise<Appended>;
  /**
   * What a repeat of the request is answered with: undefined unless all of these events are in the log, with equal type, thread
   * and payload.
   */
  repeated(
    sessionId: string,
    events: readonly NewEvent[],
  ): Promise<Pick<Appended, "receipts" | "head"> | undefined>;
  /** The same for events that were appended in another way: keeps their trace, and says so in what was added. */
  keepTrace(sessionId: string, appended: Appended, traceParent: string): Promise<Appended>;
  read(request: ReadRequest): Promise<EventSlice>;
  positionOf(sessionId: string, eventId: string): Promise<number | undefined>;
  /** Position of the first event of one of these types, in the direction of the slice; undefined when it has none. */
  firstOfTypes(
    slice: Pick<ReadRequest, "sessionId" | "afterPosition" | "beforePosition" | "descending"> & {
      readonly types: readonly string[];
    },
  ): Promise<number | undefined>;
  /** Part of one text, from `offsetBytes`; undefined when there is no such event or text. */
  readText(request: {
    sessionId: string;
    eventId: string;
    text: "payload" | "internal";
    offsetBytes: number;
    maxBytes: number;
  }): Promise<{ chunk: Uint8Array; sizeBytes: number } | undefined>;
  /**
   * Where these sessions stand, and those whose leases this replica serves, and some that wait for a brain. Those of
   * `sessionIds` that are missing in the answer are gone.
   */
  heads(request: { sessionIds: readonly string[]; replicaId: string }): Promise<SessionHead[]>;
  /** Tells other replicas what is committed. A hint: may be lost. */
  hint(hints: readonly HeadHint[]): Promise<void>;
  /** Waits for appends that are under way; new ones are refused with DRAINING. */
  close(): Promise<void>;
}

export interface SessionHead extends LogAdvance {
  readonly archived: boolean;
  /** It has work, no lease, and nothing that says to wait. */
  readonly waiting: boolean;
  /** Position of the newest signed checkpoint; 0 for none. */
  readonly checkpointPosition: number;
}

export interface HeadHint {
  readonly sessionId: string;
  /** Undefined: the session was deleted. */
  readonly head: bigint | undefined;
  readonly hasWork: boolean;
}

/** Hears what `hint` said on any replica, through a connection of its own. */
export interface HintListener {
  start(handlers: {
    onHints(hints: HeadHint[]): void;
    /** The connection stands (again): hints may have been lost until now. */
    onConnected(): void;
  }): Promise<void>;
  stop(): Promise<void>;
}

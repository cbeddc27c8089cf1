/**
 * The work queue of self-hosted environments, and the calls that its workers run. All times are the database's.
 *
 * W1 Who serves a session (and its threads) is decided once, in the transaction of its first call: a hand agent or workers.
 * W2 A call is shown to a worker only while that worker holds the session's item, and is noted as shown before it is.
 * W3 A holder that loses its item loses it in the transaction that answers the calls which it may run; only then is the
 *    item offered again. So no call is run by two workers, and a worker that comes back late is shown nothing new.
 * W4 An item waits in the queue while a call of its session, or of a thread of it, is offered and open: the transaction that
 *    answers the last one stops it, and the next call makes a new one. One whose holder was lost waits for another one that
 *    goes on with the session, whether or not a call is left.
 */
import type { LeaseClaim } from "./hands.ts";
import type { Page, PageRequest } from "./page.ts";
import type { LogAdvance } from "./session-append.ts";

export type WorkStateName = "queued" | "starting" | "active" | "stopping" | "stopped";

export interface WorkRecord {
  readonly workId: string;
  readonly workspaceId: string;
  readonly environmentId: string;
  readonly sessionId: string;
  readonly state: WorkStateName;
  readonly metadata: Readonly<Record<string, string>>;
  readonly createdAt: Date;
  readonly acknowledgedAt: Date | undefined;
  readonly startedAt: Date | undefined;
  readonly latestHeartbeatAt: Date | undefined;
  readonly stopRequestedAt: Date | undefined;
  readonly stoppedAt: Date | undefined;
}

/** Who asks about an item. */
export type WorkCaller =
  /** Who was given the item for the how-manieth time, by the item's token. */
  | { readonly kind: "claim"; readonly workId: string; readonly claim: number }
  /** A worker's key: it speaks for the newest claim that was made with it. */
  | { readonly kind: "key"; readonly environmentKeyId: string }
  | { readonly kind: "operator" };

/** An item as a change of it sees it. */
export interface LockedWork extends WorkRecord {
  /** Claims up to this one have lost the item. */
  readonly fencedClaim: number;
  readonly holderClaim: number | undefined;
  /** The caller's claim; undefined when it has none. */
  readonly callerClaim: number | undefined;
  readonly lastHeartbeat: string | undefined;
  readonly previousHeartbeat: string | undefined;
  readonly ttlMs: number;
}

/** Names an item. One of another environment does not exist to the caller. */
export interface WorkName {
  readonly workId: string;
  readonly environmentId: string;
  readonly caller: WorkCaller;
}

/** What a heartbeat does; undefined: nothing. */
export type Beat =
  | { readonly kind: "new"; readonly claim: number; readonly ttlMs: number }
  /** The newest one again: the lease is extended, and the value stays. */
  | { readonly kind: "repeated"; readonly ttlMs: number }
  | undefined;

/** How a call ends that no worker will answer, in words for the model. */
export interface CallEnding {
  readonly outcome: "unknown" | "not_started" | "cancelled";
  readonly reason: string;
  readonly text: string;
}

export interface WorkEnded {
  readonly work: WorkRecord;
  /** Of the session's log, when calls were answered. */
  readonly advance: LogAdvance | undefined;
  /** Calls wait in the queue. */
  readonly isQueued: boolean;
}

export type OfferedCall =
  | {
      readonly kind: "offered";
      readonly workId: string;
      readonly environmentId: string;
      readonly isNew: boolean;
    }
  /** Hand agents serve the session. */
  | { readonly kind: "hand_agent" }
  | { readonly kind: "answered"; readonly payload: string }
  /** It is an execution already, or was one. */
  | { readonly kind: "exists" };

/** Whose a call of a slot is before anything was decided. */
export interface SlotServer {
  readonly workspaceId: string;
  readonly environmentId: string;
  /** Canonical JSON text of the slot's EnvironmentSpec. */
  readonly environment: string;
  readonly servedBy: "hand_agent" | "worker" | undefined;
}

export interface WorkStats {
  readonly depth: number;
  readonly pending: number;
  readonly oldestQueuedAt: Date | undefined;
  readonly workersPolling: number;
}

export interface WorkStore {
  /** Undefined when there is no such session, or its slot has no environment. */
  slotServer(sessionId: string, slot: string): Promise<SlotServer | undefined>;
  /**
   * W1: decides who serves the session, unless that was decided; workers are offered the call, in the item that the
   * session has or in a new one. NOT_FOUND, LEASE_FENCED, SESSION_ARCHIVED.
   */
  offer(request: {
    sessionId: string;
    callId: string;
    environmentId: string;
    lease: LeaseClaim | undefined;
    /** A hand agent is there that serves the environment. */
    byHandAgent: boolean;
  }): Promise<OfferedCall>;
  /**
   * Ends an open call of a session that workers serve. Undefined when workers do not serve it; `ended` when it had a result.
   * NOT_FOUND, LEASE_FENCED.
   */
  endCall(request: {
    sessionId: string;
    callId: string;
    lease: LeaseClaim | undefined;
    ending: CallEnding;
  }): Promise<{ kind: "stored"; advance: LogAdvance } | { kind: "ended" } | undefined>;
  /** W2: those of the calls that the caller may run now, noted as shown to it. */
  show(
    sessionId: string,
    caller: Exclude<WorkCaller, { kind: "operator" }>,
    callIds: readonly string[],
  ): Promise<Set<string>>;

  /** Gives the oldest item out. */
  poll(request: {
    environmentId: string;
    environmentKeyId: string;
    tokenHash: Uint8Array;
    reclaimOlderThanMs: number;
  }): Promise<WorkRecord | undefined>;
  notePoller(environmentId: string, workerId: string): Promise<void>;
  /** `check` throws when the item cannot be accepted, and says whether there is anything to do. NOT_FOUND. */
  ack(name: WorkName, ttlMs: number, check: (work: LockedWork) => boolean): Promise<WorkRecord>;
  /** NOT_FOUND, and what `decide` throws. */
  heartbeat(name: WorkName, decide: (work: LockedWork) => Beat): Promise<LockedWork>;
  /** NOT_FOUND, and what `decide` throws. */
  stop(
    name: WorkName,
    decide: (work: LockedWork) => { readonly kind: "stopping" | "stopped"; readonly ending: CallEnding },
  ): Promise<WorkEnded>;
  /** NOT_FOUND, INVALID_FIELD for too many pairs. */
  update(name: WorkName, metadata: Readonly<Record<string, string>>): Promise<WorkRecord>;
  find(workId: string): Promise<WorkRecord | undefined>;
  list(environmentId: string, page: PageRequest): Promise<Page<WorkRecord>>;
  stats(environmentId: string): Promise<WorkStats>;

  /**
   * Items whose lease has run out, the oldest first. Those that ran out before the last `upForMs`, when there may have been
   * no server to keep them at, only after `graceMs`: until then their workers may be heard again.
   */
  lapsed(request: { upForMs: number; graceMs: number; limit: number }): Promise<string[]>;
  /** W3. Undefined when its lease has not run out, or it is gone. */
  lapse(workId: string, ending: CallEnding): Promise<WorkEnded | undefined>;
  /** Open calls that were offered so long ago, the oldest first. */
  overdue(offeredForMs: number, limit: number): Promise<{ sessionId: string; callId: string }[]>;
  /** Forgets items that stopped, workers that polled and answered calls, a bounded number of each. */
  prune(request: { stoppedForMs: number; polledForMs: number; limit: number }): Promise<void>;
}

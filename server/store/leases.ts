/** Who is the brain of which session. All times are the database's. */

/** After so many silent deaths in a row a session is run alone; one more there ends its turn (E4). */
export const SILENT_DEATHS_BEFORE_ALONE = 2;
/**
 * The same for deaths that left events, but none that says the brain got anywhere. A neighbour of a session that kills can
 * have several in a row while its model thinks; all of them together stay below six.
 */
export const BARREN_DEATHS_BEFORE_ALONE = 4;

export interface WaitingSession {
  readonly sessionId: string;
  readonly workspaceId: string;
  /** Name of the loop that the session's agent needs. */
  readonly loop: string;
  readonly silentDeaths: number;
  readonly barrenDeaths: number;
}

/** Where there is room for sessions: in a harness that has the loop and serves the workspace. */
export interface Room {
  readonly loop: string;
  /** Undefined: any. */
  readonly workspaceId: string | undefined;
}

export interface AcquiredLease {
  readonly sessionId: string;
  readonly workspaceId: string;
  readonly leaseId: string;
  readonly epoch: bigint;
  readonly expiresAt: Date;
  /** How often in a row a holder has died without an event of the session since its assignment (E4). */
  readonly silentDeaths: number;
  /** How often in a row a holder has died before the log had more of it than that it had begun to ask a model. */
  readonly barrenDeaths: number;
  /** Position of the session's newest event when it was assigned. */
  readonly head: bigint;
}

export interface LeaseStore {
  /**
   * Sessions that have work, no live lease, and room somewhere. The workspaces that hold the fewest leases come first, each
   * with its oldest session, as long as its limit of running sessions allows; those in whose hands a session has died often are left to `findSuspects`.
   */
  findWork(request: { limit: number; rooms: readonly Room[] }): Promise<WaitingSession[]>;
  /** Of the sessions that have work and no live lease those that may run only by themselves, or no more (E4); oldest first. */
  findSuspects(limit: number): Promise<WaitingSession[]>;
  /** One session, if it has work and no live lease; `isLimited` when its workspace may run only so many at a time. */
  findWaiting(sessionId: string): Promise<(WaitingSession & { isLimited: boolean }) | undefined>;
  /**
   * Takes the session with the next epoch, or says undefined when somebody else has it, there is nothing to do, or its
   * row is locked right now: the next round asks again.
   */
  acquire(request: {
    sessionId: string;
    leaseId: string;
    harnessId: string;
    replicaId: string;
    ttlMs: number;
  }): Promise<AcquiredLease | undefined>;
  /** Gives the ids of those that are still the harness's, and when the first of them ends. One whose row is locked keeps its old end. */
  renew(request: {
    leaseIds: readonly string[];
    harnessId: string;
    ttlMs: number;
  }): Promise<{ leaseIds: string[]; expiresAt: Date }>;
  /** The same harness goes on under the same epoch, through this replica; undefined when the lease is gone. */
  reattach(request: {
    sessionId: string;
    leaseId: string;
    epoch: bigint;
    harnessId: string;
    replicaId: string;
    ttlMs: number;
  }): Promise<AcquiredLease | undefined>;
  /**
   * The holder gives the lease back. `restedPosition` says up to where there was nothing left to do; undefined when
   * there is. `retryAfterMs` keeps the session from being offered for so long; `answersDueAfterMs` says when calls that
   * wait for clients are to be looked at, undefined when none is. True when the lease was still held.
   */
  release(request: {
    leaseId: string;
    restedPosition: bigint | undefined;
    retryAfterMs: number | undefined;
    answersDueAfterMs?: number | undefined;
  }): Promise<{ released: boolean; hasWork: boolean }>;
  /** The holder's stream ended and it did not come back, through this replica at least. Counts a silent death when `crashed`. */
  free(request: {
    leaseId: string;
    replicaId: string;
    crashed: boolean;
  }): Promise<{ sessionId: string } | undefined>;
  /** Ends whatever lease the session has; its epoch stays used. */
  withdraw(sessionId: string): Promise<{ leaseId: string } | undefined>;
  /** Clears a retry's delay. NOT_FOUND, SESSION_ARCHIVED. */
  wake(sessionId: string): Promise<{ hasWork: boolean }>;
  /** Sessions that say `running` although their lease ended longer than `graceMs` ago (E3). */
  findAbandoned(request: { graceMs: number; limit: number }): Promise<{ sessionId: string; head: number }[]>;
}

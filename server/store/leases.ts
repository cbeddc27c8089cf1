/** Who is the brain of which session. All times are the database's. */

export interface WaitingSession {
  readonly sessionId: string;
  readonly workspaceId: string;
  /** Name of the loop that the session's agent needs. */
  readonly loop: string;
  readonly silentDeaths: number;
}

export interface AcquiredLease {
  readonly sessionId: string;
  readonly workspaceId: string;
  readonly leaseId: string;
  readonly epoch: bigint;
  readonly expiresAt: Date;
  /** How often in a row a holder has died without having appended an event (E4). */
  readonly silentDeaths: number;
}

export interface LeaseStore {
  /** Sessions that have work and no live lease: the oldest of each workspace first, then the second oldest, and so on. */
  findWork(limit: number): Promise<WaitingSession[]>;
  /** One session, if it has work and no live lease. */
  findWaiting(sessionId: string): Promise<WaitingSession | undefined>;
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
   * there is. `retryAfterMs` keeps the session from being offered for so long. True when the lease was still held.
   */
  release(request: {
    leaseId: string;
    restedPosition: bigint | undefined;
    retryAfterMs: number | undefined;
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
  /** The session is given up: what waits counts as seen, until a client says something new. */
  giveUp(sessionId: string): Promise<void>;
  /** Sessions that say `running` although their lease ended longer than `graceMs` ago (E3). */
  findAbandoned(request: { graceMs: number; limit: number }): Promise<string[]>;
}

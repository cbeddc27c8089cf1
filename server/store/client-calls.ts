/** Calls that clients speak of: what the log says of them. */

/** What stands in the log in answer to a call. */
export interface CallAnswer {
  readonly eventId: string;
  readonly position: number;
  readonly type: string;
  readonly payload: string;
}

export interface ClientCall {
  readonly eventId: string;
  readonly type: string;
  readonly payload: string;
  /** The call's result. */
  readonly result: CallAnswer | undefined;
  /** The first confirmation of the call. */
  readonly confirmation: CallAnswer | undefined;
}

/** A call that has waited for a client for so long. */
export interface WaitingCall {
  readonly eventId: string;
  readonly type: string;
  readonly payload: string;
  /** Since an idle event first named it. */
  readonly waitedMs: number;
}

export interface OverdueSession {
  readonly sessionId: string;
  /** Of the log from which `calls` were read. */
  readonly head: number;
  /** Calls without a result and without a client's word, that a client was told of. */
  readonly calls: readonly WaitingCall[];
}

export interface ClientCallStore {
  /** Those of the ids that are calls, and the log's head from before they were looked up. */
  find(sessionId: string, callIds: readonly string[]): Promise<{ head: number; calls: ClientCall[] }>;
  /** Sessions whose time to look at waiting calls has come. */
  overdue(limit: number): Promise<OverdueSession[]>;
  /** When to look again; undefined: not until a brain says so. */
  setDue(sessionId: string, afterMs: number | undefined): Promise<void>;
}

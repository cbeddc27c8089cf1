/** Where tamper-evident sessions came to rest, and what servers signed there. */
import type { Checkpoint } from "../../kit/chain/checkpoint.ts";

export interface UnsignedCheckpoint {
  readonly sessionId: string;
  readonly position: number;
  /** Of the event there, lower-case hex. */
  readonly hash: string;
}

export interface CheckpointStore {
  /** Oldest first: the session's, or without one those of all that have waited for so long. */
  unsigned(query: { sessionId?: string; waitingMs: number; limit: number }): Promise<UnsignedCheckpoint[]>;
  /**
   * Asks for the signatures of those sessions that rest and of which the newest event is neither signed nor waits for it.
   * Gives their ids.
   */
  request(sessionIds: readonly string[]): Promise<string[]>;
  /** False when it is signed already, or the session is gone: the first signature stays. */
  sign(checkpoint: Checkpoint): Promise<boolean>;
  /** The signed ones of a session, from one position to another, in order. */
  list(query: {
    sessionId: string;
    fromPosition: number;
    toPosition: number;
    limit: number;
  }): Promise<Checkpoint[]>;
}

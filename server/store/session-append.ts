/** What other nouns' transactions learn when they append to a session's log. */

/** Positions that became visible with the commit; hand it to `SessionLog.announce`. */
export interface LogAdvance {
  readonly sessionId: string;
  readonly head: bigint;
  readonly hasWork: boolean;
  /** What was appended, up to `head`, when it is at hand. */
  readonly added?: readonly AppendedEvent[];
  /** See Appended. */
  readonly checkpointDue?: boolean;
}

export interface AppendedEvent {
  readonly id: string;
  readonly position: number;
  readonly type: string;
  readonly threadId: string;
  readonly createdAt: Date;
  readonly payload: string;
  readonly internal: string | undefined;
}

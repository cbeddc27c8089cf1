/** What other nouns' transactions learn when they append to a session's log. */

/** Positions that became visible with the commit; hand it to `SessionLog.announce`. */
export interface LogAdvance {
  readonly sessionId: string;
  readonly head: bigint;
  readonly hasWork: boolean;
}

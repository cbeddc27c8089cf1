/** What the server erases by itself. Any number of replicas may do it at once: each takes what no other has. */

export interface RetentionStore {
  /**
   * Ends sessions that have ended longer ago than their workspace keeps them, at most `limit`: archived ones by the time
   * of archiving, others when they are at rest and have changed nothing for so long. They are archived when it returns,
   * so nobody can append any more, and are found again until they are deleted. Returns their ids.
   */
  expire(limit: number): Promise<string[]>;
  /**
   * Erases events without a session that nobody has touched for `untouchedMs`, a bounded number. Returns whether there
   * may be more.
   */
  eraseUnfinished(untouchedMs: number): Promise<boolean>;
}

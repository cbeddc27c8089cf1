/** What the other areas may ask of the part that hands sessions to harnesses. */
export interface HarnessDispatch {
  /** A session may have work: look at once instead of at the next round. Clears a delay that a retry asked for. */
  wake(sessionId: string): Promise<{ hasWork: boolean }>;
  /** Ends the session's lease, if it has one: its holder is told, and everything it still sends is refused. */
  withdraw(sessionId: string, detail: string): Promise<void>;
}

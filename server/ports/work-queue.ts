/** The work queue for the other areas. */
export interface WorkQueue {
  /** An item came into the environment's queue: those who wait for one at this replica look again. */
  queued(environmentId: string): void;
}

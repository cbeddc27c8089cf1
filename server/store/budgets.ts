/** What trees have used of what their roots allow. */

export interface BudgetStanding {
  /** JSON text of a Budget. */
  readonly budget: string;
  /** Since the root was made. */
  readonly ageMs: number;
  readonly tokens: number;
  readonly listCostNanoUsd: number;
  readonly unpricedRequests: number;
  /** Requests that have ended. */
  readonly modelRequests: number;
}

export interface BudgetStore {
  /** Of the session's tree; undefined when its root has no budget. */
  standing(sessionId: string): Promise<BudgetStanding | undefined>;
}

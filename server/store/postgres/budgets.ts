import type { BudgetStore } from "../budgets.ts";
import type { Pool } from "./pool.ts";

interface Row {
  budget: string;
  age_ms: number;
  tokens: number;
  list_cost_nano_usd: number;
  unpriced_requests: number;
  model_requests: number;
}

export function createBudgetStore(pool: Pool): BudgetStore {
  return {
    async standing(sessionId) {
      const { rows } = await pool.query<Row>("select * from budget_standing($1)", [sessionId]);
      const row = rows[0];
      return (
        row && {
          budget: row.budget,
          ageMs: row.age_ms,
          tokens: row.tokens,
          listCostNanoUsd: row.list_cost_nano_usd,
          unpricedRequests: row.unpriced_requests,
          modelRequests: row.model_requests,
        }
      );
    },
  };
}

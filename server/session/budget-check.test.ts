import { describe, expect, it } from "vitest";
import type { BudgetStanding } from "../store/budgets.ts";
import { checkBudget, spentLimit } from "./budget-check.ts";

const used: BudgetStanding = {
  budget: "{}",
  ageMs: 5_000,
  tokens: 1_000,
  listCostNanoUsd: 25_000_000,
  unpricedRequests: 0,
  modelRequests: 7,
};
const limited = (budget: object, more: Partial<BudgetStanding> = {}) =>
  spentLimit({ ...used, ...more, budget: JSON.stringify(budget) });

describe("a budget", () => {
  it("without limits is never spent", () => {
    expect(limited({})).toBeUndefined();
    expect(limited({ maxTokens: "0", maxTurns: "0" })).toBeUndefined();
  });

  it("is spent once the limit is reached, not before", () => {
    expect(limited({ maxTokens: "1001" })).toBeUndefined();
    expect(limited({ maxTokens: "1000" })).toEqual({ limit: "max_tokens", used: 1000n, allowed: 1000n });
    expect(limited({ maxTurns: "8" })).toBeUndefined();
    expect(limited({ maxTurns: "7" })).toMatchObject({ limit: "max_turns" });
    expect(limited({ maxWallClockMs: "5001" })).toBeUndefined();
    expect(limited({ maxWallClockMs: "5000" })).toMatchObject({ limit: "max_wall_clock_ms" });
  });

  it("is compared by exact list price and told in cents", () => {
    expect(limited({ maxListCostCents: "3" })).toBeUndefined();
    expect(limited({ maxListCostCents: "2" })).toEqual({
      limit: "max_list_cost_cents",
      used: 3n,
      allowed: 2n,
    });
    expect(limited({ maxListCostCents: "3" }, { listCostNanoUsd: 29_999_999 })).toBeUndefined();
    expect(limited({ maxListCostCents: "3" }, { listCostNanoUsd: 30_000_000 })).toMatchObject({ used: 3n });
  });

  it("by list price cannot be kept by a model without one", () => {
    expect(limited({ maxListCostCents: "3" }, { unpricedRequests: 1 })).toMatchObject({
      limit: "max_list_cost_cents",
      used: expect.stringContaining("without a list price"),
    });
    expect(limited({ maxTokens: "2000" }, { unpricedRequests: 1 })).toBeUndefined();
  });

  it("is looked at only where a request begins", async () => {
    let looks = 0;
    const budgets = {
      standing: async () => {
        looks += 1;
        return { ...used, budget: `{"maxTurns":"1"}` };
      },
    };
    const event = (type: string) => ({ id: "", type, threadId: "", payload: "{}", internal: undefined });
    await checkBudget(budgets, "sesn_1", [event("agent.message"), event("span.model_request_end")]);
    expect(looks).toBe(0);
    for (const type of ["span.model_request_start", "brain.judging_began"]) {
      const begins = checkBudget(budgets, "sesn_1", [event("session.status_running"), event(type)]);
      await expect(begins).rejects.toMatchObject({
        reason: "BUDGET_REACHED",
        metadata: { limit: "max_turns", used: "7", allowed: "1" },
      });
    }
  });
});

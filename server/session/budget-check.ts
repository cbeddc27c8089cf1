/** Whether a tree may ask a model once more. Looked at where a request's start is appended, so it holds for every harness (R24). */
import { fromJsonString } from "@bufbuild/protobuf";
import { TendonError } from "../../kit/errors.ts";
import { BudgetSchema } from "../../proto/gen/tendon/v1/session_pb.js";
import type { BudgetStanding, BudgetStore } from "../store/budgets.ts";
import type { NewEvent } from "../store/events.ts";

const NANO_USD_PER_CENT = 10_000_000n;
/** A model is about to be asked: for the talk, whether calls may run, or what the work is worth. */
const ASKS: ReadonlySet<string> = new Set([
  "span.model_request_start",
  "brain.judging_began",
  "span.outcome_evaluation_start",
]);

/**
 * Throws BUDGET_REACHED (metadata `limit`, `used`, `allowed`) for events that begin a request of a tree whose budget is
 * spent. What was let through may end after others have spent the rest: so a tree spends at most its budget, and for each thread
 * that works one request or the judging of one answer's calls.
 */
export async function checkBudget(
  budgets: BudgetStore,
  sessionId: string,
  events: readonly NewEvent[],
): Promise<void> {
  if (!events.some(({ type }) => ASKS.has(type))) return;
  const standing = await budgets.standing(sessionId);
  const spent = standing && spentLimit(standing);
  if (spent === undefined) return;
  const { limit, used, allowed } = spent;
  throw new TendonError(
    "BUDGET_REACHED",
    `the budget is spent: ${limit} allows ${allowed}, ${used} were used`,
    {
      limit,
      used: String(used),
      allowed: String(allowed),
    },
  );
}

interface SpentLimit {
  readonly limit: string;
  readonly used: bigint | string;
  readonly allowed: bigint;
}

/** The first limit that leaves nothing (pure). */
export function spentLimit(standing: BudgetStanding): SpentLimit | undefined {
  const budget = fromJsonString(BudgetSchema, standing.budget, { ignoreUnknownFields: true });
  const limits: [limit: string, allowed: bigint, used: bigint][] = [
    ["max_tokens", budget.maxTokens, BigInt(standing.tokens)],
    ["max_turns", budget.maxTurns, BigInt(standing.modelRequests)],
    ["max_wall_clock_ms", budget.maxWallClockMs, BigInt(standing.ageMs)],
  ];
  for (const [limit, allowed, used] of limits) {
    if (allowed > 0n && used >= allowed) return { limit, used, allowed };
  }
  const cents = budget.maxListCostCents;
  if (cents === 0n) return undefined;
  const limit = "max_list_cost_cents";
  // What has no price could cost anything.
  if (standing.unpricedRequests > 0) return { limit, used: "requests without a list price", allowed: cents };
  const nanoUsd = BigInt(standing.listCostNanoUsd);
  if (nanoUsd < cents * NANO_USD_PER_CENT) return undefined;
  return { limit, used: (nanoUsd + NANO_USD_PER_CENT / 2n) / NANO_USD_PER_CENT, allowed: cents };
}

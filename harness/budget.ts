/** What is said of budgets (pure). */
import { create, toJson } from "@bufbuild/protobuf";
import { isTendonError } from "../kit/errors.ts";
import { type Budget, BudgetSchema } from "../proto/gen/tendon/v1/session_pb.js";

/** The `stop_details` of the idle event that says so; undefined for any other failure. */
export function spentBudget(error: unknown): object | undefined {
  if (!isTendonError(error, "BUDGET_REACHED")) return undefined;
  const { limit, used, allowed } = error.metadata;
  return { type: "budget_reached", limit, used, allowed };
}

/** As the log tells it; empty without one. */
export function budgetFields(budget: Budget | undefined): Record<string, unknown> {
  return toJson(BudgetSchema, budget ?? create(BudgetSchema)) as Record<string, unknown>;
}

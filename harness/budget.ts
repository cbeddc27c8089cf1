/** What the server says of a budget that leaves no further model request (pure). */
import { isTendonError } from "../kit/errors.ts";

/** The `stop_details` of the idle event that says so; undefined for any other failure. */
export function spentBudget(error: unknown): object | undefined {
  if (!isTendonError(error, "BUDGET_REACHED")) return undefined;
  const { limit, used, allowed } = error.metadata;
  return { type: "budget_reached", limit, used, allowed };
}

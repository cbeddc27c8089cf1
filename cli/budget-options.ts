/** Limits of a session and its threads, as options. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { type Command, InvalidArgumentError } from "commander";
import type { Budget, BudgetSchema } from "../proto/gen/tendon/v1/session_pb.js";
import { parseCount, parseDuration } from "./words.ts";

export interface BudgetOptions {
  readonly maxTokens?: number;
  readonly maxCost?: number;
  readonly maxTurns?: number;
  readonly maxTime?: number;
}

const MAX_COUNT = Number.MAX_SAFE_INTEGER;
const MAX_CENTS = 10 ** 12;
const MAX_TIME_MS = 10 * 365 * 24 * 3_600_000;

export function addBudgetOptions(command: Command): Command {
  return command
    .option(
      "--max-tokens <n>",
      "input, cached or not, and output; with its threads",
      parseCount(1, MAX_COUNT),
    )
    .option("--max-cost <dollars>", "by list price, such as 2.50; with its threads", parseCents)
    .option("--max-turns <n>", "model requests; with its threads", parseCount(1, MAX_COUNT))
    .option("--max-time <time>", "since it was made, such as 2h", parseDuration(MAX_TIME_MS));
}

/** Undefined when no limit was given. */
export function budgetOf(options: BudgetOptions): MessageInitShape<typeof BudgetSchema> | undefined {
  const { maxTokens, maxCost, maxTurns, maxTime } = options;
  if ([maxTokens, maxCost, maxTurns, maxTime].every((limit) => limit === undefined)) return undefined;
  return {
    maxTokens: BigInt(maxTokens ?? 0),
    maxListCostCents: BigInt(maxCost ?? 0),
    maxTurns: BigInt(maxTurns ?? 0),
    maxWallClockMs: BigInt(maxTime ?? 0),
  };
}

/** Empty for none. */
export function budgetText(budget: Budget | undefined): string {
  if (budget === undefined) return "";
  const { maxTokens, maxListCostCents, maxTurns, maxWallClockMs } = budget;
  const limits = [
    maxTokens > 0n && `${maxTokens} tokens`,
    maxListCostCents > 0n && `$${(Number(maxListCostCents) / 100).toFixed(2)}`,
    maxTurns > 0n && `${maxTurns} model requests`,
    maxWallClockMs > 0n && `${Number(maxWallClockMs) / 1000} s`,
  ];
  return limits.filter((limit) => limit !== false).join(", ");
}

function parseCents(text: string): number {
  const cents = /^\d{1,12}(\.\d{1,2})?$/.test(text) ? Math.round(Number(text) * 100) : 0;
  if (cents < 1 || cents > MAX_CENTS) throw new InvalidArgumentError("It must be dollars, such as 2.50.");
  return cents;
}

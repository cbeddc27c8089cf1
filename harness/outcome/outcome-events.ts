/** The events of evaluations, as the log keeps them. Pure, except that ids come from outside. */
import type { FailureOrigin } from "../../kit/errors.ts";
import type { EventInput } from "../../proto/gen/tendon/v1/event_pb.js";
import { brainEvent, wireUsage } from "../brain-events.ts";
import { listCostOf } from "../list-price.ts";
import { type ModelFailure, type ModelUsage, NO_USAGE } from "../loops/loop.ts";
import type { HandOutputs } from "./hand-outputs.ts";
import {
  EVALUATION_END,
  EVALUATION_ONGOING,
  EVALUATION_START,
  type GraderAttempt,
  type Outcome,
} from "./outcome-state.ts";
import type { JudgedCriterion, Verdict } from "./verdict.ts";

export type EvaluationResult = Verdict["result"] | "max_iterations_reached" | "interrupted";

const INTERRUPTED_TEXT = "Interrupted before the outcome was reached.";
const REFUSED_TEXT = "The model refused to work on it.";
const BROKEN_TEXT = "An internal error ended the work on it.";
const TOO_LARGE_TEXT = "The session's history is larger than a harness may hold, so nothing can be judged.";
const NO_RUBRIC_TEXT = "The text of the rubric's file is not known here, so nothing can be judged by it.";
const NO_GRADER_TEXT = "No model is configured here that could judge the work.";

/** Nobody could judge, whatever the work is like. */
export const GRADER_UNREADABLE: FailureOrigin = { part: "model", reason: "GRADER_UNREADABLE" };

export function startEvent(id: string, outcome: Outcome, model: string, outputs: HandOutputs): EventInput {
  return brainEvent(id, EVALUATION_START, { ...named(outcome), model }, { v: 1, ...outputs });
}

/** `attempt`: what a request has come to that gave no verdict; without it, that one is under way. */
export function ongoingEvent(id: string, outcome: Outcome, attempt?: GraderAttempt): EventInput {
  const internal = attempt && { v: 1, attempt };
  return brainEvent(id, EVALUATION_ONGOING, named(outcome), internal);
}

export function unreadableAttempt(usage: ModelUsage): GraderAttempt {
  return { kind: "unreadable", usage: wireUsage(usage) };
}

export function failedAttempt(
  { type }: ModelFailure,
  elapsedMs: number,
  waitMs: number,
  isTooLong: boolean,
): GraderAttempt {
  return { kind: "failed", type, elapsed_ms: elapsedMs, wait_ms: waitMs, too_long: isTooLong };
}

/** The end of an evaluation; where none had begun, of an outcome that will see no other. */
export function endEvent(
  id: string,
  outcome: Outcome,
  { result, explanation, criteria, usage }: EvaluationEnd,
): EventInput {
  const used = [...(outcome.evaluation?.used ?? []), ...(usage === undefined ? [] : [usage])];
  const cost = listCost(outcome.evaluation?.model ?? "", used);
  const payload = {
    ...named(outcome),
    outcome_evaluation_start_id: outcome.evaluation?.startId ?? "",
    result,
    explanation,
    ...(criteria !== undefined && criteria.length > 0 && { criteria }),
    usage: wireUsage(used.reduce(sum, NO_USAGE)),
    ...(used.length > 0 && { list_cost: cost }),
  };
  return brainEvent(id, EVALUATION_END, payload);
}

/** The outcome of the session, if it has one, comes to nothing more. */
export function outcomeEnd(
  { outcome }: { readonly outcome: Outcome | undefined },
  end: EvaluationEnd,
  newId: () => string,
): EventInput[] {
  return outcome === undefined ? [] : [endEvent(newId(), outcome, end)];
}

export interface EvaluationEnd {
  readonly result: EvaluationResult;
  readonly explanation: string;
  readonly criteria?: readonly JudgedCriterion[];
  /** Of the request that gave the verdict; what others had used is known. */
  readonly usage?: ModelUsage;
}

/** What the grader said is the last word once the outcome has had all its iterations. */
export function judgedEnd(outcome: Outcome, verdict: Verdict, usage: ModelUsage): EvaluationEnd {
  const isLast = outcome.iteration + 1 >= outcome.maxIterations;
  const result = verdict.result === "needs_revision" && isLast ? "max_iterations_reached" : verdict.result;
  return { ...verdict, result, usage };
}

export const ENDS = {
  interrupted: { result: "interrupted", explanation: INTERRUPTED_TEXT },
  refused: { result: "failed", explanation: REFUSED_TEXT },
  broken: { result: "failed", explanation: BROKEN_TEXT },
  tooLarge: { result: "failed", explanation: TOO_LARGE_TEXT },
  withoutRubric: { result: "failed", explanation: NO_RUBRIC_TEXT },
  withoutGrader: { result: "failed", explanation: NO_GRADER_TEXT },
} as const satisfies Record<string, EvaluationEnd>;

function named({ outcomeId, iteration }: Outcome) {
  return { outcome_id: outcomeId, iteration };
}

function sum(a: ModelUsage, b: ModelUsage): ModelUsage {
  return {
    inputTokens: a.inputTokens + b.inputTokens,
    outputTokens: a.outputTokens + b.outputTokens,
    cacheReadInputTokens: a.cacheReadInputTokens + b.cacheReadInputTokens,
    cacheCreationInputTokens: a.cacheCreationInputTokens + b.cacheCreationInputTokens,
  };
}

/** Null when the model has no price. */
function listCost(model: string, used: readonly ModelUsage[]) {
  const costs = used.map((usage) => listCostOf(model, usage));
  const [first] = costs;
  if (first === undefined) return null;
  const nanoUsd = costs.reduce((total, cost) => total + (cost?.nanoUsd ?? 0), 0);
  return { nano_usd: nanoUsd, prices_of: first.pricesOf };
}

/** The outcome that a session works towards, and how far its evaluation is: folded from the log. Pure. */
import { outcomeIdOf } from "../../kit/ids.ts";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import {
  countOf,
  isObject,
  type Json,
  parseObject,
  payloadOf,
  stringOf,
  stringsOf,
} from "../event-payload.ts";
import type { ModelUsage } from "../loops/loop.ts";

export const OUTCOME_DEFINED = "user.define_outcome";
export const EVALUATION_START = "span.outcome_evaluation_start";
export const EVALUATION_ONGOING = "span.outcome_evaluation_ongoing";
export const EVALUATION_END = "span.outcome_evaluation_end";
export const THREADS_RESTED = "brain.threads_rested";

/** One that has reached no terminal result. A session has at most one. */
export interface Outcome {
  /** Of the event that defines it. */
  readonly eventId: string;
  readonly outcomeId: string;
  readonly position: bigint;
  readonly description: string;
  /** Undefined where the text of a file was lost, as in a log that was brought without what brains see. */
  readonly rubric: string | undefined;
  readonly maxIterations: number;
  /** From 0: how often it was judged and found wanting. */
  readonly iteration: number;
  /** The agent was told of it. */
  readonly isBegun: boolean;
  /** The session came to rest before the end was reached: somebody has to say something first. */
  readonly isPaused: boolean;
  /** The session rests until none of its threads works: the server says when, and the work is judged then. */
  readonly awaitsThreads: boolean;
  readonly evaluation: Evaluation | undefined;
}

/** An evaluation that has begun and not ended. */
export interface Evaluation {
  readonly startId: string;
  /** The grader is shown what came before it. */
  readonly position: bigint;
  readonly model: string;
  /** What hands had left when it began. */
  readonly outputs: Json;
  /** What the grader's answers so far have used. */
  readonly used: readonly ModelUsage[];
  /** Answers that nobody could read. */
  readonly unreadable: number;
  /** Requests that were too long for the grader. */
  readonly tooLong: number;
}

/** What came of one request to the grader that gave no verdict; in the `internal` of a heartbeat. */
export type GraderAttempt =
  | { readonly kind: "unreadable"; readonly usage: object }
  | {
      readonly kind: "failed";
      readonly type: string;
      readonly elapsed_ms: number;
      readonly wait_ms: number;
      readonly too_long: boolean;
    };

const DEFAULT_ITERATIONS = 3;

export function definedOutcome(event: Event): Outcome {
  const { description, rubric, max_iterations } = payloadOf(event);
  return {
    eventId: event.id,
    outcomeId: outcomeIdOf(event.id),
    position: event.position,
    description: stringOf(description),
    rubric: rubricOf(isObject(rubric) ? rubric : {}, event),
    maxIterations: countOf(max_iterations) || DEFAULT_ITERATIONS,
    iteration: 0,
    isBegun: false,
    isPaused: false,
    awaitsThreads: false,
    evaluation: undefined,
  };
}

function rubricOf(rubric: Json, { internal }: Event): string | undefined {
  if (rubric.type !== "file") return stringOf(rubric.content);
  const { rubric_text: text } = parseObject(internal);
  return typeof text === "string" ? text : undefined;
}

export function begunEvaluation(outcome: Outcome, event: Event): Outcome {
  const evaluation: Evaluation = {
    startId: event.id,
    position: event.position,
    model: stringOf(payloadOf(event).model),
    outputs: parseObject(event.internal),
    used: [],
    unreadable: 0,
    tooLong: 0,
  };
  return { ...outcome, evaluation };
}

/** With what a heartbeat says; most say nothing but that it goes on. */
export function triedEvaluation(outcome: Outcome, event: Event): Outcome {
  const { evaluation } = outcome;
  const { attempt } = parseObject(event.internal);
  if (evaluation === undefined || !isObject(attempt)) return outcome;
  const tried: Evaluation =
    attempt.kind === "unreadable"
      ? {
          ...evaluation,
          used: [...evaluation.used, usageOf(attempt.usage)],
          unreadable: evaluation.unreadable + 1,
        }
      : { ...evaluation, tooLong: evaluation.tooLong + (attempt.too_long === true ? 1 : 0) };
  return { ...outcome, evaluation: tried };
}

/** After the session has come to rest; `stopReason` as the idle event says it. */
export function restedOutcome(outcome: Outcome, stopReason: Json): Outcome {
  const { type, event_ids: eventIds } = stopReason;
  const isWaiting = type === "waiting_for_threads";
  const awaitsThreads = isWaiting && stringsOf(eventIds).includes(outcome.eventId);
  // The turn goes on where it was.
  const isPaused =
    outcome.isPaused || !(isWaiting || type === "requires_action" || type === "budget_reached");
  return { ...outcome, awaitsThreads, isPaused };
}

/** What is left of it after the end of an evaluation: undefined for a result that is terminal. */
export function judgedOutcome(outcome: Outcome, event: Event): Outcome | undefined {
  if (payloadOf(event).result !== "needs_revision") return undefined;
  return { ...outcome, iteration: outcome.iteration + 1, evaluation: undefined };
}

/** The agent hears of these: it goes on, or has a last word. */
export function isTold(event: Event): boolean {
  const { result } = payloadOf(event);
  return result === "needs_revision" || result === "max_iterations_reached";
}

function usageOf(value: unknown): ModelUsage {
  const usage = isObject(value) ? value : {};
  return {
    inputTokens: countOf(usage.input_tokens),
    outputTokens: countOf(usage.output_tokens),
    cacheReadInputTokens: countOf(usage.cache_read_input_tokens),
    cacheCreationInputTokens: countOf(usage.cache_creation_input_tokens),
  };
}

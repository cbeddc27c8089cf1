/** What a session was to reach, and how that was judged, from the events of its log (pure). */
import { timestampMs } from "@bufbuild/protobuf/wkt";
import { outcomeIdOf } from "../kit/ids.ts";
import type { Event } from "../proto/gen/tendon/v1/event_pb.js";
import { type Json, objectOf, payloadOf, stringOf } from "./event-payload.ts";

export const OUTCOME_TYPES: readonly string[] = [
  "user.define_outcome",
  "span.outcome_evaluation_start",
  "span.outcome_evaluation_ongoing",
  "span.outcome_evaluation_end",
];

/** One outcome; names of fields as in the log, for programs. */
export interface OutcomeView {
  readonly outcome_id: string;
  readonly position: number;
  readonly description: string;
  readonly max_iterations: number;
  readonly evaluations: EvaluationView[];
}

/** One evaluation, from its start to its end. */
export interface EvaluationView {
  /** Empty where it was never begun: the outcome ended before. */
  readonly start_id: string;
  readonly iteration: number;
  readonly model: string;
  readonly started_at_ms: number | null;
  /** Null while it lasts. */
  ended_at_ms: number | null;
  /** Signs of life in between. */
  heartbeats: number;
  /** Null while it lasts. */
  result: string | null;
  explanation: string;
  criteria: readonly Json[];
  usage: Json;
  list_cost: unknown;
}

const DEFAULT_ITERATIONS = 3;

/** Events of `OUTCOME_TYPES`, in log order; those of threads are passed over. */
export function outcomesOf(events: readonly Event[]): OutcomeView[] {
  const outcomes: OutcomeView[] = [];
  for (const event of events) {
    if (event.threadId !== "") continue;
    const payload = payloadOf(event);
    if (event.type === "user.define_outcome") outcomes.push(defined(event, payload));
    const outcome = outcomes.findLast(({ outcome_id: id }) => id === payload.outcome_id);
    if (outcome !== undefined) judge(outcome.evaluations, event, payload);
  }
  return outcomes;
}

function defined(event: Event, { description, max_iterations: most }: Json): OutcomeView {
  return {
    outcome_id: outcomeIdOf(event.id),
    position: Number(event.position),
    description: stringOf(description),
    max_iterations: typeof most === "number" ? most : DEFAULT_ITERATIONS,
    evaluations: [],
  };
}

function judge(evaluations: EvaluationView[], event: Event, payload: Json): void {
  const last = evaluations.at(-1);
  switch (event.type) {
    case "span.outcome_evaluation_start":
      evaluations.push(begun(event.id, payload, timeOf(event)));
      return;
    case "span.outcome_evaluation_ongoing":
      if (last !== undefined) last.heartbeats += 1;
      return;
    case "span.outcome_evaluation_end": {
      const startId = stringOf(payload.outcome_evaluation_start_id);
      const isLasts = startId !== "" && last?.start_id === startId;
      const ended = isLasts ? last : begun("", payload, null);
      if (!isLasts) evaluations.push(ended);
      ended.ended_at_ms = timeOf(event);
      ended.result = stringOf(payload.result);
      ended.explanation = stringOf(payload.explanation);
      ended.criteria = Array.isArray(payload.criteria) ? payload.criteria.map(objectOf) : [];
      ended.usage = objectOf(payload.usage);
      ended.list_cost = payload.list_cost ?? null;
    }
  }
}

function begun(startId: string, { iteration, model }: Json, startedAtMs: number | null): EvaluationView {
  return {
    start_id: startId,
    iteration: typeof iteration === "number" ? iteration : 0,
    model: stringOf(model),
    started_at_ms: startedAtMs,
    ended_at_ms: null,
    heartbeats: 0,
    result: null,
    explanation: "",
    criteria: [],
    usage: {},
    list_cost: null,
  };
}

function timeOf({ createdAt }: Event): number | null {
  return createdAt === undefined ? null : timestampMs(createdAt);
}

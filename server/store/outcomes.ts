/** What sessions work towards, as their logs say it. */
import { newId, outcomeIdOf } from "../../kit/ids.ts";
import type { Appended, AppendRequest, NewEvent } from "./events.ts";

export type OutcomeResult =
  | "pending"
  | "running"
  | "evaluating"
  | "satisfied"
  | "max_iterations_reached"
  | "failed"
  | "interrupted";

export interface OutcomeRecord {
  /** Of the event that defines it. */
  readonly eventId: string;
  /** Cut where it is long; the event has all of it. */
  readonly description: string;
  readonly result: OutcomeResult;
  /** From 0. */
  readonly iteration: number;
  /** The newest verdict's, cut where it is long; undefined before the first. */
  readonly explanation: string | undefined;
  /** Undefined until its result is terminal. */
  readonly completedAt: Date | undefined;
}

export interface OutcomeStore {
  /**
   * As `EventStore.append`, for events of which one defines an outcome. OUTCOME_ACTIVE while the session works towards
   * another; looked at in the transaction that appends.
   */
  append(request: AppendRequest): Promise<Appended>;
  /** The newest outcomes of each session, oldest first; none for a session that has none. */
  ofSessions(sessionIds: readonly string[]): Promise<ReadonlyMap<string, readonly OutcomeRecord[]>>;
}

/** Results after which nothing more comes of an outcome. */
const TERMINAL: ReadonlySet<string> = new Set<OutcomeResult>([
  "satisfied",
  "max_iterations_reached",
  "failed",
  "interrupted",
]);

export function isTerminal(result: unknown): result is OutcomeResult {
  return typeof result === "string" && TERMINAL.has(result);
}

/** What a session works towards. */
export interface OpenOutcome {
  readonly eventId: string;
  readonly iteration: number;
  /** Of the evaluation that has begun; empty when none has. */
  readonly startId: string;
}

/** The end of one that nobody will work on any more: `explanation` says why. */
export function endedOutcome({ eventId, iteration, startId }: OpenOutcome, explanation: string): NewEvent {
  const payload = JSON.stringify({
    outcome_id: outcomeIdOf(eventId),
    iteration,
    outcome_evaluation_start_id: startId,
    result: "interrupted" satisfies OutcomeResult,
    explanation,
    usage: {
      input_tokens: 0,
      output_tokens: 0,
      cache_creation_input_tokens: 0,
      cache_read_input_tokens: 0,
    },
  });
  return {
    id: newId("event"),
    type: "span.outcome_evaluation_end",
    threadId: "",
    payload,
    internal: undefined,
  };
}

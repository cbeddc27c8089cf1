/** Whether and when a model is asked again after it failed. Pure; randomness comes from outside. */
import type { ModelFailure } from "./loops/loop.ts";
import type { Trouble } from "./session-state.ts";

export interface RetryBounds {
  /** Wait after the first failure; it doubles with each one. */
  readonly firstMs: number;
  /** Longest wait between two attempts. */
  readonly maxMs: number;
  /** From the beginning of the trouble to giving up, attempts included. */
  readonly totalMs: number;
}

export type RetryVerdict =
  | { readonly kind: "retry"; readonly waitMs: number; readonly elapsedMs: number }
  | { readonly kind: "exhausted"; readonly elapsedMs: number };

/** An attempt is not worth beginning with less time than this left. */
const MIN_ATTEMPT_MS = 1_000;

/**
 * `before` is the trouble up to the attempt that now failed after `attemptMs`. An attempt whose answer had begun was no
 * trouble until it broke off, so its time counts for nothing.
 */
export function retryVerdict(
  failure: ModelFailure,
  before: Trouble,
  attemptMs: number,
  bounds: RetryBounds,
  random: () => number,
): RetryVerdict {
  const elapsedMs = Math.round(before.elapsedMs + before.waitMs + (failure.began ? 0 : attemptMs));
  const attempts = before.attempts + 1;
  if (attempts >= failure.maxAttempts) return { kind: "exhausted", elapsedMs };
  const window = Math.min(bounds.maxMs, bounds.firstMs * 2 ** Math.min(before.attempts, 30));
  const backoffMs = failure.isRetriedAtOnce ? 0 : window / 2 + random() * (window / 2);
  const waitMs = Math.round(Math.max(backoffMs, failure.retryAfterMs ?? 0));
  const leastMs = Math.min(MIN_ATTEMPT_MS, bounds.totalMs / 100);
  if (elapsedMs + waitMs + leastMs > bounds.totalMs) return { kind: "exhausted", elapsedMs };
  return { kind: "retry", waitMs, elapsedMs };
}

/** How long the model may be silent in the next attempt, so that giving up keeps its bound. */
export function attemptSilenceMs(trouble: Trouble, modelTimeoutMs: number, bounds: RetryBounds): number {
  if (trouble.attempts === 0) return Math.min(modelTimeoutMs, bounds.totalMs);
  return Math.max(1, Math.min(modelTimeoutMs, bounds.totalMs - trouble.elapsedMs - trouble.waitMs));
}

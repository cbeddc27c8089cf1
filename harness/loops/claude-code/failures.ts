/** What the SDK says about its model's failures, as the runner knows them. Pure. */
import type { LoopFault, LoopOutcome, ModelFailure } from "../loop.ts";

const MAX_DETAIL_CHARS = 500;
/** Trouble that the program itself makes is hardly ever over by itself. */
const MAX_FAULTS = 3;

interface Row {
  readonly type: ModelFailure["type"];
  readonly message: string;
  /** Whether asking again can help. */
  readonly isLasting: boolean;
}

const ROWS: Readonly<Record<string, Row>> = {
  overloaded: { type: "model_overloaded_error", message: "The model is overloaded.", isLasting: false },
  rate_limit: {
    type: "model_rate_limited_error",
    message: "The model's rate limit is reached.",
    isLasting: false,
  },
  server_error: { type: "model_request_failed_error", message: "The model API failed.", isLasting: false },
  unknown: { type: "model_request_failed_error", message: "The model could not be asked.", isLasting: false },
  billing_error: {
    type: "billing_error",
    message: "The model API refuses for reasons of billing.",
    isLasting: true,
  },
  account_on_hold: {
    type: "billing_error",
    message: "The account of the model API is on hold.",
    isLasting: true,
  },
  authentication_failed: {
    type: "model_request_failed_error",
    message: "The model API does not accept the harness's key.",
    isLasting: true,
  },
  model_not_found: {
    type: "model_request_failed_error",
    message: "There is no such model.",
    isLasting: true,
  },
};

/** `detail` is what the SDK says; it is told only where the request itself was at fault. */
export function modelFailure(error: string, detail: string, began: boolean): LoopOutcome {
  const row = Object.hasOwn(ROWS, error) ? ROWS[error]! : undefined;
  const refused = {
    type: "model_request_failed_error" as const,
    message: `The model API refused the request: ${detail.slice(0, MAX_DETAIL_CHARS) || error}`,
    isLasting: true,
  };
  const { type, message, isLasting } = row ?? refused;
  const maxAttempts = isLasting ? 1 : Number.POSITIVE_INFINITY;
  return { kind: "failed", failure: { type, message, maxAttempts, retryAfterMs: undefined, began } };
}

export function programFailure(
  reason: LoopFault["reason"],
  message: string,
  { maxAttempts = MAX_FAULTS, began = false } = {},
): LoopOutcome {
  const origin = { part: "harness" as const, reason };
  return {
    kind: "failed",
    failure: { type: "loop_failed_error", message, maxAttempts, retryAfterMs: undefined, began, origin },
  };
}

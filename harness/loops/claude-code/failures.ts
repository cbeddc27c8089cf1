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

const OVERLOADED: Row = {
  type: "model_overloaded_error",
  message: "The model is overloaded.",
  isLasting: false,
};
const BILLING: Row = {
  type: "billing_error",
  message: "The model API refuses for reasons of billing.",
  isLasting: true,
};
const failed = (message: string, isLasting: boolean): Row => ({
  type: "model_request_failed_error",
  message,
  isLasting,
});

/** By the SDK's word. */
const BY_WORD: Readonly<Record<string, Row>> = {
  overloaded: OVERLOADED,
  rate_limit: {
    type: "model_rate_limited_error",
    message: "The model's rate limit is reached.",
    isLasting: false,
  },
  billing_error: BILLING,
  account_on_hold: BILLING,
  authentication_failed: failed("The model API does not accept the harness's key.", true),
  model_not_found: failed("There is no such model.", true),
};
/** By the HTTP status, which says more where the word is general. */
const BY_STATUS: Readonly<Record<number, Row>> = { 402: BILLING, 529: OVERLOADED };

export interface SdkError {
  readonly word: string;
  /** HTTP status of the model API; undefined when it gave none. */
  readonly status: number | undefined;
  /** What the SDK says; it is told only where the request itself was at fault. */
  readonly detail: string;
}

export function modelFailure({ word, status, detail }: SdkError, began: boolean): LoopOutcome {
  const row = (Object.hasOwn(BY_WORD, word) ? BY_WORD[word] : undefined) ?? BY_STATUS[status ?? 0];
  const isRefused = status !== undefined && status >= 400 && status < 500 && status !== 408 && status !== 409;
  const why = detail.slice(0, MAX_DETAIL_CHARS) || word;
  const { type, message, isLasting } =
    row ??
    (isRefused
      ? failed(`The model API refused the request: ${why}`, true)
      : failed("The model API could not be asked, or failed.", false));
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

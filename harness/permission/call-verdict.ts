/** What was decided about a call before it is written to the log, and how the log says it (pure). */
import type { FailureOrigin } from "../../kit/errors.ts";
import type { CatalogueTool } from "../tool-catalogue.ts";

/** `high_risk`: judged too dangerous. `indeterminate`: nothing certain was judged. An open list to clients. */
export type ReasonCode = "high_risk" | "indeterminate";

/** Of the policy `auto`, on one call. */
export type CallVerdict =
  | { readonly type: "allow" }
  /** A client has to say yes. */
  | { readonly type: "ask"; readonly code: ReasonCode }
  | { readonly type: "deny"; readonly code: ReasonCode; readonly denial: Denial };

/** What stands in the result of a call that may not run. */
export interface Denial extends FailureOrigin {
  /** For the model. */
  readonly text: string;
}

export const ALLOWED: CallVerdict = { type: "allow" };
/** Nobody could say yes or no: a client is asked. */
export const HELD: CallVerdict = { type: "ask", code: "indeterminate" };
export const HIGH_RISK: CallVerdict = {
  type: "deny",
  code: "high_risk",
  denial: {
    part: "model",
    reason: "HIGH_RISK",
    text: "This call was judged too risky to run without anybody's consent (high_risk), so it did not run. Do not try to reach the same by another way; say what you wanted to do and why.",
  },
};
/** It could not be judged and is not held, because asking costs what there is no more. */
export const NOT_JUDGED: CallVerdict = {
  type: "deny",
  code: "indeterminate",
  denial: {
    part: "model",
    reason: "NOT_JUDGED",
    text: "Whether this call may run could not be judged (indeterminate), so it did not run.",
  },
};

/** The members of a tool use's payload that say whether it runs: of a policy, and under `auto` of what was judged. */
export function evaluationText(policy: CatalogueTool["policy"], verdict: CallVerdict = HELD): string {
  if (policy !== "auto") {
    const word = policy === "always_allow" ? "allow" : "ask";
    return `"evaluated_permission":"${word}","evaluation":{"type":"${policy}"}`;
  }
  const code = verdict.type === "allow" ? "" : `,"reason_code":"${verdict.code}"`;
  const judged = `{"type":"${verdict.type}"${code}}`;
  return `"evaluated_permission":"${verdict.type}","evaluation":{"type":"auto","evaluated_permission":${judged}}`;
}

/** Whether a client is asked, and may be given a time for it. */
export function isAsked(policy: CatalogueTool["policy"], verdict: CallVerdict = HELD): boolean {
  return policy === "always_ask" || (policy === "auto" && verdict.type === "ask");
}

/** Which tool uses of a log are for workers, and the results that end them when no worker answers (pure). */
import type { FailureOrigin } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { NewEvent } from "./events.ts";
import type { CallEnding } from "./work.ts";

/** Workers run the calls of the default slot; those that the platform runs itself, or that may not run, are nobody's. */
export function isWorkersCall(payload: string): boolean {
  const {
    hand,
    runs_in: runsIn,
    evaluated_permission: permission,
  } = JSON.parse(payload) as Record<string, unknown>;
  return (hand === undefined || hand === "") && runsIn === undefined && permission !== "deny";
}

/** It waits for a client's word before anybody runs it. */
export function asksFirst(payload: string): boolean {
  return (JSON.parse(payload) as Record<string, unknown>).evaluated_permission === "ask";
}

/** Workers take nothing else for an answer than the type that they would have given. */
export const WORKER_RESULT = "user.tool_result";

export function endedWorkerCall(call: { callId: string; threadId: string }, ending: CallEnding): NewEvent {
  const { outcome, reason, text } = ending;
  const failure: FailureOrigin = { part: "client", reason };
  const payload = JSON.stringify({
    tool_use_id: call.callId,
    content: [{ type: "text", text }],
    is_error: true,
    outcome,
    failure,
  });
  return { id: newId("event"), type: WORKER_RESULT, threadId: call.threadId, payload, internal: undefined };
}

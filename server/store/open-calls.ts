/** Tool calls that have no result yet, and the results that end them when nothing else will (pure). X3. */
import type { FailureOrigin } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { NewEvent } from "./events.ts";

export interface OpenCall {
  readonly eventId: string;
  readonly type: string;
  readonly threadId: string;
}

/** How a result names its call, by the call's type. */
const RESULTS: Readonly<Record<string, { type: string; field: string }>> = {
  "agent.tool_use": { type: "agent.tool_result", field: "tool_use_id" },
  "agent.mcp_tool_use": { type: "agent.mcp_tool_result", field: "mcp_tool_use_id" },
  "agent.custom_tool_use": { type: "user.custom_tool_result", field: "custom_tool_use_id" },
};

export const CALL_TYPES: readonly string[] = Object.keys(RESULTS);

/** An error result for an open call, which ends because somebody wanted that: `reason` is for programs, `text` for the model. */
export function endedCall(call: OpenCall, text: string, reason: string): NewEvent {
  const failure: FailureOrigin = { part: "client", reason };
  const result = RESULTS[call.type];
  if (result === undefined) throw new Error(`"${call.type}" is no tool call`);
  const payload = JSON.stringify({
    [result.field]: call.eventId,
    content: [{ type: "text", text }],
    is_error: true,
    failure,
  });
  return { id: newId("event"), type: result.type, threadId: call.threadId, payload, internal: undefined };
}

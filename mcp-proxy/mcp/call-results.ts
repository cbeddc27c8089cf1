/** Results that the proxy gives to calls itself (pure). */
import type { FailureOrigin } from "../../kit/errors.ts";
import { memberText } from "../../kit/json-slices.ts";
import type { McpErrorType, McpRefusal } from "./refusal.ts";

export interface CallResult {
  /** JSON text of an MCP result. */
  readonly text: string;
  /** Where it failed, when that was not the tool. */
  readonly failure?: FailureOrigin;
}

export const MAX_RESULT_BYTES = 2 * 1024 * 1024;

/** For the model; harnesses read `_meta`. */
export function failedResult(
  failure: FailureOrigin,
  text: string,
  more: { type?: McpErrorType; serverName?: string; missingScope?: string | undefined } = {},
): CallResult {
  const told = {
    ...failure,
    ...(more.type && { type: more.type, mcp_server_name: more.serverName }),
    ...(more.missingScope !== undefined && { missing_scope: more.missingScope }),
  };
  const value = { content: [{ type: "text", text }], isError: true, _meta: { "dev.tendon/failure": told } };
  return { text: JSON.stringify(value), failure };
}

const MAY_HAVE_RUN =
  "It may have run in part, in whole, or not at all, and it will not be run again by itself. Check what it did before you repeat it.";

export function unknownResult(serverName: string, why: string): CallResult {
  return failedResult(
    { part: "proxy", reason: "OUTCOME_UNKNOWN" },
    `It is not known what became of this call of MCP server "${serverName}": ${why}. ${MAY_HAVE_RUN}`,
  );
}

export function cancelledResult(): CallResult {
  return failedResult({ part: "client", reason: "CANCELLED" }, `The call was cancelled. ${MAY_HAVE_RUN}`);
}

const REASONS: Partial<Record<McpErrorType, string>> = {
  mcp_connection_failed_error: "MCP_CONNECTION_FAILED",
  mcp_authentication_failed_error: "MCP_AUTHENTICATION_FAILED",
};

export function refusedResult(refusal: McpRefusal, serverName: string, mayHaveRun: boolean): CallResult {
  const reason = REASONS[refusal.type];
  const failure: FailureOrigin =
    reason === undefined ? { part: "proxy", reason: "NOT_SENT" } : { part: "upstream", reason };
  const text = `${refusal.message}. ${mayHaveRun ? MAY_HAVE_RUN : "The call was not run."}`;
  const { type, missingScope } = refusal;
  return failedResult(failure, text, { type, serverName, missingScope });
}

export function tooLarge(serverName: string): CallResult {
  return failedResult(
    { part: "upstream", reason: "RESULT_TOO_LARGE" },
    `The tool of MCP server "${serverName}" ran, but its result has more than ${MAX_RESULT_BYTES} bytes and was left out.`,
  );
}

/**
 * Of a JSON-RPC message: the result as the server wrote it, or its error as a result. Undefined for what is neither, or answers
 * another request.
 */
export function resultOfMessage(text: string, idText: string): CallResult | undefined {
  const message = parse(text);
  if (message === undefined || memberText(text, "id")?.trim() !== idText) return undefined;
  const result = memberText(text, "result");
  if (result?.startsWith("{")) return { text: result };
  const { error } = message;
  if (typeof error !== "object" || error === null) return undefined;
  const { message: why, code } = error as { message?: unknown; code?: unknown };
  const told = typeof why === "string" && why !== "" ? why.slice(0, 20_000) : "without a word";
  return failedResult(
    { part: "upstream", reason: "MCP_ERROR" },
    `The MCP server refused the call: ${told}${typeof code === "number" ? ` (${code})` : ""}`,
  );
}

/** The server wants something of its client before it goes on (wire of 2026-07-28): the call has not ended. */
export function wantsInput({ text }: CallResult): boolean {
  return memberText(text, "resultType") === '"input_required"';
}

function parse(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined;
  } catch {
    return undefined;
  }
}

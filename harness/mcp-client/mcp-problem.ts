/** What went wrong on the way to an MCP server, as the proxy says it. */
import type { FailureOrigin } from "../../kit/errors.ts";

export class McpProblem extends Error {
  override readonly name = "McpProblem";
  /** The proxy's word, such as `mcp_connection_failed_error`. */
  readonly type: string;
  /** It may pass: nothing was stored, and asking again does no harm. */
  readonly mayPass: boolean;

  constructor(type: string, message: string, mayPass = false) {
    super(message);
    this.type = type;
    this.mayPass = mayPass;
  }
}

/** Begins the word for an answer that is not in the proxy's words: it passed on what it was given. */
const FOREIGN = "http_";

/** Where it failed, for the log. */
export function originOfProblem({ type }: McpProblem): FailureOrigin {
  if (type === "mcp_connection_failed_error" || type.startsWith(FOREIGN))
    return { part: "upstream", reason: "MCP_CONNECTION_FAILED" };
  if (type === "mcp_authentication_failed_error")
    return { part: "upstream", reason: "MCP_AUTHENTICATION_FAILED" };
  if (type === "proxy_unreachable") return { part: "proxy", reason: "PROXY_UNREACHABLE" };
  return { part: "proxy", reason: "NOT_SENT" };
}

const PASSING = new Set(["rate_limit_error", "overloaded_error"]);

/** Of an answer that is no 2xx. */
export function problemOf(status: number, body: string): McpProblem {
  const { type, message } = errorOf(body);
  const word = type ?? `${FOREIGN}${status}`;
  const text = message ?? `the MCP server, or something on the way to it, answered ${status}`;
  return new McpProblem(word, text, PASSING.has(word));
}

function errorOf(text: string): { type?: string; message?: string } {
  try {
    const { error } = JSON.parse(text) as { error?: { type?: unknown; message?: unknown } };
    return {
      ...(typeof error?.type === "string" && { type: error.type }),
      ...(typeof error?.message === "string" && { message: error.message.slice(0, 2_000) }),
    };
  } catch {
    return {};
  }
}

/** What the proxy answers instead of the MCP server: an HTTP status, and JSON with the words of the API's errors. */
import { isTendonError } from "../../kit/errors.ts";
import { CredentialRefusal } from "../credentials/refusal.ts";
import { OutboundRefusal } from "../outbound/refusal.ts";

export type McpErrorType =
  | "mcp_connection_failed_error"
  | "mcp_authentication_failed_error"
  | "authentication_error"
  | "permission_error"
  | "invalid_request_error"
  | "not_found_error"
  | "rate_limit_error"
  | "lease_fenced_error"
  | "overloaded_error"
  | "api_error";

export class McpRefusal extends Error {
  override readonly name = "McpRefusal";
  readonly status: number;
  readonly type: McpErrorType;
  /** What the server wants the credential to have besides; undefined: that is not what is missing. */
  readonly missingScope: string | undefined;

  constructor(status: number, type: McpErrorType, message: string, missingScope?: string) {
    super(message);
    this.status = status;
    this.type = type;
    this.missingScope = missingScope;
  }
}

/** The session's agent does not let its model call this tool; the client is told in an answer of JSON-RPC. */
export class ToolDisabled extends McpRefusal {
  constructor(toolName: string) {
    super(403, "permission_error", `the tool ${JSON.stringify(toolName)} is disabled for this agent`);
  }
}

/** The server could not be reached, or did not answer; whether it has seen what it was sent is not known unless `sent` is false. */
export class UpstreamFailure extends McpRefusal {
  readonly sent: boolean;

  constructor(serverName: string, why: string, sent: boolean) {
    super(502, "mcp_connection_failed_error", `MCP server "${serverName}" ${why}`);
    this.sent = sent;
  }
}

export function authenticationFailed(serverName: string, why: string, missingScope?: string): McpRefusal {
  const message = `MCP server "${serverName}" ${why}`;
  return new McpRefusal(502, "mcp_authentication_failed_error", message, missingScope);
}

/** What went wrong, as the caller is told; nothing of a far side's words. Undefined for a fault of the proxy's own. */
export function refusalOf(error: unknown, serverName: string): McpRefusal | undefined {
  if (error instanceof McpRefusal) return error;
  if (error instanceof CredentialRefusal) {
    const { reason } = error;
    if (reason === "AUDIT_UNAVAILABLE") return new McpRefusal(503, "overloaded_error", error.message);
    return authenticationFailed(serverName, `gets no credential: ${error.message}`);
  }
  if (error instanceof OutboundRefusal) {
    return new UpstreamFailure(
      serverName,
      `was not reached: ${error.message}`,
      error.reason === "unreachable",
    );
  }
  if (!isTendonError(error)) return undefined;
  switch (error.reason) {
    case "LEASE_FENCED":
      return new McpRefusal(409, "lease_fenced_error", error.message);
    case "SESSION_ARCHIVED":
      return new McpRefusal(409, "invalid_request_error", error.message);
    case "NOT_FOUND":
      return new McpRefusal(404, "not_found_error", error.message);
    case "INVALID_FIELD":
      return new McpRefusal(400, "invalid_request_error", error.message);
    case "UNAUTHENTICATED":
    case "KEY_EXPIRED":
      return new McpRefusal(401, "authentication_error", error.message);
    default:
      return new McpRefusal(503, "overloaded_error", "the server could not be asked; try again");
  }
}

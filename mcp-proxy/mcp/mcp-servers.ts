/** Which MCP server a session means by a name, and which of its tools its agent may use. */
import type { Client } from "../../kit/rpc/client.ts";
import type { McpToolset } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { CredentialService } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import type { SessionCaller } from "../session-token.ts";

export interface McpServerOfSession {
  readonly name: string;
  readonly url: string;
  allows(toolName: string): boolean;
}

const ASK_WITHIN_MS = 5_000;

/** Asked anew for each request: an agent that changes, and a newer brain, count from the next one on. */
export async function resolveMcpServer(
  credentials: Pick<Client<typeof CredentialService>, "resolveMcpServer">,
  { sessionId, epoch }: SessionCaller,
  serverName: string,
): Promise<McpServerOfSession> {
  const request = { sessionId, epoch, serverName };
  const { url, toolset } = await credentials.resolveMcpServer(request, { deadlineMs: ASK_WITHIN_MS });
  return { name: serverName, url, allows: (toolName) => isEnabled(toolset, toolName) };
}

function isEnabled(toolset: McpToolset | undefined, toolName: string): boolean {
  if (toolset === undefined) return false;
  const named = Object.hasOwn(toolset.tools, toolName) ? toolset.tools[toolName] : undefined;
  return !(named ?? toolset.defaultPolicy)?.disabled;
}

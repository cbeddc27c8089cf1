/** What an agent's toolset of an MCP server allows (pure): the server judges by it and so does the proxy. */
import type { McpToolset } from "../proto/gen/tendon/v1/agent_pb.js";

/** Without a toolset nothing is. */
export function isToolEnabled(toolset: McpToolset | undefined, toolName: string): boolean {
  if (toolset === undefined) return false;
  const named = Object.hasOwn(toolset.tools, toolName) ? toolset.tools[toolName] : undefined;
  return !(named ?? toolset.defaultPolicy)?.disabled;
}

/** What an agent's toolset allows of tools that the proxy sends (pure): the server judges by it and so does the proxy. */
import type { ToolPolicy } from "../proto/gen/tendon/v1/agent_pb.js";

/** Of an MCP server, or of the web. */
export interface Toolset {
  readonly tools: Readonly<Record<string, ToolPolicy>>;
  readonly defaultPolicy?: ToolPolicy | undefined;
}

/** Without a toolset nothing is. */
export function isToolEnabled(toolset: Toolset | undefined, toolName: string): boolean {
  if (toolset === undefined) return false;
  const named = Object.hasOwn(toolset.tools, toolName) ? toolset.tools[toolName] : undefined;
  return !(named ?? toolset.defaultPolicy)?.disabled;
}

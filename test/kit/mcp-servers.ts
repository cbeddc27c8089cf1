/** The reference MCP servers, as a hand agent's configuration names them. */
import { join } from "node:path";
import type { McpServerConfig } from "../../hand-agent/drivers/mcp/server-config.ts";
import { repository } from "./owner-process.ts";

const PACKAGES = join(repository, "node_modules/@modelcontextprotocol");
/** In a configuration: the hand's own directory. */
export const HAND_DIR = "$" + "{HAND_DIR}";

export function everythingServer(name: string, more: Partial<McpServerConfig> = {}): McpServerConfig {
  const args = [join(PACKAGES, "server-everything/dist/index.js"), "stdio"];
  return { name, command: process.execPath, args, env: {}, ...more };
}

export function filesystemServer(name: string, directory = HAND_DIR): McpServerConfig {
  const args = [join(PACKAGES, "server-filesystem/dist/index.js"), directory];
  return { name, command: process.execPath, args, env: {} };
}

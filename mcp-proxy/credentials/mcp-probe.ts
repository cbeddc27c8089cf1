/** A request by which an MCP server shows what it thinks of a caller, and nothing else happens. */
import { BUILD } from "../../kit/build.ts";
import type { OutboundFetch, OutboundRequest } from "../outbound/fetch.ts";

export const MCP_VERSION = "2025-11-25";

export interface Probe {
  readonly url: string;
  readonly init: OutboundRequest;
}

/** Opens an MCP session, where the server has such. */
export function mcpProbe(url: string, headers: Readonly<Record<string, string>>): Probe {
  const clientInfo = { name: "tendon", version: BUILD };
  const params = { protocolVersion: MCP_VERSION, capabilities: {}, clientInfo };
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "initialize", params });
  const mcp = { accept: "application/json, text/event-stream", "content-type": "application/json" };
  return { url, init: { method: "POST", headers: { ...mcp, ...headers }, body, redirect: "same-origin" } };
}

/** A server that has opened an MCP session for the probe is told that it is over; whether it cares does not matter. */
export async function endProbeSession(
  fetch: OutboundFetch,
  { url, init }: Probe,
  response: Response,
  signal: AbortSignal,
): Promise<void> {
  const id = response.headers.get("mcp-session-id");
  if (id === null) return;
  const headers = { ...(init.headers as Record<string, string>), "mcp-session-id": id };
  const ended = await fetch(url, { method: "DELETE", headers, signal }).catch(() => undefined);
  await ended?.body?.cancel();
}

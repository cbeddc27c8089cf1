/** The relay of one lease: started when a loop's program is first told of it, and ended with the lease. */
import type { ProxyAccess } from "../mcp-client/mcp-server-client.ts";
import { type McpRelay, startMcpRelay } from "./mcp-relay.ts";

export interface McpAddress {
  /** As the agent names the server. */
  readonly name: string;
  readonly url: string;
}

export interface SessionRelayOptions {
  readonly access: Pick<ProxyAccess, "url" | "sessionId" | "token" | "send">;
  /** The agent's MCP servers. */
  readonly names: readonly string[];
  /** Aborts when the lease ends. */
  readonly held: AbortSignal;
}

const NOT_HERE =
  "tools are called as calls of the loop, which are recorded before they run and confirmed where the agent says so; this address is for what else the server has";

export class SessionRelay {
  private readonly options: SessionRelayOptions;
  private relay: Promise<McpRelay> | undefined;

  constructor(options: SessionRelayOptions) {
    this.options = options;
  }

  /** Empty where the agent has no MCP servers, or no proxy is known. Rejects where nothing can be listened on. */
  async addresses(): Promise<readonly McpAddress[]> {
    const { access, names, held } = this.options;
    if (names.length === 0 || access.url === "" || held.aborted) return [];
    this.relay ??= this.start();
    const { urlOf } = await this.relay;
    return names.map((name) => ({ name, url: urlOf(name) }));
  }

  private async start(): Promise<McpRelay> {
    const { access, held } = this.options;
    const relay = await startMcpRelay({ access, recordedAs: () => Promise.reject(new Error(NOT_HERE)) });
    if (held.aborted) void relay.close();
    else held.addEventListener("abort", () => void relay.close(), { once: true });
    return relay;
  }
}

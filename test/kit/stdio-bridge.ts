/** An MCP server that speaks over its standard input and output, at a URL: the official SDK's transports, message for message. */
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";

export interface StdioBridge {
  readonly url: string;
  stop(): Promise<void>;
}

/** One process for each MCP session. */
export async function startStdioBridge(command: string, args: string[]): Promise<StdioBridge> {
  const sessions = new Map<string, StreamableHTTPServerTransport>();
  const open = async () => {
    const outside = new StreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      onsessioninitialized: (id) => void sessions.set(id, outside),
      onsessionclosed: (id) => void sessions.delete(id),
    });
    const inside = new StdioClientTransport({ command, args, stderr: "ignore" });
    outside.onmessage = (message) => void inside.send(message);
    outside.onclose = () => void inside.close();
    inside.onmessage = (message) => void outside.send(message);
    await inside.start();
    await outside.start();
    return outside;
  };
  const server = createServer(async (request, response) => {
    const known = sessions.get(String(request.headers["mcp-session-id"]));
    await (known ?? (await open())).handleRequest(request, response);
  });
  server.keepAliveTimeout = 0;
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`,
    async stop() {
      for (const session of [...sessions.values()]) await session.close();
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeAllConnections();
      await closed;
    },
  };
}

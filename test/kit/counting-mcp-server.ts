/** The far side of MCP's wire: a server that counts what reaches it, and misbehaves on request. */
import { randomUUID } from "node:crypto";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface CountingMcpServer {
  readonly url: string;
  /** `initialize`, `tools/call note`, `DELETE`, … in the order in which they came. */
  readonly seen: string[];
  /** Headers of the newest request. */
  headers: IncomingMessage["headers"];
  /** How often a tool has run. */
  calls(tool: string): number;
  /** Forgets all its MCP sessions. */
  forget(): void;
  readonly openSessions: ReadonlySet<string>;
  /** What is answered instead, or nothing at all; undefined: as usual. */
  answers: ((request: IncomingMessage, response: ServerResponse, body: Message) => boolean) | undefined;
  stop(): Promise<void>;
}

interface Message {
  readonly id?: unknown;
  readonly method?: string;
  readonly params?: { readonly name?: string; readonly arguments?: Record<string, unknown> };
}

const TOOLS = [
  { name: "note", inputSchema: { type: "object" } },
  { name: "look", inputSchema: { type: "object" }, annotations: { readOnlyHint: true } },
  { name: "set", inputSchema: { type: "object" }, annotations: { idempotentHint: true } },
];

export async function startCountingMcpServer(): Promise<CountingMcpServer> {
  const sessions = new Set<string>();
  const state: Omit<CountingMcpServer, "url" | "stop"> = {
    seen: [],
    headers: {},
    openSessions: sessions,
    answers: undefined,
    calls: (tool) => state.seen.filter((line) => line === `tools/call ${tool}`).length,
    forget: () => sessions.clear(),
  };
  const server = createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on("data", (part: Buffer) => parts.push(part));
    request.once("end", () => answer(request, response, Buffer.concat(parts).toString()));
  });
  const answer = (request: IncomingMessage, response: ServerResponse, text: string) => {
    const message: Message = text === "" ? {} : JSON.parse(text);
    const { method = request.method ?? "", params } = message;
    const id = String(request.headers["mcp-session-id"] ?? "");
    state.headers = request.headers;
    if (method !== "initialize" && id !== "" && !sessions.has(id)) {
      state.seen.push(`404 ${method}`);
      response.writeHead(404).end();
      return;
    }
    state.seen.push(params?.name === undefined ? method : `${method} ${params.name}`);
    if (state.answers?.(request, response, message)) return;
    if (method === "DELETE") sessions.delete(id);
    const given = method === "initialize" ? randomUUID() : "";
    if (given !== "") sessions.add(given);
    const result = resultOf(method, params?.name, params?.arguments);
    if (message.id === undefined || result === undefined) {
      response.writeHead(202).end();
      return;
    }
    response.writeHead(200, {
      "content-type": "application/json",
      ...(given !== "" && { "mcp-session-id": given }),
    });
    response.end(JSON.stringify({ jsonrpc: "2.0", id: message.id, result }));
  };
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return Object.assign(state, {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`,
    stop() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeAllConnections();
      return closed;
    },
  });
}

function resultOf(method: string, tool: string | undefined, input: Record<string, unknown> = {}): unknown {
  switch (method) {
    case "initialize":
      return {
        protocolVersion: "2025-11-25",
        capabilities: { tools: {} },
        serverInfo: { name: "counting", version: "1" },
      };
    case "tools/list":
      return { tools: TOOLS };
    case "tools/call":
      return { content: [{ type: "text", text: `${tool} ${JSON.stringify(input)}` }] };
    case "ping":
      return {};
    default:
      return undefined;
  }
}

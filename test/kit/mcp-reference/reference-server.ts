/**
 * A reference MCP server on the official SDK, with what the conformance suite asks servers to have, on both wires at one
 * address: sessions with events that can be sent again (2025-11-25), and requests that stand alone (2026-07-28).
 */
import { randomBytes, randomUUID } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import {
  localhostHostValidation,
  localhostOriginValidation,
  NodeStreamableHTTPServerTransport,
  toNodeHandler,
  toWebRequest,
} from "@modelcontextprotocol/node";
import {
  createMcpHandler,
  createRequestStateCodec,
  type EventStore,
  InMemoryServerEventBus,
  isInitializeRequest,
  isLegacyRequest,
  type JSONRPCMessage,
  McpServer,
} from "@modelcontextprotocol/server";
import { addContentTools, addPrompts, addResources } from "./reference-content.ts";
import { addAskingTools, addInputTools } from "./reference-inputs.ts";

export interface ReferenceServer {
  readonly url: string;
  /** How often each tool has run; a call that wants input runs once more for each round. */
  readonly runs: ReadonlyMap<string, number>;
  /** Headers of the newest request. */
  headers(): IncomingMessage["headers"];
  stop(): Promise<void>;
}

const PAUSE_MS = 5;
const pause = () => new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
const said = (text: string) => ({ content: [{ type: "text" as const, text }] });

/** `wires`: `newer` refuses who speaks the older one. */
export async function startReferenceServer(wires: "both" | "newer" = "both"): Promise<ReferenceServer> {
  const runs = new Map<string, number>();
  const bus = new InMemoryServerEventBus();
  const states = createRequestStateCodec({ key: randomBytes(32) });
  const build = (isModern: boolean) => {
    const server = newServer(states, isModern);
    addContentTools(server);
    addTellingTools(server);
    if (!isModern) addAskingTools(server);
    if (isModern) addInputTools(server, states);
    addResources(server);
    addPrompts(server);
    server.registerTool("test_trigger_tool_change", { description: "Says that tools have changed" }, () => {
      bus.publish({ kind: "tools_list_changed" });
      return said("told");
    });
    server.registerTool("test_trigger_prompt_change", { description: "Says that prompts changed" }, () => {
      bus.publish({ kind: "prompts_list_changed" });
      return said("told");
    });
    return server;
  };
  const modern = createMcpHandler(() => build(true), { legacy: "reject", bus });
  const answerModern = toNodeHandler(modern);
  const sessions = new Sessions(() => build(false));
  const isOwnHost = localhostHostValidation();
  const isOwnOrigin = localhostOriginValidation();
  let newest: IncomingMessage["headers"] = {};
  const http = createServer(async (request, response) => {
    newest = request.headers;
    if (!isOwnHost(request, response) || !isOwnOrigin(request, response)) return;
    const body = await bodyOf(request);
    const { method, params } = (body ?? {}) as { method?: string; params?: { name?: string } };
    if (method === "tools/call") runs.set(`${params?.name}`, (runs.get(`${params?.name}`) ?? 0) + 1);
    const isOld =
      wires === "both" && (await isLegacyRequest(await toWebRequest(request as never, body), body));
    if (isOld) await sessions.answer(request, response, body);
    else await answerModern(request as never, response as never, body);
  });
  // A connection that closes just when its client wants to use it again is a fault of nobody.
  http.keepAliveTimeout = 0;
  await new Promise<void>((resolve) => http.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(http.address() as AddressInfo).port}/mcp`,
    runs,
    headers: () => newest,
    async stop() {
      await modern.close();
      await sessions.stop();
      await ended(http);
    },
  };
}

function newServer(states: ReturnType<typeof createRequestStateCodec>, isModern: boolean): McpServer {
  const capabilities = {
    tools: { listChanged: true },
    resources: { subscribe: !isModern, listChanged: true },
    prompts: { listChanged: true },
    logging: {},
    completions: {},
  };
  const hint = { ttlMs: 1_000, cacheScope: "private" as const };
  const methods = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"] as const;
  const server = new McpServer(
    { name: "reference", version: "1.0.0" },
    {
      capabilities,
      requestState: { verify: (state, ctx) => states.verify(state, ctx) },
      cacheHints: Object.fromEntries([...methods, "resources/read"].map((method) => [method, hint])),
    },
  );
  server.server.setRequestHandler("completion/complete", () => ({
    completion: { values: [], total: 0, hasMore: false },
  }));
  if (isModern) return server;
  server.server.setRequestHandler("resources/subscribe", () => ({}));
  server.server.setRequestHandler("resources/unsubscribe", () => ({}));
  return server;
}

/** What comes before the result, and streams that end before it. */
function addTellingTools(server: McpServer): void {
  const log = (name: string) =>
    server.registerTool(name, { description: "Logs" }, async ({ mcpReq }) => {
      for (const data of ["Tool execution started", "Tool processing data", "Tool execution completed"]) {
        await mcpReq.log("info", data);
        await pause();
      }
      return said("logged");
    });
  log("test_tool_with_logging");
  log("test_logging_tool");
  server.registerTool("test_tool_with_progress", { description: "Progresses" }, async ({ mcpReq }) => {
    const progressToken = mcpReq._meta?.progressToken;
    for (const progress of [0, 50, 100]) {
      if (progressToken !== undefined) {
        const params = { progressToken, progress, total: 100 };
        await mcpReq.notify({ method: "notifications/progress", params });
      }
      await pause();
    }
    return said("done");
  });
  server.registerTool("whoami", { description: "Says what it was shown" }, ({ http }) =>
    said(http?.req?.headers.get("authorization") ?? "nobody"),
  );
  server.registerTool("test_reconnection", { description: "Ends its stream" }, async ({ http }) => {
    http?.closeSSE?.();
    await pause();
    return said("back again");
  });
}

/** MCP sessions of the older wire. */
class Sessions {
  private readonly build: () => McpServer;
  private readonly open = new Map<string, NodeStreamableHTTPServerTransport>();

  constructor(build: () => McpServer) {
    this.build = build;
  }

  async answer(request: IncomingMessage, response: ServerResponse, body: unknown): Promise<void> {
    const id = request.headers["mcp-session-id"];
    const known = this.open.get(String(id));
    if (known !== undefined) return known.handleRequest(request, response, body);
    if (id !== undefined || !isInitializeRequest(body)) {
      const error = { code: -32_000, message: "there is no such session" };
      response.writeHead(id === undefined ? 400 : 404, { "content-type": "application/json" });
      response.end(JSON.stringify({ jsonrpc: "2.0", error, id: null }));
      return;
    }
    const transport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      eventStore: new Events(),
      retryInterval: 50,
      onsessioninitialized: (given) => void this.open.set(given, transport),
      onsessionclosed: (given) => void this.open.delete(given),
    });
    await this.build().connect(transport as never);
    await transport.handleRequest(request, response, body);
  }

  async stop(): Promise<void> {
    for (const transport of this.open.values()) await transport.close();
  }
}

/** What was sent, to be sent again to whoever comes back. */
class Events implements EventStore {
  private readonly kept: { id: string; streamId: string; message: JSONRPCMessage }[] = [];

  async storeEvent(streamId: string, message: JSONRPCMessage): Promise<string> {
    const id = `${streamId}/${this.kept.length}`;
    this.kept.push({ id, streamId, message });
    return id;
  }

  async replayEventsAfter(
    lastId: string,
    { send }: { send: (id: string, message: JSONRPCMessage) => Promise<void> },
  ): Promise<string> {
    const at = this.kept.findIndex(({ id }) => id === lastId);
    const streamId = this.kept[at]?.streamId ?? "";
    for (const event of this.kept.slice(at + 1)) {
      const isEmpty = Object.keys(event.message).length === 0;
      if (event.streamId === streamId && !isEmpty) await send(event.id, event.message);
    }
    return streamId;
  }
}

async function bodyOf(request: IncomingMessage): Promise<unknown> {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  const text = Buffer.concat(parts).toString();
  try {
    return text === "" ? undefined : JSON.parse(text);
  } catch {
    return undefined;
  }
}

function ended(server: Server): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()));
  server.closeAllConnections();
  return closed;
}

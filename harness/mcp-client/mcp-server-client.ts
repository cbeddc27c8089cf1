/**
 * One MCP server of a session, through the proxy, which adds the credential and keeps the record of calls (docs/mcp.md).
 *
 * C1 A call carries the id of its `agent.mcp_tool_use`: asked again with it, the proxy answers with what it knows (X1).
 * C2 A server that has forgotten the MCP session gets another one, once for a request.
 */
import { isObject } from "../event-payload.ts";
import { readAnswer, wholeText } from "./json-rpc-answer.ts";
import { McpProblem, problemOf } from "./mcp-problem.ts";
import type { ProxyResponse, SendToProxy } from "./proxy-request.ts";

type Json = Readonly<Record<string, unknown>>;

export interface McpTool {
  readonly name: string;
  readonly description: string;
  /** JSON text of one object. */
  readonly inputSchema: string;
}

export interface ProxyAccess {
  /** Of the proxy; empty while the server knows none. */
  readonly url: string;
  readonly sessionId: string;
  /** Read anew for each request: it is renewed with the lease. */
  token(): string;
  readonly send: SendToProxy;
}

const PROTOCOL_VERSION = "2025-11-25";
const SESSION_HEADER = "mcp-session-id";
/** The proxy's word for it, and what a server says that the proxy passes on. */
const FORGOTTEN = new Set(["not_found_error", "http_404"]);
const MAX_PAGES = 50;
const MAX_TOOLS = 500;
const MAX_SCHEMA_CHARS = 64 * 1024;
const MAX_DESCRIPTION_CHARS = 4_096;

export class McpServerClient {
  readonly serverName: string;
  private readonly access: ProxyAccess;
  private mcpSessionId: string;
  private opening: Promise<void> | undefined;
  private lastId = 0;

  /** `mcpSessionId` is that of an MCP session which is open already; empty for none. */
  constructor(access: ProxyAccess, serverName: string, mcpSessionId = "") {
    this.access = access;
    this.serverName = serverName;
    this.mcpSessionId = mcpSessionId;
    if (mcpSessionId !== "") this.opening = Promise.resolve();
  }

  /** Of the MCP session that is open; empty where there is none, or the server has none. */
  get openSessionId(): string {
    return this.mcpSessionId;
  }

  /** Rejects with an McpProblem, or the signal's reason. */
  async listTools(signal: AbortSignal): Promise<McpTool[]> {
    const tools: McpTool[] = [];
    let cursor: unknown;
    for (let page = 0; page < MAX_PAGES; page += 1) {
      const params = cursor === undefined ? "{}" : JSON.stringify({ cursor });
      const result = await this.request("tools/list", params, signal);
      for (const tool of Array.isArray(result.tools) ? result.tools : []) {
        const read = toolOf(tool);
        if (read !== undefined && tools.length < MAX_TOOLS) tools.push(read);
      }
      cursor = result.nextCursor;
      if (typeof cursor !== "string" || cursor === "") break;
    }
    return tools;
  }

  /** `inputText` is JSON text of one object. Resolves once the result stands in the log. */
  async callTool(
    { toolUseId, name, inputText }: { toolUseId: string; name: string; inputText: string },
    signal: AbortSignal,
  ): Promise<void> {
    const params = `{"name":${JSON.stringify(name)},"arguments":${inputText}}`;
    await this.request("tools/call", params, signal, { "tendon-tool-use-id": toolUseId });
  }

  /** Ends a call, wherever it is; whether its result is to come by the log. Never rejects. */
  async cancel(toolUseId: string, signal: AbortSignal): Promise<boolean> {
    try {
      const headers = { ...this.headers(), "tendon-tool-use-id": toolUseId };
      const response = await this.access.send({ method: "DELETE", url: this.url, headers, signal });
      await wholeText(response);
      return response.status < 300;
    } catch {
      return false;
    }
  }

  private async request(
    method: string,
    params: string,
    signal: AbortSignal,
    headers: Readonly<Record<string, string>> = {},
  ): Promise<Json> {
    await this.open(signal);
    const sessionId = this.mcpSessionId;
    try {
      return await this.ask(method, params, signal, headers);
    } catch (error) {
      const isForgotten = error instanceof McpProblem && FORGOTTEN.has(error.type) && sessionId !== "";
      if (!isForgotten) throw error;
      if (this.mcpSessionId === sessionId) this.opening = undefined;
      await this.open(signal);
      return this.ask(method, params, signal, headers);
    }
  }

  /** C2. Whoever needs the session meanwhile waits for the same one. */
  private open(signal: AbortSignal): Promise<void> {
    this.opening ??= this.initialize(signal).catch((error) => {
      this.opening = undefined;
      throw error;
    });
    return this.opening;
  }

  private async initialize(signal: AbortSignal): Promise<void> {
    this.mcpSessionId = "";
    const client = { name: "tendon", version: "1" };
    const params = { protocolVersion: PROTOCOL_VERSION, capabilities: {}, clientInfo: client };
    await this.ask("initialize", JSON.stringify(params), signal, {});
    const body = `{"jsonrpc":"2.0","method":"notifications/initialized"}`;
    const response = await this.post(body, signal, {});
    await wholeText(response);
  }

  private async ask(
    method: string,
    params: string,
    signal: AbortSignal,
    headers: Readonly<Record<string, string>>,
  ): Promise<Json> {
    this.lastId += 1;
    const id = this.lastId;
    const body = `{"jsonrpc":"2.0","id":${id},"method":${JSON.stringify(method)},"params":${params}}`;
    const response = await this.post(body, signal, headers);
    if (response.status >= 300) throw problemOf(response.status, await wholeText(response));
    if (method === "initialize") this.mcpSessionId = String(response.headers[SESSION_HEADER] ?? "");
    const answer = await readAnswer(response, id, (request) => void this.reply(request, signal));
    if (isObject(answer.result)) return answer.result;
    const { message, data } = isObject(answer.error) ? answer.error : {};
    const type = isObject(data) && typeof data.type === "string" ? data.type : "mcp_error";
    throw new McpProblem(
      type,
      typeof message === "string" ? message.slice(0, 2_000) : "the MCP server refused",
    );
  }

  /** Nothing is offered to servers, so nothing is asked but for signs of life. */
  private async reply({ id, method }: Json, signal: AbortSignal): Promise<void> {
    const rest =
      method === "ping"
        ? `"result":{}`
        : `"error":{"code":-32601,"message":"this client does not offer that"}`;
    const body = `{"jsonrpc":"2.0","id":${JSON.stringify(id)},${rest}}`;
    await this.post(body, signal, {})
      .then(wholeText)
      .catch(() => {});
  }

  private async post(
    body: string,
    signal: AbortSignal,
    headers: Readonly<Record<string, string>>,
  ): Promise<ProxyResponse> {
    if (this.access.url === "") throw unreachable("no proxy is connected to the server");
    const request = {
      method: "POST",
      url: this.url,
      headers: { ...this.headers(), ...headers },
      body,
    } as const;
    try {
      return await this.access.send({ ...request, signal });
    } catch (error) {
      signal.throwIfAborted();
      throw unreachable(`the proxy cannot be reached (${(error as NodeJS.ErrnoException).code ?? "broken"})`);
    }
  }

  private get url(): string {
    const { url, sessionId } = this.access;
    return `${url}/mcp/${sessionId}/${encodeURIComponent(this.serverName)}`;
  }

  private headers(): Record<string, string> {
    return {
      authorization: `Bearer ${this.access.token()}`,
      "content-type": "application/json",
      accept: "application/json, text/event-stream",
      "mcp-protocol-version": PROTOCOL_VERSION,
      ...(this.mcpSessionId !== "" && { [SESSION_HEADER]: this.mcpSessionId }),
    };
  }
}

function unreachable(message: string): McpProblem {
  return new McpProblem("proxy_unreachable", message, true);
}

/** Undefined for what no model could be shown. */
function toolOf(value: unknown): McpTool | undefined {
  if (!isObject(value) || typeof value.name !== "string" || value.name === "") return undefined;
  const { name, description, inputSchema } = value;
  if (name.length > 128) return undefined;
  const schema = JSON.stringify(isObject(inputSchema) ? inputSchema : { type: "object" });
  if (schema.length > MAX_SCHEMA_CHARS) return undefined;
  const text = typeof description === "string" ? description.slice(0, MAX_DESCRIPTION_CHARS) : "";
  return { name, description: text, inputSchema: schema };
}

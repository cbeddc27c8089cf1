/**
 * One MCP server of a session, through the proxy, which adds the credential and keeps the record of calls (docs/mcp.md).
 *
 * C1 A call carries the id of its `agent.mcp_tool_use`: asked again with it, the proxy answers with what it knows (X1).
 * C2 A server that has forgotten the MCP session gets another one, once for a request.
 * C3 A server that refuses `initialize` is asked whether it speaks the wire without sessions (2026-07-28). Nearly all know the
 *    older one, so they are not asked first for what some of them could misread.
 */
import { isObject, parseObject } from "../event-payload.ts";
import { readAnswer, wholeText } from "./json-rpc-answer.ts";
import { mirroredParameters, parameterHeaders, requestHeaders } from "./mcp-headers.ts";
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
  /** Where its requests stand in a trace, unless a call says otherwise. */
  traceHeaders?(): Readonly<Record<string, string>>;
  readonly send: SendToProxy;
}

/** How a server is spoken to: with the session that it gave, which may be none, or without sessions. */
export interface McpOpening {
  readonly wire: Wire;
  readonly mcpSessionId: string;
}

export type Wire = "2025-11-25" | "2026-07-28";

export interface McpCall {
  readonly toolUseId: string;
  readonly name: string;
  /** JSON text of one object. */
  readonly inputText: string;
  /** Of the tool, as it was listed. */
  readonly inputSchema: string;
}

const WITH_SESSIONS = "2025-11-25";
export const WITHOUT_SESSIONS = "2026-07-28";
const CLIENT = { name: "tendon", version: "1" };
const SESSION_HEADER = "mcp-session-id";
/** The proxy's word for it, and what a server says that the proxy passes on. */
const FORGOTTEN = new Set(["not_found_error", "http_404"]);
/** What a server says to a method, or a wire, that it does not know. */
const REFUSED = /^(mcp_error|http_4(?!29)\d\d)$/;
const MAX_PAGES = 50;
const MAX_TOOLS = 500;
const MAX_SCHEMA_CHARS = 64 * 1024;
const MAX_DESCRIPTION_CHARS = 4_096;

export class McpServerClient {
  readonly serverName: string;
  private readonly access: ProxyAccess;
  private wire: Wire = WITH_SESSIONS;
  private mcpSessionId = "";
  private opening: Promise<void> | undefined;
  private lastId = 0;

  /** `opened`: what an earlier holder has found; undefined for nothing. */
  constructor(access: ProxyAccess, serverName: string, opened?: McpOpening) {
    this.access = access;
    this.serverName = serverName;
    if (opened === undefined) return;
    this.wire = opened.wire;
    this.mcpSessionId = opened.mcpSessionId;
    if (this.mcpSessionId !== "" || this.wire === WITHOUT_SESSIONS) this.opening = Promise.resolve();
  }

  /** How the server is spoken to by now. */
  get opened(): McpOpening {
    return { wire: this.wire, mcpSessionId: this.mcpSessionId };
  }

  /** Rejects with an McpProblem, or the signal's reason. */
  async listTools(signal: AbortSignal): Promise<McpTool[]> {
    const tools: McpTool[] = [];
    let cursor: unknown;
    for (let page = 0; page < MAX_PAGES; page += 1) {
      const params = cursor === undefined ? "" : `"cursor":${JSON.stringify(cursor)}`;
      const result = await this.request("tools/list", params, signal);
      for (const tool of Array.isArray(result.tools) ? result.tools : []) {
        const read = toolOf(tool, this.wire);
        if (read !== undefined && tools.length < MAX_TOOLS) tools.push(read);
      }
      cursor = result.nextCursor;
      if (typeof cursor !== "string" || cursor === "") break;
    }
    return tools;
  }

  /** `inputText` is JSON text of one object. Resolves once the result stands in the log. */
  async callTool(
    { toolUseId, name, inputText, inputSchema }: McpCall,
    signal: AbortSignal,
    headers: Readonly<Record<string, string>> = {},
  ): Promise<void> {
    const params = `"name":${JSON.stringify(name)},"arguments":${inputText}`;
    const result = await this.request("tools/call", params, signal, () => ({
      ...headers,
      "tendon-tool-use-id": toolUseId,
      ...(this.wire === WITHOUT_SESSIONS && {
        ...requestHeaders("tools/call", name),
        ...parameterHeaders(inputSchema, inputText),
      }),
    }));
    if (result.resultType === "input_required")
      throw new McpProblem("mcp_error", "the tool wants input of its client, which has none to give");
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
    headers: () => Readonly<Record<string, string>> = () => ({}),
  ): Promise<Json> {
    await this.open(signal);
    const sessionId = this.mcpSessionId;
    try {
      return await this.ask(method, params, signal, headers());
    } catch (error) {
      const isForgotten = error instanceof McpProblem && FORGOTTEN.has(error.type) && sessionId !== "";
      if (!isForgotten) throw error;
      if (this.mcpSessionId === sessionId) this.opening = undefined;
      await this.open(signal);
      return this.ask(method, params, signal, headers());
    }
  }

  /** C2. Whoever needs the session meanwhile waits for the same one. */
  private open(signal: AbortSignal): Promise<void> {
    this.opening ??= this.negotiate(signal).catch((error) => {
      this.opening = undefined;
      throw error;
    });
    return this.opening;
  }

  /** C3 */
  private async negotiate(signal: AbortSignal): Promise<void> {
    this.mcpSessionId = "";
    this.wire = WITH_SESSIONS;
    try {
      await this.initialize(signal);
    } catch (error) {
      if (!(error instanceof McpProblem) || !REFUSED.test(error.type)) throw error;
      this.wire = WITHOUT_SESSIONS;
      const { supportedVersions } = await this.ask("server/discover", "", signal, {}).catch(
        () => ({}) as Json,
      );
      const speaksIt = Array.isArray(supportedVersions) && supportedVersions.includes(WITHOUT_SESSIONS);
      if (speaksIt) return;
      this.wire = WITH_SESSIONS;
      throw error;
    }
  }

  private async initialize(signal: AbortSignal): Promise<void> {
    const about = `"protocolVersion":"${WITH_SESSIONS}","capabilities":{},"clientInfo":${JSON.stringify(CLIENT)}`;
    await this.ask("initialize", about, signal, {});
    const body = `{"jsonrpc":"2.0","method":"notifications/initialized"}`;
    const response = await this.post(body, signal, {});
    await wholeText(response);
  }

  /** `members` is JSON text of the parameters' members, without what each request of the wire says. */
  private async ask(
    method: string,
    members: string,
    signal: AbortSignal,
    headers: Readonly<Record<string, string>>,
  ): Promise<Json> {
    this.lastId += 1;
    const id = this.lastId;
    const isAlone = this.wire === WITHOUT_SESSIONS;
    const params = [members, ...(isAlone ? [`"_meta":${ABOUT_EACH_REQUEST}`] : [])].filter(
      (part) => part !== "",
    );
    const body = `{"jsonrpc":"2.0","id":${id},"method":${JSON.stringify(method)},"params":{${params.join(",")}}}`;
    const named = isAlone ? requestHeaders(method) : {};
    const response = await this.post(body, signal, { ...named, ...headers });
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
      ...this.access.traceHeaders?.(),
      authorization: `Bearer ${this.access.token()}`,
      "content-type": "application/json",
      accept: "application/json, text/event-stream",
      "mcp-protocol-version": this.wire,
      ...(this.mcpSessionId !== "" && { [SESSION_HEADER]: this.mcpSessionId }),
    };
  }
}

/** Members of `_meta` in every request of the wire without sessions. */
const ABOUT_EACH_REQUEST = JSON.stringify({
  "io.modelcontextprotocol/protocolVersion": WITHOUT_SESSIONS,
  "io.modelcontextprotocol/clientInfo": CLIENT,
  "io.modelcontextprotocol/clientCapabilities": {},
});

function unreachable(message: string): McpProblem {
  return new McpProblem("proxy_unreachable", message, true);
}

/** Undefined for what no model could be shown, or no call could be made of. */
function toolOf(value: unknown, wire: Wire): McpTool | undefined {
  if (!isObject(value) || typeof value.name !== "string" || value.name === "") return undefined;
  const { name, description, inputSchema } = value;
  if (name.length > 128) return undefined;
  const schema = JSON.stringify(modelSchema(isObject(inputSchema) ? inputSchema : {}));
  if (schema.length > MAX_SCHEMA_CHARS) return undefined;
  if (wire === WITHOUT_SESSIONS && mirroredParameters(parseObject(schema)) === undefined) return undefined;
  const text = typeof description === "string" ? description.slice(0, MAX_DESCRIPTION_CHARS) : "";
  return { name, description: text, inputSchema: schema };
}

/** Model APIs refuse a whole request for one tool with these at the root. The server still checks what it is sent by them. */
function modelSchema({ oneOf: _one, anyOf: _any, allOf: _all, ...schema }: Json): Json {
  return { ...schema, type: "object" };
}

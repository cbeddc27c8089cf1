/**
 * `/mcp/{session}/{server}`: MCP's Streamable HTTP for harnesses and other clients that hold a session token. POST, GET (server-sent
 * events) and DELETE go to the MCP server that the session's agent names so, with the session's credential, and come back as
 * they are, but for known secret values.
 *
 * `tendon-tool-use-id` on a `tools/call` makes it a recorded call (recorded-calls.ts): its answer is then one JSON-RPC response
 * with the result that stands in the log; on a DELETE it ends that call. HTTP errors come as
 * `{type: "error", error: {type, message, mcp_server_name}}`: no result is stored then.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { parseTraceParent, type Span, TRACE_HEADER, type Tracing } from "../../kit/trace.ts";
import type { CredentialService } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { authenticate } from "../authenticate.ts";
import type { SessionCaller, SessionTokenKeys } from "../session-token.ts";
import { step } from "../trace-steps.ts";
import { passAnswer } from "./answer-passing.ts";
import { CallReply } from "./call-reply.ts";
import { resolveMcpServer } from "./mcp-servers.ts";
import type { McpSessions } from "./mcp-sessions.ts";
import { type McpMessage, readMessage } from "./message.ts";
import { Places } from "./places.ts";
import type { RecordedCalls } from "./recorded-calls.ts";
import { McpRefusal, refusalOf, ToolDisabled } from "./refusal.ts";
import { type Exchange, passedHeaders, SESSION_HEADER, type Upstream } from "./upstream.ts";

export interface McpEndpointDeps {
  readonly credentials: Pick<Client<typeof CredentialService>, "resolveMcpServer" | "beginCall">;
  readonly keys: Pick<SessionTokenKeys, "verify">;
  readonly sessions: McpSessions;
  readonly upstream: Upstream;
  readonly calls: RecordedCalls;
  readonly clock: Clock;
  readonly log: Logger;
  readonly tracing: Tracing;
}

export const TOOL_USE_HEADER = "tendon-tool-use-id";

const MAX_BODY_BYTES = 4 * 1024 * 1024;
const BODY_WITHIN_MS = 30_000;
/** Of a request that is no tool call: these are answered at once, or not at all. */
const ANSWER_WITHIN_MS = 30_000;
/** A tool call without record; its client knows better how long it wants to wait. */
const CALL_ANSWER_WITHIN_MS = 3_600_000;

interface Asked {
  readonly caller: SessionCaller;
  readonly serverName: string;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly method: Exchange["method"];
  readonly span: Span;
}

export class McpEndpoint {
  private readonly deps: McpEndpointDeps;
  private readonly places = new Places();

  constructor(deps: McpEndpointDeps) {
    this.deps = deps;
  }

  /** Does not reject. */
  async handle(request: IncomingMessage, response: ServerResponse, path: string): Promise<void> {
    let serverName = "";
    let leave = () => {};
    try {
      const place = placeOf(path);
      serverName = place.serverName;
      const caller = await authenticate(this.deps.keys, request, place.sessionId);
      const method = methodOf(request);
      leave = this.places.take(caller.sessionId, serverName, method === "GET");
      const parent = parseTraceParent(textHeader(request, TRACE_HEADER));
      const attributes = { "http.request.method": method, "tendon.session_id": caller.sessionId };
      await step(this.deps.tracing, "mcp request", { parent, kind: "server", attributes }, (span) => {
        const asked = { caller, serverName, request, response, method, span };
        return method === "POST" ? this.post(asked) : this.serve(asked);
      });
    } catch (error) {
      this.refuse(response, serverName, error);
    } finally {
      leave();
      if (!request.readableEnded) request.resume();
    }
  }

  /** GET and DELETE. */
  private async serve(asked: Asked): Promise<void> {
    const { caller, serverName, request, response, method, span } = asked;
    const toolUseId = textHeader(request, TOOL_USE_HEADER);
    const endsCall = method === "DELETE" && toolUseId !== undefined;
    const { calls } = this.deps;
    const wanted = { serverName, withCredential: !endsCall };
    const { server, credential } = await resolveMcpServer(this.deps, caller, wanted, span.context);
    if (endsCall) {
      response.writeHead(calls.cancel(caller.sessionId, toolUseId) ? 202 : 404).end();
      return;
    }
    const headers = passedHeaders(request.headers);
    const exchange = { caller, server, credential, method, headers, trace: span.context };
    return this.pass({ ...exchange, answerWithinMs: ANSWER_WITHIN_MS }, asked, undefined);
  }

  private async post(asked: Asked): Promise<void> {
    const { caller, serverName, request, response, method, span } = asked;
    const { calls, clock } = this.deps;
    const trace = span.context;
    const headers = passedHeaders(request.headers);
    const body = await readBody(request, clock);
    const message = readMessage(body);
    const { idText, toolName } = message;
    const toolUseId = textHeader(request, TOOL_USE_HEADER);
    try {
      if (toolUseId !== undefined && toolName !== undefined && idText !== undefined) {
        const reply = new CallReply(response, clock, headers.accept ?? "", idText);
        const onEvent = (event: Buffer) => reply.event(event);
        const call = {
          toolUseId,
          caller,
          serverName,
          headers,
          body,
          trace,
          message: { ...message, idText, toolName },
        };
        return await reply.follow(calls.run({ ...call, onEvent }));
      }
      const wanted = { serverName, withCredential: true, ...(toolName !== undefined && { toolName }) };
      const { server, credential } = await resolveMcpServer(this.deps, caller, wanted, trace);
      if (toolName !== undefined && !server.allows(toolName)) throw new ToolDisabled(toolName);
      if (message.cancels !== undefined) calls.cancelled({ caller, server }, message.cancels);
      const answerWithinMs = toolName === undefined ? ANSWER_WITHIN_MS : CALL_ANSWER_WITHIN_MS;
      return await this.pass(
        { caller, server, credential, method, headers, body, trace, answerWithinMs },
        asked,
        message,
      );
    } catch (error) {
      if (error instanceof ToolDisabled && !response.headersSent) return refuseTool(response, message, error);
      throw error;
    }
  }

  /** The way of everything that is not recorded: it ends when its client goes. */
  private async pass(
    exchange: Omit<Exchange, "signal">,
    { response, caller }: Asked,
    message: McpMessage | undefined,
  ): Promise<void> {
    const { sessions, upstream } = this.deps;
    const gone = new AbortController();
    const leave = () => gone.abort(new Error("the client is gone"));
    response.once("close", leave);
    const stop = sessions.onForget(caller.sessionId, () => gone.abort(new Error("the session has ended")));
    try {
      const full = { ...exchange, signal: gone.signal };
      const answer = await upstream.exchange(full);
      const given = answer.response.headers.get(SESSION_HEADER);
      if (message?.method === "initialize" && answer.response.ok && given !== null) {
        sessions.opened(full, given, answer.grant);
      }
      if (exchange.method === "DELETE" && answer.response.ok) sessions.forget(full);
      const kept = sessions.isKnown(full) ? exchange.headers[SESSION_HEADER] : undefined;
      await passAnswer(answer, response, kept);
    } catch (error) {
      if (!response.destroyed) throw error;
    } finally {
      // An exchange that is over has nothing left to break off.
      response.off("close", leave);
      stop();
    }
  }

  private refuse(response: ServerResponse, serverName: string, error: unknown): void {
    const refusal = refusalOf(error, serverName);
    if (refusal === undefined)
      this.deps.log.error({ error: messageOf(error) }, "a request of an MCP client failed");
    if (response.headersSent || response.destroyed) {
      response.destroy();
      return;
    }
    const { status, type, message, missingScope } =
      refusal ?? new McpRefusal(500, "api_error", "the proxy failed");
    const named = {
      ...(serverName !== "" && { mcp_server_name: serverName }),
      ...(missingScope !== undefined && { missing_scope: missingScope }),
    };
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify({ type: "error", error: { type, message, ...named } }));
  }
}

function placeOf(path: string): { sessionId: string; serverName: string } {
  const [, , sessionId = "", name = "", ...more] = path.split("/");
  let serverName = "";
  try {
    serverName = decodeURIComponent(name);
  } catch {
    // Answered like a name that is not there.
  }
  if (sessionId === "" || serverName === "" || serverName.length > 255 || more.length > 0) {
    throw new McpRefusal(404, "not_found_error", "MCP servers are at /mcp/{session}/{server}");
  }
  return { sessionId, serverName };
}

function methodOf({ method }: IncomingMessage): Exchange["method"] {
  if (method === "POST" || method === "GET" || method === "DELETE") return method;
  throw new McpRefusal(405, "invalid_request_error", "MCP takes POST, GET and DELETE");
}

function textHeader(request: IncomingMessage, name: string): string | undefined {
  const value = request.headers[name];
  return typeof value === "string" && value !== "" ? value : undefined;
}

function refuseTool(response: ServerResponse, { idText }: McpMessage, { message }: ToolDisabled): void {
  const error = { code: -32602, message, data: { part: "proxy", reason: "TOOL_DISABLED" } };
  response.writeHead(200, { "content-type": "application/json" });
  response.end(`{"jsonrpc":"2.0","id":${idText ?? "null"},"error":${JSON.stringify(error)}}`);
}

async function readBody(request: IncomingMessage, clock: Clock): Promise<Buffer> {
  const stop = clock.after(BODY_WITHIN_MS, () => request.destroy());
  const parts: Buffer[] = [];
  let size = 0;
  try {
    for await (const chunk of request) {
      size += (chunk as Buffer).length;
      if (size > MAX_BODY_BYTES) {
        throw new McpRefusal(413, "invalid_request_error", `a message has at most ${MAX_BODY_BYTES} bytes`);
      }
      parts.push(chunk as Buffer);
    }
  } finally {
    stop();
  }
  return Buffer.concat(parts);
}

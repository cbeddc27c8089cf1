/**
 * MCP servers of one session on this machine's loopback, for programs whose MCP client cannot send a header of ours. A request
 * to `http://127.0.0.1:<port>/<secret>/<server>` goes on to the proxy with the session token, which is read anew each time, and
 * its answer comes back as it streams. Whoever knows the path may ask: it is not to be guessed, and lives as long as the relay.
 *
 * M1 The token stands in nothing that the program can read: not in its arguments, environment, files, or any answer.
 * M2 A `tools/call` is sent under the id of its event, or not at all (E1, X1): what nobody recorded is refused.
 */
import { randomBytes, timingSafeEqual } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { pipeline } from "node:stream/promises";
import { messageOf } from "../../kit/errors.ts";
import { isObject, stringOf } from "../event-payload.ts";
import type { ProxyAccess } from "../mcp-client/mcp-server-client.ts";

type Json = Readonly<Record<string, unknown>>;

export interface RelayedCall {
  readonly serverName: string;
  readonly toolName: string;
  /** `_meta` of its parameters: clients name calls there. */
  readonly meta: Json;
}

export interface McpRelayOptions {
  readonly access: Pick<ProxyAccess, "url" | "sessionId" | "token" | "send">;
  /** Id of the event that records a call; rejects where none does, with words for the program. Left out: calls are not recorded. */
  readonly recordedAs?: (call: RelayedCall) => Promise<string>;
}

export interface McpRelay {
  urlOf(serverName: string): string;
  /** Ends what is under way; nobody is answered any more. */
  close(): Promise<void>;
}

/** As the proxy bounds a message. */
const MAX_BODY_BYTES = 4 * 1024 * 1024;
const MAX_CONNECTIONS = 128;
const HEADERS_WITHIN_MS = 10_000;
const BODY_WITHIN_MS = 30_000;
/** Longer than programs keep a connection for their next request: one that closes just then would fail it. */
const KEPT_OPEN_MS = 600_000;
const LOOPBACK = /^(127\.0\.0\.1|localhost|\[::1\])(:\d+)?$/i;
const FORWARDED = new Set(["accept", "content-type", "last-event-id", "user-agent"]);
const RETURNED = new Set(["content-type", "cache-control", "retry-after", "allow", "x-accel-buffering"]);

class Refusal extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

export async function startMcpRelay(options: McpRelayOptions): Promise<McpRelay> {
  const secret = randomBytes(32).toString("base64url");
  const ended = new AbortController();
  const server = createServer(
    {
      headersTimeout: HEADERS_WITHIN_MS,
      requestTimeout: BODY_WITHIN_MS,
      keepAliveTimeout: KEPT_OPEN_MS,
      noDelay: true,
    },
    (request, response) => void handle(options, secret, ended.signal, request, response),
  );
  server.maxConnections = MAX_CONNECTIONS;
  await listening(server);
  const { port } = server.address() as AddressInfo;
  return {
    urlOf: (serverName) => `http://127.0.0.1:${port}/${secret}/${encodeURIComponent(serverName)}`,
    close() {
      ended.abort(new Error("the relay has ended"));
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeAllConnections();
      return closed;
    },
  };
}

/** Does not reject. */
async function handle(
  options: McpRelayOptions,
  secret: string,
  ended: AbortSignal,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const gone = new AbortController();
  response.once("close", () => gone.abort(new Error("the program is gone")));
  try {
    const serverName = serverOf(request, secret);
    await relay(options, serverName, request, response, AbortSignal.any([gone.signal, ended]));
  } catch (error) {
    if (response.headersSent || response.destroyed) {
      response.destroy();
      return;
    }
    const refusal = error instanceof Refusal ? error : new Refusal(502, "the proxy cannot be reached");
    const body = { type: "error", error: { type: typeOf(refusal.status), message: refusal.message } };
    response.writeHead(refusal.status, { "content-type": "application/json" }).end(JSON.stringify(body));
  } finally {
    if (!request.readableEnded) request.resume();
  }
}

async function relay(
  { access, recordedAs }: McpRelayOptions,
  serverName: string,
  request: IncomingMessage,
  response: ServerResponse,
  signal: AbortSignal,
): Promise<void> {
  const { method } = request;
  if (method !== "POST" && method !== "GET" && method !== "DELETE")
    throw new Refusal(405, "MCP takes POST, GET and DELETE");
  const headers: Record<string, string> = { authorization: `Bearer ${access.token()}` };
  for (const [name, value] of Object.entries(request.headers)) {
    const goes = name.startsWith("mcp-") || FORWARDED.has(name);
    if (goes && typeof value === "string") headers[name] = value;
  }
  const body = method === "POST" ? await bodyOf(request) : undefined;
  const message = body === undefined ? undefined : parsed(body);
  if (message?.method === "tools/call" && recordedAs !== undefined) {
    try {
      headers["tendon-tool-use-id"] = await recordedAs(callOf(serverName, message));
    } catch (error) {
      refuseCall(response, message.id, messageOf(error));
      return;
    }
  }
  const url = `${access.url}/mcp/${access.sessionId}/${encodeURIComponent(serverName)}`;
  const answer = await access.send({ method, url, headers, signal, ...(body !== undefined && { body }) });
  const returned: Record<string, string> = {};
  for (const [name, value] of Object.entries(answer.headers)) {
    const comes = name.startsWith("mcp-") || RETURNED.has(name);
    if (comes && typeof value === "string") returned[name] = value;
  }
  response.writeHead(answer.status, returned);
  response.flushHeaders();
  await pipeline(answer.bytes, response);
}

/** Throws for whoever does not know the path, and for pages of a browser that were sent here. */
function serverOf({ url = "", headers }: IncomingMessage, secret: string): string {
  const origin = headers.origin === undefined ? undefined : hostOf(headers.origin);
  if (!LOOPBACK.test(headers.host ?? "") || (origin !== undefined && !LOOPBACK.test(origin)))
    throw new Refusal(403, "this address is for programs of this machine");
  const [, given = "", name = "", ...more] = (url.split("?", 1)[0] ?? "").split("/");
  const [a, b] = [Buffer.from(given), Buffer.from(secret)];
  let serverName = "";
  try {
    serverName = decodeURIComponent(name);
  } catch {
    // Answered like a name that is not there.
  }
  const isKnown = a.length === b.length && timingSafeEqual(a, b);
  if (!isKnown || serverName === "" || more.length > 0) throw new Refusal(404, "there is nothing here");
  return serverName;
}

function hostOf(origin: string): string {
  try {
    return new URL(origin).host;
  } catch {
    return "";
  }
}

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  let size = 0;
  for await (const part of request) {
    size += (part as Buffer).length;
    if (size > MAX_BODY_BYTES) throw new Refusal(413, `a message has at most ${MAX_BODY_BYTES} bytes`);
    parts.push(part as Buffer);
  }
  return Buffer.concat(parts);
}

/** Undefined for what is no message; what that is worth the proxy says. */
function parsed(body: Buffer): Json | undefined {
  try {
    const value: unknown = JSON.parse(body.toString("utf8"));
    return isObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

function callOf(serverName: string, { params }: Json): RelayedCall {
  const { name, _meta } = isObject(params) ? params : {};
  return { serverName, toolName: stringOf(name), meta: isObject(_meta) ? _meta : {} };
}

function refuseCall(response: ServerResponse, id: unknown, message: string): void {
  const error = { code: -32_600, message };
  response.writeHead(200, { "content-type": "application/json" });
  response.end(JSON.stringify({ jsonrpc: "2.0", id: id ?? null, error }));
}

function typeOf(status: number): string {
  if (status === 404) return "not_found_error";
  if (status === 403) return "permission_error";
  return status === 502 ? "proxy_unreachable" : "invalid_request_error";
}

function listening(server: Server): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(0, "127.0.0.1", resolve);
  });
}

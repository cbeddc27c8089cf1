/** The proxy's own HTTP listener: what harnesses and git reach. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { StartupError } from "../kit/program.ts";

/** Where MCP servers of sessions are, and calls of web tools. */
const PREFIXES = ["/mcp/", "/web/"];

/** Answers by itself, by the path's prefix; undefined while nothing is there to answer. */
export type SessionHandler = (
  request: IncomingMessage,
  response: ServerResponse,
  path: string,
) => Promise<void> | undefined;

const HEADERS_TIMEOUT_MS = 10_000;
/** Longer than clients keep connections: one that ends just as a request comes loses it. */
const KEPT_OPEN_MS = 75_000;
const MAX_CONNECTIONS = 10_000;

export interface Inbound {
  readonly port: number;
  close(): Promise<void>;
}

export async function listenInbound(
  host: string,
  port: number,
  isConnected: () => boolean,
  ofSessions: SessionHandler = () => undefined,
): Promise<Inbound> {
  // Calls may take long, and streams stay open: whoever reads a body bounds it by itself.
  const options = {
    headersTimeout: HEADERS_TIMEOUT_MS,
    keepAliveTimeout: KEPT_OPEN_MS,
    requestTimeout: 0,
    noDelay: true,
  };
  const server = createServer(options, (request, response) => {
    const path = (request.url ?? "/").split("?", 1)[0] ?? "/";
    const isServed = isOfSession(path) && ofSessions(request, response, path) !== undefined;
    if (!isServed) answer(request, response, path, isConnected());
  });
  server.maxConnections = MAX_CONNECTIONS;
  await listening(server, host, port);
  return {
    port: (server.address() as AddressInfo).port,
    close() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeAllConnections();
      return closed;
    },
  };
}

function isOfSession(path: string): boolean {
  return PREFIXES.some((prefix) => path.startsWith(prefix));
}

function listening(server: Server, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", (error: NodeJS.ErrnoException) => {
      const why = error.code === "EADDRINUSE" ? "it is in use by another program" : error.message;
      reject(new StartupError(`cannot listen on ${host}:${port}: ${why}`));
    });
    server.listen(port, host, resolve);
  });
}

function answer(request: IncomingMessage, response: ServerResponse, path: string, connected: boolean): void {
  // Nothing here reads bodies; a sender of a large one is not kept waiting.
  request.resume();
  const { status, body } = route(path, connected);
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify(body));
}

function route(path: string, connected: boolean): { status: number; body: unknown } {
  if (path === "/healthz") {
    if (connected) return { status: 200, body: { status: "ok" } };
    return { status: 503, body: { status: "unavailable", missing: ["connection to the server"] } };
  }
  if (isOfSession(path)) {
    return { status: 503, body: errorBody("overloaded_error", "the proxy is not ready") };
  }
  return { status: 404, body: errorBody("not_found_error", "the proxy has no such route") };
}

function errorBody(type: string, message: string) {
  return { type: "error", error: { type, message } };
}

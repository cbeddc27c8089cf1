/**
 * Connections of sandboxes to hosts of variables. TLS ends here, with a certificate of the workspace's own authority, and
 * begins anew towards the host, whose certificate is verified. In between placeholders become values, and values in answers
 * become a mark: no value is ever in the sandbox. The relay, the hand agent and the server on the way see TLS alone.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { TLSSocket } from "node:tls";
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type { Credentials } from "../credentials/credentials.ts";
import type { ConnectionHandler, SandboxConnection } from "../tunnels/sandbox-connection.ts";
import { EgressExchange, type ExchangeScope } from "./exchange.ts";
import type { LeafCertificates } from "./leaf-certificates.ts";
import { LingeringStream } from "./lingering-stream.ts";
import { EgressRefusal } from "./refusal.ts";
import { BodyBudget } from "./request-body.ts";
import { ConnectionVariables } from "./variables.ts";
import { agentFor, type WayOutDeps } from "./way-out.ts";

export interface EgressDeps extends WayOutDeps {
  readonly credentials: Pick<Credentials, "variable">;
  readonly certificates: Pick<LeafCertificates, "contextFor">;
  readonly clock: Clock;
  readonly log: Logger;
}

const MAX_HEADER_BYTES = 64 * 1024;
const MAX_HELD_BODIES = 64 * 1024 * 1024;
const MAX_HELD_BODIES_OF_SESSION = 16 * 1024 * 1024;
/** Requests that were sent before the ones before them were answered. */
const MAX_WAITING = 16;
/** To begin TLS, to send a request's head, and between two requests. */
const REQUEST_WITHIN_MS = 60_000;
/** First byte of a TLS handshake. */
const HANDSHAKE = 0x16;
const NOT_TLS = "connections to hosts of variables carry HTTP by TLS (https://) and nothing else";

/** What the server knows of a connection. */
interface Served extends ExchangeScope {
  waiting: number;
  /** The exchange before, however it ended. */
  last: Promise<void>;
  /** Nothing is asked now: the connection ends after a while. */
  stopIdling: () => void;
}

export function createEgress(deps: EgressDeps): ConnectionHandler {
  const { log } = deps;
  const budget = new BodyBudget(MAX_HELD_BODIES, MAX_HELD_BODIES_OF_SESSION);
  const served = new WeakMap<Duplex, Served>();
  const server = httpServer(deps, served);
  return (connection) => {
    accept(deps, connection)
      .then((socket) => {
        if (socket === undefined) return;
        const agent = agentFor(deps, connection);
        const variables = new ConnectionVariables(deps.credentials, connection);
        const scope: Served = {
          ...{ connection, variables, agent, budget, log },
          ...{ waiting: 0, last: Promise.resolve(), stopIdling: () => {} },
        };
        served.set(socket, scope);
        idle(deps, scope, socket);
        socket.once("close", () => {
          scope.stopIdling();
          agent.destroy();
        });
        server.emit("connection", socket);
      })
      .catch((error: unknown) => {
        log.warn(
          { sessionId: connection.sessionId, error: messageOf(error) },
          "a sandbox's connection failed",
        );
        connection.stream.destroy();
      });
  };
}

/** TLS towards the sandbox; undefined when the connection has ended, or was refused. */
async function accept(deps: EgressDeps, connection: SandboxConnection): Promise<TLSSocket | undefined> {
  const { stream, host, workspaceId, sessionId } = connection;
  const first = await firstByte(stream, deps.clock);
  if (first === undefined) {
    stream.destroy();
    return undefined;
  }
  if (first !== HANDSHAKE) {
    deps.log.info({ sessionId, host, reason: "not_supported" }, "a sandbox's connection was refused");
    stream.end(answerTo(new EgressRefusal("not_supported", NOT_TLS)));
    stream.resume();
    return undefined;
  }
  const name = host.replace(/^\[|\]$/g, "");
  const secureContext = await deps.certificates.contextFor(workspaceId, name);
  const socket = new TLSSocket(new LingeringStream(stream, deps.clock), {
    isServer: true,
    secureContext,
    ALPNProtocols: ["http/1.1"],
    // Another name than that of the connection would be another host's: the handshake fails.
    SNICallback: (asked, answer) => {
      if (asked.toLowerCase().replace(/\.$/, "") === name) answer(null, secureContext);
      else answer(new Error("TLS is for another host than the connection"));
    },
  });
  socket.on("error", (error) => {
    deps.log.debug({ sessionId, host, error: messageOf(error) }, "a sandbox's connection broke");
    socket.destroy();
  });
  stream.once("close", () => socket.destroy());
  return socket;
}

/** Left in the stream. Undefined when none comes in time. */
function firstByte(stream: Duplex, clock: Clock): Promise<number | undefined> {
  return new Promise((resolve) => {
    const settle = (value: number | undefined) => {
      stop();
      stream.off("readable", look).off("close", gone).off("end", gone);
      resolve(value);
    };
    const look = () => {
      const chunk = stream.read() as Buffer | null;
      if (chunk === null || chunk.length === 0) return;
      stream.unshift(chunk);
      settle(chunk[0]);
    };
    const gone = () => settle(undefined);
    const stop = clock.after(REQUEST_WITHIN_MS, gone);
    stream.on("readable", look).once("close", gone).once("end", gone);
  });
}

function httpServer({ clock, log }: EgressDeps, served: WeakMap<Duplex, Served>): Server {
  const options = {
    maxHeaderSize: MAX_HEADER_BYTES,
    // Judged with the rest of the head, where the answer says why.
    requireHostHeader: false,
    // What stands still is ended by `idle`, and by the relay.
    ...{ requestTimeout: 0, headersTimeout: 0, keepAliveTimeout: 0 },
    insecureHTTPParser: false,
  };
  const answered = new WeakSet<Duplex>();
  const server = createServer(options, (request: IncomingMessage, response: ServerResponse) => {
    const scope = served.get(request.socket);
    if (scope === undefined || scope.waiting >= MAX_WAITING) return void request.socket.destroy();
    scope.waiting += 1;
    scope.stopIdling();
    scope.last = scope.last
      .then(() => new EgressExchange(scope, request, response).run())
      .catch((error: unknown) => {
        log.warn(
          { sessionId: scope.connection.sessionId, error: messageOf(error) },
          "a sandbox's request failed",
        );
        response.destroy();
      })
      .then(() => {
        scope.waiting -= 1;
        if (scope.waiting === 0 && !request.socket.destroyed) idle({ clock }, scope, request.socket);
      });
  });
  // Both come with a socket that nobody reads any more.
  server.on("clientError", (error: NodeJS.ErrnoException, socket) => {
    // More of what could not be read; or an answer is under way, behind which nothing can be said.
    if (answered.has(socket)) return;
    if (socket.destroyed || !socket.writable) return void socket.destroy();
    answered.add(socket);
    const isLarge = error.code === "HPE_HEADER_OVERFLOW";
    const why = isLarge
      ? "the request's head is too large"
      : "this is no HTTP/1.1 request, or one with two readings";
    socket.end(answerTo(new EgressRefusal(isLarge ? "too_large" : "bad_request", why)));
  });
  server.on("connect", (_request, socket) => {
    socket.end(answerTo(new EgressRefusal("not_supported", "there is no tunnel within this connection")));
  });
  return server;
}

function idle({ clock }: Pick<EgressDeps, "clock">, scope: Served, socket: Duplex): void {
  scope.stopIdling();
  scope.stopIdling = clock.after(REQUEST_WITHIN_MS, () => socket.destroy());
}

/** For where there is no response to write it to. */
function answerTo(refusal: EgressRefusal): string {
  const text = `Tendon: ${refusal.message}\n`;
  return [
    `HTTP/1.1 ${refusal.status} Refused`,
    "content-type: text/plain; charset=utf-8",
    `content-length: ${Buffer.byteLength(text)}`,
    `tendon-egress-error: ${refusal.reason}`,
    "connection: close",
    "",
    text,
  ].join("\r\n");
}

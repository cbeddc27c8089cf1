/**
 * Where a browser is sent back to after an authorization (RFC 8252, 7.3): a port of this machine's loopback, for as long as one
 * command runs. It takes one answer, the one with the `state` that was asked with; whatever else comes is refused and changes
 * nothing.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { StartupError } from "../../kit/program.ts";
import { EXIT_USAGE } from "../command.ts";
import { type RedirectAnswer, redirectAnswerOf } from "./redirect-answer.ts";

export interface RedirectListener {
  /** "http://127.0.0.1:port/callback" */
  readonly redirectUri: string;
  /** Resolves with the answer that has this `state`. Once. */
  answerWith(state: string): Promise<RedirectAnswer>;
  /** Takes nothing any more. Resolves once the port is free. */
  close(): Promise<void>;
}

const HOST = "127.0.0.1";
const PATH = "/callback";
/** A browser needs one. */
const MAX_CONNECTIONS = 16;
const REQUEST_WITHIN_MS = 10_000;

/** `port` 0 takes a free one. Throws a StartupError when the port is taken. */
export async function listenForRedirect(port: number): Promise<RedirectListener> {
  let wanted: { state: string; resolve: (answer: RedirectAnswer) => void } | undefined;
  const server = createServer((request, response) => {
    const answer = answerIn(request, ownHost(server));
    if (answer === undefined || wanted === undefined || answer.state !== wanted.state) {
      say(response, 400, "This is not the answer that is waited for here.");
      return;
    }
    say(
      response,
      200,
      "The answer has arrived. How it ended stands in your terminal; this window can be closed.",
    );
    const { resolve } = wanted;
    wanted = undefined;
    // Whoever has the answer closes, and the browser should have its page by then.
    response.once("close", () => resolve(answer));
  });
  server.maxConnections = MAX_CONNECTIONS;
  server.requestTimeout = REQUEST_WITHIN_MS;
  server.headersTimeout = REQUEST_WITHIN_MS;
  await listening(server, port);
  return {
    redirectUri: `http://${ownHost(server)}${PATH}`,
    answerWith: (state) =>
      new Promise((resolve) => {
        wanted = { state, resolve };
      }),
    close() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      // Browsers open connections ahead that they never use; nobody should wait for these.
      server.closeAllConnections();
      return closed;
    },
  };
}

function listening(server: Server, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", (error) =>
      reject(new StartupError(`cannot listen on ${HOST}:${port}: ${error.message}`, EXIT_USAGE)),
    );
    server.listen(port, HOST, resolve);
  });
}

function ownHost(server: Server): string {
  return `${HOST}:${(server.address() as AddressInfo).port}`;
}

/** A name of somebody else's that leads to this machine is none of ours. */
function answerIn(request: IncomingMessage, host: string): RedirectAnswer | undefined {
  if (request.method !== "GET" || request.headers.host !== host) return undefined;
  return redirectAnswerOf(`http://${host}${request.url ?? ""}`, `http://${host}${PATH}`);
}

function say(response: ServerResponse, status: number, text: string): void {
  response.writeHead(status, {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'",
    "referrer-policy": "no-referrer",
    connection: "close",
  });
  response.end(`<!doctype html><title>Tendon</title><p>${text}</p>\n`);
}

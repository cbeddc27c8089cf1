/** One plain HTTP request, carried on to the server that it names over a connection that is there already. */
import http from "node:http";
import type { Socket } from "node:net";
import { pipeline } from "node:stream/promises";
import { answerTo } from "../../kit/network/answer.ts";
import { RelayRefusal } from "./refusal.ts";

export const MAX_HEADER_BYTES = 64 * 1024;

/** They are between two neighbours and end here (RFC 9110, 7.6.1). */
const HOP_BY_HOP = new Set([
  "connection",
  "expect",
  "host",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);

/**
 * Resolves when the answer is through, both ends reading at their own pace. Rejects with RelayRefusal when no answer
 * came; one that is cut half-way destroys the response.
 */
export async function forwardRequest(options: {
  request: http.IncomingMessage;
  response: http.ServerResponse;
  upstream: Socket;
  /** As the URL names it: what the client says in `Host` does not count. */
  host: string;
  path: string;
}): Promise<void> {
  const { request, response, upstream, host, path } = options;
  const forwarded = http.request({
    createConnection: () => upstream,
    method: request.method ?? "GET",
    path,
    headers: headersFor(request, host) as unknown as http.OutgoingHttpHeaders,
    setHost: false,
    maxHeaderSize: MAX_HEADER_BYTES,
  });
  // It may come paused; nothing is read before the request's own listeners are on it.
  forwarded.once("socket", () => upstream.resume());
  response.once("close", () => forwarded.destroy());
  const answered = answerTo(forwarded);
  // A server may answer before it has read all, and close; then the answer is what counts.
  pipeline(request, forwarded).catch(() => {});
  let answer: http.IncomingMessage;
  try {
    answer = await answered;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new RelayRefusal("unreachable", `${host} did not answer: ${code ?? "no HTTP"}`);
  }
  try {
    response.writeHead(answer.statusCode ?? 502, answer.statusMessage, endToEnd(answer));
  } catch {
    throw new RelayRefusal("unreachable", `${host} answered with what is no HTTP`);
  }
  await pipeline(answer, response).catch(() => response.destroy());
}

function headersFor(request: http.IncomingMessage, host: string): string[] {
  // A body of unknown length is framed anew, with whatever method it comes.
  const framing = request.headers["transfer-encoding"] === undefined ? [] : ["Transfer-Encoding", "chunked"];
  return [...endToEnd(request), "Host", host, "Connection", "close", ...framing];
}

/** Name, value, name, value, as they came, without what is for the relay alone. */
function endToEnd({ rawHeaders, headers }: http.IncomingMessage): string[] {
  const named = new Set((headers.connection ?? "").split(",").map((name) => name.trim().toLowerCase()));
  const kept: string[] = [];
  for (let i = 0; i + 1 < rawHeaders.length; i += 2) {
    const name = rawHeaders[i]!.toLowerCase();
    if (!HOP_BY_HOP.has(name) && !named.has(name)) kept.push(rawHeaders[i]!, rawHeaders[i + 1]!);
  }
  return kept;
}

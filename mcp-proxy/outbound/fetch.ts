/**
 * `fetch` by the rules: every request, also one that follows a redirect, goes over a connection that was checked. Only what
 * the proxy needs of it: text or bytes as body, redirects followed on the same origin alone.
 */
import { request as httpRequest, type IncomingMessage, type RequestOptions } from "node:http";
import { request as httpsRequest } from "node:https";
import { Readable } from "node:stream";
import { answerTo } from "../../kit/network/answer.ts";
import type { Outbound } from "./outbound.ts";
import { OutboundRefusal } from "./refusal.ts";

export interface OutboundRequest {
  readonly method?: string;
  readonly headers?: Readonly<Record<string, string>> | Headers;
  readonly body?: string | Uint8Array | null | undefined;
  readonly signal?: AbortSignal | null | undefined;
  /**
   * `error`: a redirect fails. `same-origin`: 307 and 308 are followed to the same origin, others fail. `manual`: it is the
   * answer. Default `error`.
   */
  readonly redirect?: "error" | "same-origin" | "manual";
  /** For whom: needed where a hand agent of the session's workspace is on the way (`hand-agent://…`, or a pool). */
  readonly sessionId?: string;
  /** Pool of hand agents that reaches an `https://` URL, where it is not reached from here. */
  readonly pool?: string | undefined;
}

export type OutboundFetch = (url: string | URL, request?: OutboundRequest) => Promise<Response>;

/** Where connections come from. */
type Ways = Pick<Outbound, "http" | "https">;

const MAX_REDIRECTS = 5;
const REDIRECTS = new Set([301, 302, 303, 307, 308]);
/** The last that a `Response` can have. */
const LAST_STATUS = 599;
const WITHOUT_BODY = new Set([204, 205, 304]);

/** Rejects with an OutboundRefusal, or the signal's reason. A refused redirect names the host that it led to, nothing more. */
export function createFetch(outbound: Ways): OutboundFetch {
  return async (target, request = {}) => {
    let url = parseUrl(target);
    for (let hop = 0; hop <= MAX_REDIRECTS; hop++) {
      const answer = await send(outbound, url, request);
      if (request.redirect === "manual" || !REDIRECTS.has(answer.statusCode ?? 0))
        return toResponse(answer, url);
      answer.destroy();
      url = followed(url, answer, request);
    }
    throw new OutboundRefusal("redirect_refused", `${url.host} redirects again and again`);
  };
}

/** What can be told of a URL without asking for names, and without a connection. */
export function createCheck(outbound: Pick<Outbound, "check">): (target: string) => void {
  return (target) => {
    const { protocol, hostname, port } = parseUrl(target);
    const isSecure = protocol === "https:";
    const host = hostname.replace(/^\[|\]$/g, "");
    outbound.check({ host, port: Number(port) || (isSecure ? 443 : 80), isSecure });
  };
}

function parseUrl(target: string | URL): URL {
  if (!URL.canParse(String(target))) throw new OutboundRefusal("bad_url", "this is no URL");
  const url = new URL(target);
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    throw new OutboundRefusal("bad_url", `${url.protocol}// is not what the proxy speaks`);
  }
  if (url.username !== "" || url.password !== "") {
    throw new OutboundRefusal("bad_url", "a URL must hold no user and no password");
  }
  return url;
}

async function send(outbound: Ways, url: URL, request: OutboundRequest): Promise<IncomingMessage> {
  const isSecure = url.protocol === "https:";
  const options: RequestOptions = {
    agent: isSecure ? outbound.https : outbound.http,
    method: request.method ?? "GET",
    headers: headersOf(request),
    ...(request.signal && { signal: request.signal }),
  };
  const outgoing = isSecure ? httpsRequest(url, options) : httpRequest(url, options);
  const answer = answerTo(outgoing);
  outgoing.end(request.body ?? undefined);
  try {
    return await answer;
  } catch (error) {
    if (request.signal?.aborted) throw request.signal.reason;
    throw asRefusal(error as Error, url);
  }
}

function headersOf({ headers = {}, body }: OutboundRequest): Record<string, string | number> {
  const entries = headers instanceof Headers ? [...headers.entries()] : Object.entries(headers);
  const length = body === undefined || body === null ? {} : { "content-length": Buffer.byteLength(body) };
  return { ...Object.fromEntries(entries), ...length };
}

/** Where a redirect leads, when it may be followed: what was meant for one origin is never shown to another. */
function followed(
  from: URL,
  { statusCode = 0, headers }: IncomingMessage,
  { redirect = "error" }: OutboundRequest,
): URL {
  const location = headers.location ?? "";
  const to = URL.canParse(location, from.href) ? new URL(location, from.href) : undefined;
  const isKept = statusCode === 307 || statusCode === 308;
  if (redirect === "same-origin" && isKept && to?.origin === from.origin) return to;
  throw new OutboundRefusal(
    "redirect_refused",
    `${from.host} redirects (${statusCode}) to ${to?.host ?? "what is no URL"}, which is not followed`,
  );
}

function toResponse(answer: IncomingMessage, url: URL): Response {
  const status = answer.statusCode ?? 0;
  if (status > LAST_STATUS) {
    // Its connection would stay taken until the far side ends it.
    answer.destroy();
    throw new OutboundRefusal("unreachable", `${url.host} answered with what is no HTTP status`);
  }
  const headers = new Headers();
  for (let index = 0; index + 1 < answer.rawHeaders.length; index += 2) {
    headers.append(answer.rawHeaders[index]!, answer.rawHeaders[index + 1]!);
  }
  if (WITHOUT_BODY.has(status)) answer.resume();
  const body = WITHOUT_BODY.has(status) ? null : (Readable.toWeb(answer) as ReadableStream<Uint8Array>);
  return new Response(body, { status, headers });
}

function asRefusal(error: Error, url: URL): OutboundRefusal {
  if (error instanceof OutboundRefusal) return error;
  const { code } = error as NodeJS.ErrnoException;
  return new OutboundRefusal("unreachable", `${url.host} broke the connection (${code ?? "no code"})`);
}

/** A request's head: whether it is one for the host of its connection, and what of it goes on. Pure. */
import type { IncomingMessage } from "node:http";
import { hostText, parseTarget } from "../../kit/network/host-name.ts";
import { EgressRefusal } from "./refusal.ts";

const HTTPS_PORT = 443;

/** Names of headers are in lower case; all values of one name, in their order. */
export type Headers = Map<string, string[]>;

/** For one connection only (RFC 9110, 7.6.1), or made anew here: length, host, and encodings that could not be looked into. */
const NOT_PASSED_ON = new Set([
  "connection",
  "keep-alive",
  "proxy-connection",
  "proxy-authorization",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
  "expect",
  "host",
  "content-length",
  "accept-encoding",
]);
const NOT_PASSED_BACK = new Set([
  "connection",
  "keep-alive",
  "proxy-connection",
  "proxy-authenticate",
  "trailer",
  "transfer-encoding",
  "upgrade",
  // Other ways to the host, which a sandbox does not have.
  "alt-svc",
]);

type Head = Pick<IncomingMessage, "url" | "rawHeaders" | "httpVersion">;

/** What the sandbox asked to be connected to. */
export interface Authority {
  readonly host: string;
  readonly port: number;
}

/**
 * Throws an EgressRefusal. The host of the connection is the one whose certificate was shown and whose values are put in, so
 * a request that names another one in any place is refused: it would make the far side take it for another's (domain fronting).
 */
export function checkHead({ url = "", rawHeaders, httpVersion }: Head, authority: Authority): void {
  if (!url.startsWith("/") && url !== "*") {
    throw new EgressRefusal("bad_request", "the request line must hold a path, not a URL");
  }
  if (httpVersion !== "1.1" && httpVersion !== "1.0") {
    throw new EgressRefusal("not_supported", "this is HTTP/1.1 alone");
  }
  const headers = headersOf(rawHeaders);
  const hosts = headers.get("host") ?? [];
  if (hosts.length !== 1) throw new EgressRefusal("bad_request", "the request must have one Host header");
  const named = parseTarget(hosts[0] ?? "", HTTPS_PORT);
  if (named === undefined || hostText(named.host) !== authority.host || named.port !== authority.port) {
    throw new EgressRefusal(
      "host_differs",
      `the Host header names another host than the connection, which is for ${authority.host}:${authority.port}`,
    );
  }
  const coding = headers.get("transfer-encoding")?.join(",").trim().toLowerCase();
  if (coding !== undefined && coding !== "chunked") {
    throw new EgressRefusal("not_supported", "of transfer codings only chunked is taken");
  }
  const upgrades = (headers.get("upgrade") ?? []).join(",").split(",");
  // Clients that would rather speak HTTP/2 say so, and go on without.
  if (upgrades.some((to) => to.trim() !== "" && to.trim().toLowerCase() !== "h2c")) {
    throw new EgressRefusal(
      "not_supported",
      "connections to hosts of variables cannot be upgraded: WebSockets and the like are not supported there",
    );
  }
}

export function headersOf(rawHeaders: readonly string[]): Headers {
  const headers: Headers = new Map();
  for (let index = 0; index + 1 < rawHeaders.length; index += 2) {
    const name = (rawHeaders[index] ?? "").toLowerCase();
    headers.set(name, [...(headers.get(name) ?? []), rawHeaders[index + 1] ?? ""]);
  }
  return headers;
}

/** As the far side gets them, but for the body's length. Bodies come back as they are, so that values can be taken out. */
export function passedOn(headers: Headers, authority: Authority): Headers {
  const kept = without(headers, NOT_PASSED_ON);
  const { host, port } = authority;
  return new Map([
    ["host", [port === HTTPS_PORT ? host : `${host}:${port}`]],
    ...kept,
    ["accept-encoding", ["identity"]],
  ]);
}

/** As the sandbox gets them, but for the body's length and coding. */
export function passedBack(headers: Headers): Headers {
  return without(headers, NOT_PASSED_BACK);
}

function without(headers: Headers, names: ReadonlySet<string>): Headers {
  const named = new Set(
    (headers.get("connection") ?? []).flatMap((value) =>
      value.split(",").map((name) => name.trim().toLowerCase()),
    ),
  );
  return new Map([...headers].filter(([name]) => !names.has(name) && !named.has(name)));
}

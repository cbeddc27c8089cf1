/**
 * URLs of servers that only a network with hand agents reaches:
 *
 *   hand-agent://<pool>/<host>[:port]/<path>        TLS from the proxy to the server, port 443
 *   hand-agent+http://<pool>/<host>[:port]/<path>   plain HTTP behind the hand agent, port 80; never with a credential
 *
 * The pool comes first because it says who dials; the rest is what that hand agent's network calls the server. TLS is not
 * opened on the way: what the server of Tendon and the hand agent carry, they cannot read.
 */
import { hostText, parseTarget } from "./host-name.ts";

export interface HandAgentTarget {
  /** In lower case. */
  readonly pool: string;
  /** A name, or an address; IPv6 in brackets. */
  readonly host: string;
  readonly port: number;
  readonly isSecure: boolean;
  /** What the hand agent's network calls it: `http(s)://host[:port]/path?query`. */
  readonly url: string;
}

const SCHEMES = new Map([
  ["hand-agent:", { isSecure: true, defaultPort: 443 }],
  ["hand-agent+http:", { isSecure: false, defaultPort: 80 }],
]);
const POOL = /^[a-z0-9][a-z0-9._-]{0,63}$/;

export function isHandAgentUrl(text: string): boolean {
  return /^hand-agent(\+http)?:/i.test(text);
}

/** Undefined for what is no such URL, or holds a user, a password or a fragment. */
export function parseHandAgentUrl(text: string): HandAgentTarget | undefined {
  if (/[^!-~]/.test(text) || text.includes("#") || !URL.canParse(text)) return undefined;
  const { protocol, host, pathname, search, username, password } = new URL(text);
  const scheme = SCHEMES.get(protocol);
  const pool = host.toLowerCase();
  if (scheme === undefined || !POOL.test(pool) || username !== "" || password !== "") return undefined;
  const [, place = "", path = ""] = /^\/([^/]*)(.*)$/.exec(pathname) ?? [];
  const target = parseTarget(place, scheme.defaultPort);
  if (target === undefined) return undefined;
  const { isSecure, defaultPort } = scheme;
  const name = hostText(target.host);
  const port = target.port === defaultPort ? "" : `:${target.port}`;
  const url = `${isSecure ? "https" : "http"}://${name}${port}${path || "/"}${search}`;
  if (!URL.canParse(url)) return undefined;
  return { pool, host: name, port: target.port, isSecure, url };
}

/** One spelling of each URL: two are the same server and path only if this is the same text. Undefined for what is none. */
export function normaliseHandAgentUrl(text: string): string | undefined {
  const target = parseHandAgentUrl(text);
  if (target === undefined) return undefined;
  const { host, pathname, search } = new URL(target.url);
  const scheme = target.isSecure ? "hand-agent" : "hand-agent+http";
  return `${scheme}://${target.pool}/${host}${pathname.replace(/\/+$/, "")}${search}`;
}

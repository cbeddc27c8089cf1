/** From an MCP server's URL to its authorization server, as MCP 2025-11-25 says: RFC 9728 first, then RFC 8414 and OpenID. */
import type { OutboundFetch } from "../../outbound/fetch.ts";
import { endProbeSession, mcpProbe } from "../mcp-probe.ts";
import { isScope } from "../oauth/token-endpoint.ts";
import {
  type AuthorizationServer,
  isSameIssuer,
  readAuthorizationServer,
  readDocument,
} from "./authorization-server.ts";
import { type BearerChallenge, bearerChallenge } from "./challenge.ts";
import { ConnectFailed } from "./failure.ts";
import { type FarSide, isUrlText } from "./far-side.ts";

export interface Discovered {
  readonly server: AuthorizationServer;
  /** To ask tokens for (RFC 8707). */
  readonly resource: string;
  /** What the MCP server says that it needs, else all that it supports; empty when it says nothing. */
  readonly scope: string;
}

interface Resource {
  readonly resource: string;
  readonly issuers: readonly URL[];
  readonly scope: string;
}

const MAX_ISSUERS = 16;
const MAX_TOLD_CHARS = 1_000;

/** `issuer`: the one to use of several; empty: the first. Throws a ConnectFailed. */
export async function discover(
  far: FarSide,
  fetch: OutboundFetch,
  { serverUrl, issuer }: { readonly serverUrl: string; readonly issuer: string },
): Promise<Discovered> {
  const url = new URL(serverUrl);
  const challenge = await askForChallenge(far, fetch, url);
  const found = (await readResource(far, url, challenge)) ?? ownIssuer(url);
  const server = await readAuthorizationServer(far, chosen(found.issuers, issuer, url.host));
  const { scope } = challenge ?? {};
  return { server, resource: found.resource, scope: isScope(scope) ? scope : found.scope };
}

/** Undefined for a server that says nothing to whoever comes without a token; it may still publish what is needed. */
async function askForChallenge(
  far: FarSide,
  fetch: OutboundFetch,
  url: URL,
): Promise<BearerChallenge | undefined> {
  const probe = mcpProbe(url.href, {});
  return far.within("discovery", url, async (signal) => {
    const response = await fetch(probe.url, { ...probe.init, signal });
    await response.body?.cancel();
    await endProbeSession(fetch, probe, response, signal);
    return response.status === 401 ? bearerChallenge(response.headers.get("www-authenticate")) : undefined;
  });
}

/** Undefined when the server publishes nothing. */
async function readResource(
  far: FarSide,
  url: URL,
  challenge: BearerChallenge | undefined,
): Promise<Resource | undefined> {
  const named = challenge?.resourceMetadata;
  if (named !== undefined) {
    const place = far.usableUrl(named);
    const document = place && (await readDocument(far, place));
    if (document !== undefined) return resourceOf(far, document, url);
    const message = `${url.host} names metadata of its own that is not there, or not at an https:// URL`;
    throw new ConnectFailed("discovery", "bad_metadata", message);
  }
  for (const place of resourceUrls(url)) {
    const document = await readDocument(far, place);
    if (document !== undefined) return resourceOf(far, document, url);
  }
  return undefined;
}

/** Where RFC 9728 puts it: with the server's path, then without. */
export function resourceUrls({ origin, pathname, search }: URL): URL[] {
  const root = `${origin}/.well-known/oauth-protected-resource`;
  const path = pathname.replace(/\/$/, "");
  return path === "" ? [new URL(root)] : [new URL(`${root}${path}${search}`), new URL(root)];
}

function resourceOf(far: FarSide, document: Record<string, unknown>, url: URL): Resource {
  const { resource, authorization_servers: named, scopes_supported: scopes } = document;
  if (!isUrlText(resource) || !covers(resource, url)) {
    const message = `the metadata that ${url.host} publishes is of another resource`;
    throw new ConnectFailed("discovery", "resource_differs", message);
  }
  const list = Array.isArray(named) ? named.slice(0, MAX_ISSUERS) : [];
  const issuers = list.map((one) => far.usableUrl(one)).filter((one) => one !== undefined);
  const scope = Array.isArray(scopes) ? scopes.join(" ") : "";
  if (issuers.length > 0) return { resource, issuers, scope: isScope(scope) ? scope : "" };
  const message = `the metadata of ${url.host} names no authorization server with an https:// URL`;
  throw new ConnectFailed("discovery", "bad_metadata", message);
}

/** The server's own URL, or one above it on the same origin: a token for another resource is not for this server. */
function covers(resource: string, url: URL): boolean {
  const above = new URL(resource);
  const path = (text: string) => (text.endsWith("/") ? text : `${text}/`);
  return above.origin === url.origin && path(url.pathname).startsWith(path(above.pathname));
}

/** Servers of MCP before 2025-06-18 are their own authorization servers, at their origin. */
function ownIssuer(url: URL): Resource {
  return { resource: url.href.replace(/\/$/, ""), issuers: [new URL(url.origin)], scope: "" };
}

function chosen(issuers: readonly URL[], wanted: string, host: string): URL {
  const found = wanted === "" ? issuers[0] : issuers.find((one) => isSameIssuer(wanted, one));
  if (found !== undefined) return found;
  const names = issuers
    .map(({ href }) => href)
    .join(", ")
    .slice(0, MAX_TOLD_CHARS);
  const message = `${host} does not name that authorization server; it names ${names}`;
  throw new ConnectFailed("discovery", "issuer_unknown", message);
}

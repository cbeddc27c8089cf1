/** Metadata of authorization servers: RFC 8414, and OpenID Connect discovery where there is none. */
import { jsonObject } from "../../outbound/bounded-text.ts";
import { MCP_VERSION } from "../mcp-probe.ts";
import { ConnectFailed } from "./failure.ts";
import { type FarAnswer, type FarSide, isUrlText } from "./far-side.ts";

export interface AuthorizationServer {
  /** As its metadata spells it. */
  readonly issuer: string;
  readonly authorizationEndpoint: URL;
  readonly tokenEndpoint: URL;
  readonly registrationEndpoint: URL | undefined;
  /** How clients may prove themselves; undefined when it does not say. */
  readonly clientAuth: readonly string[] | undefined;
  /** It names itself in its answers (RFC 9207). */
  readonly namesIssuer: boolean;
}

const HEADERS = { accept: "application/json", "mcp-protocol-version": MCP_VERSION };

/** One document that the far side may have. Undefined when there is none there. Throws a ConnectFailed for a far side that fails. */
export async function readDocument(far: FarSide, url: URL): Promise<Record<string, unknown> | undefined> {
  const answer = await far.ask("discovery", url, { headers: HEADERS });
  if (answer.status >= 500) {
    const message = `${url.host} answered ${answer.status} to the request for its metadata`;
    throw new ConnectFailed("discovery", "metadata_unavailable", message, answer.status);
  }
  return documentOf(answer);
}

/** Servers that answer 200 with a page to whatever they do not know have none, either. */
function documentOf({ status, text }: FarAnswer): Record<string, unknown> | undefined {
  if (status < 200 || status >= 300 || text === undefined) return undefined;
  const value = jsonObject(text);
  return Object.keys(value).length === 0 ? undefined : value;
}

/** In the order that MCP gives. */
export function metadataUrls(issuer: URL): URL[] {
  const { origin } = issuer;
  const path = issuer.pathname.replace(/\/$/, "");
  const inserted = ["oauth-authorization-server", "openid-configuration"].map(
    (name) => new URL(`${origin}/.well-known/${name}${path}`),
  );
  return path === "" ? inserted : [...inserted, new URL(`${origin}${path}/.well-known/openid-configuration`)];
}

/** Throws a ConnectFailed when the issuer has no metadata, or none that can be used. */
export async function readAuthorizationServer(far: FarSide, issuer: URL): Promise<AuthorizationServer> {
  let isAnothers = false;
  for (const url of metadataUrls(issuer)) {
    const document = await readDocument(far, url);
    if (document === undefined) continue;
    // Whoever takes the metadata of one for that of another sends its secrets to the wrong place.
    if (isSameIssuer(document.issuer, issuer)) return usable(far, document, issuer.host);
    isAnothers = true;
  }
  if (isAnothers) {
    const message = `the metadata at ${issuer.host} is of another issuer than the one that was looked for`;
    throw new ConnectFailed("discovery", "issuer_differs", message);
  }
  const message = `${issuer.host} publishes no metadata of an authorization server (RFC 8414, OpenID discovery)`;
  throw new ConnectFailed("discovery", "no_metadata", message);
}

/** Equal, but for a slash at the end: `https://a.example.com` and `https://a.example.com/` are one URL. */
export function isSameIssuer(said: unknown, wanted: URL): said is string {
  return isUrlText(said) && plain(new URL(said)) === plain(wanted);
}

const plain = (url: URL) => url.href.replace(/\/$/, "");

function usable(far: FarSide, document: Record<string, unknown>, host: string): AuthorizationServer {
  const refuse = (problem: string, message: string) =>
    new ConnectFailed("discovery", problem, `the authorization server ${host} ${message}`);
  const authorizationEndpoint = far.usableUrl(document.authorization_endpoint);
  const tokenEndpoint = far.usableUrl(document.token_endpoint);
  if (authorizationEndpoint === undefined || tokenEndpoint === undefined)
    throw refuse("bad_metadata", "names no authorization and token endpoint with https://");
  const { response_types_supported: responses, grant_types_supported: grants } = document;
  if (lacks(responses, "code") || lacks(grants, "authorization_code"))
    throw refuse("no_code_flow", "does not give authorization codes");
  // MCP: one that does not say so must not be used.
  if (
    !Array.isArray(document.code_challenge_methods_supported) ||
    lacks(document.code_challenge_methods_supported, "S256")
  )
    throw refuse("no_s256", "does not say that it supports PKCE with S256, and is not used without");
  const methods = document.token_endpoint_auth_methods_supported;
  return {
    issuer: String(document.issuer),
    authorizationEndpoint,
    tokenEndpoint,
    registrationEndpoint: far.usableUrl(document.registration_endpoint),
    clientAuth: Array.isArray(methods) ? methods.filter((one) => typeof one === "string") : undefined,
    namesIssuer: document.authorization_response_iss_parameter_supported === true,
  };
}

/** What a document does not speak of is not lacking. */
function lacks(list: unknown, value: string): boolean {
  return Array.isArray(list) && !list.includes(value);
}

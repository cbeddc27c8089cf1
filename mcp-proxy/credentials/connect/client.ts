/** As whom a connect asks: a client that was registered before, or one that is registered now (RFC 7591). */
import { jsonObject } from "../../outbound/bounded-text.ts";
import type { AuthorizationServer } from "./authorization-server.ts";
import { ConnectFailed } from "./failure.ts";
import type { FarSide } from "./far-side.ts";

export interface OauthClient {
  readonly clientId: string;
  readonly clientAuth: string;
  readonly clientSecret: string;
  readonly registered: boolean;
}

/** The ways that a proxy can prove a client; one with a secret first, whose refresh tokens need not be rotated. */
const WAYS = ["client_secret_basic", "client_secret_post", "none"];
/** RFC 8414: what a server takes that does not say. */
const DEFAULT_WAYS = ["client_secret_basic"];
const CREATED = new Set([200, 201]);
const REFUSALS = new Set([
  "invalid_redirect_uri",
  "invalid_client_metadata",
  "invalid_software_statement",
  "unapproved_software_statement",
  "access_denied",
  "invalid_token",
]);

/** A client that its caller knows. `wanted`: how it proves itself; empty: as the server takes it. */
export function knownClient(
  server: AuthorizationServer,
  { clientId, clientSecret, wanted }: { clientId: string; clientSecret: string; wanted: string },
): OauthClient {
  const ways = clientSecret === "" ? ["none"] : WAYS.filter((way) => way !== "none");
  const taken = ways.find((way) => (server.clientAuth ?? DEFAULT_WAYS).includes(way)) ?? ways[0]!;
  return { clientId, clientSecret, clientAuth: wanted || taken, registered: false };
}

/** Throws a ConnectFailed that says what to do instead. */
export async function registerClient(
  far: FarSide,
  { issuer, registrationEndpoint, clientAuth }: AuthorizationServer,
  { redirectUri, scope }: { redirectUri: string; scope: string },
): Promise<OauthClient> {
  const { host } = new URL(issuer);
  const instead = `register a client there by hand, with the redirect URI ${redirectUri} (or any port), and name it: --client-id, --client-secret-file`;
  const refuse = (problem: string, message: string, status = 0) =>
    new ConnectFailed("registration", problem, `${host} ${message}; ${instead}`, status);
  if (registrationEndpoint === undefined) throw refuse("no_registration", "registers no clients by itself");
  const way = WAYS.find((one) => (clientAuth ?? DEFAULT_WAYS).includes(one));
  if (way === undefined) throw refuse("no_client_auth", "takes clients in no way that is known here");
  const answer = await far.ask("registration", registrationEndpoint, {
    method: "POST",
    headers: { accept: "application/json", "content-type": "application/json" },
    body: JSON.stringify({
      client_name: "Tendon",
      application_type: "native",
      redirect_uris: [redirectUri],
      grant_types: ["authorization_code", "refresh_token"],
      response_types: ["code"],
      token_endpoint_auth_method: way,
      ...(scope !== "" && { scope }),
    }),
  });
  const said = jsonObject(answer.text ?? "");
  if (!CREATED.has(answer.status)) {
    const code = typeof said.error === "string" && REFUSALS.has(said.error) ? said.error : "refused";
    throw refuse(code, `refused to register a client (${answer.status}, ${code})`, answer.status);
  }
  const client = clientOf(said, way);
  if (client !== undefined) return client;
  throw refuse("invalid_response", "has registered a client in a way that is not known here", answer.status);
}

/** What the answer says counts, where it differs from what was asked for (RFC 7591, 3.2.1). */
function clientOf(said: Record<string, unknown>, asked: string): OauthClient | undefined {
  const { client_id: clientId, client_secret: secret = "", token_endpoint_auth_method: way } = said;
  const isName = typeof clientId === "string" && clientId.length <= 512 && /^[\x20-\x7e]+$/.test(clientId);
  if (!isName || typeof secret !== "string" || !/^[\x20-\x7e]{0,16384}$/.test(secret)) return undefined;
  const clientAuth = typeof way === "string" ? way : secret === "" ? "none" : asked;
  const fits = WAYS.includes(clientAuth) && (clientAuth === "none" || secret !== "");
  // A secret that is never shown is none to keep.
  const clientSecret = clientAuth === "none" ? "" : secret;
  return fits ? { clientId, clientAuth, clientSecret, registered: true } : undefined;
}

/**
 * The far side of OAuth's authorization code: an authorization server with metadata, registration, an authorization endpoint
 * that allows at once, and a token endpoint that looks at everything: PKCE, redirect URI, resource, client. Codes and refresh
 * tokens are good once.
 */
import { createHash, randomBytes } from "node:crypto";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

type Place = "rfc8414" | "openid-inserted" | "openid-appended";

/** What a test may change; as it stands all is well. */
export interface AuthorizationServerSetting {
  /** Where the metadata is. */
  place: Place;
  /** Put over its members; undefined takes one out. */
  metadata: Record<string, unknown>;
  /** Refuses registrations with this error code. */
  refusesClients: string | undefined;
  /** Put over the answer to a registration. */
  registered: Record<string, unknown>;
  /** Changes what the browser is sent back with. */
  redirect: (query: URLSearchParams) => void;
  /** Put over the answer of the token endpoint. */
  tokens: Record<string, unknown>;
  /** What the token endpoint answers in place of tokens. */
  tokenFailure: { readonly status: number; readonly body: string } | undefined;
}

interface Client {
  readonly id: string;
  readonly secret: string;
  readonly way: string;
  readonly redirectUris: readonly string[];
}

interface Code {
  readonly query: URLSearchParams;
  used: boolean;
  readonly tokens: string[];
}

export interface AuthorizationServer {
  readonly origin: string;
  readonly issuer: string;
  readonly set: AuthorizationServerSetting;
  /** All is well again. */
  reset(): void;
  /** Adds one that is known already. */
  addClient(client: Client): void;
  readonly clients: ReadonlyMap<string, Client>;
  /** Bodies of registrations. */
  readonly registrations: Record<string, unknown>[];
  /** "GET /path" of each request. */
  readonly seen: string[];
  /** Queries of the authorization endpoint. */
  readonly authorizations: URLSearchParams[];
  /** Each request of the token endpoint. */
  readonly exchanges: { readonly form: URLSearchParams; readonly refusal: string }[];
  /** Access tokens that are good, by the resource that they are for. */
  readonly access: Map<string, string>;
  /** Codes, verifiers, tokens and clients' secrets: all that must stay secret. */
  readonly secrets: Set<string>;
  close(): Promise<void>;
}

const ISSUER_PATH = "/tenant1";
const LOOPBACK = /^http:\/\/127\.0\.0\.1:\d+\//;

export async function startAuthorizationServer(): Promise<AuthorizationServer> {
  const codes = new Map<string, Code>();
  const refreshes = new Map<string, string>();
  const clients = new Map<string, Client>();
  const server = createServer((request, response) => {
    void answer(request, response).catch(() => response.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const issuer = `${origin}${ISSUER_PATH}`;
  const side: AuthorizationServer = {
    origin,
    issuer,
    set: { ...usual() },
    reset: () => void Object.assign(side.set, usual()),
    addClient: (client) => void clients.set(client.id, client),
    clients,
    registrations: [],
    seen: [],
    authorizations: [],
    exchanges: [],
    access: new Map(),
    secrets: new Set(),
    close() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeAllConnections();
      return closed;
    },
  };
  const secret = (name: string) => {
    const made = `canary-${name}-${randomBytes(16).toString("hex")}`;
    side.secrets.add(made);
    return made;
  };

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? "/", origin);
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks).toString();
    side.seen.push(`${request.method} ${url.pathname}`);
    if (url.pathname === placeOf(side.set.place)) return json(response, 200, metadata());
    switch (url.pathname) {
      case "/register":
        return register(JSON.parse(body), response);
      case "/authorize":
        return authorize(url.searchParams, response);
      case "/token": {
        const form = new URLSearchParams(body);
        return token(form, request.headers.authorization ?? "", response);
      }
      default:
        response.writeHead(404).end("what is that?");
    }
  }

  function metadata() {
    const said = {
      issuer,
      authorization_endpoint: `${origin}/authorize?tenant=1`,
      token_endpoint: `${origin}/token`,
      registration_endpoint: `${origin}/register`,
      response_types_supported: ["code"],
      grant_types_supported: ["authorization_code", "refresh_token"],
      code_challenge_methods_supported: ["S256"],
      token_endpoint_auth_methods_supported: ["none", "client_secret_post", "client_secret_basic"],
      authorization_response_iss_parameter_supported: true,
    };
    return { ...said, ...side.set.metadata };
  }

  function register(wanted: Record<string, unknown>, response: ServerResponse): void {
    side.registrations.push(wanted);
    const { refusesClients: error } = side.set;
    if (error !== undefined) {
      json(response, 400, { error, error_description: "canary-registration" });
      return;
    }
    const id = `client-${randomBytes(6).toString("hex")}`;
    const way = String(wanted.token_endpoint_auth_method);
    const made = way === "none" ? "" : secret("client-secret");
    clients.set(id, { id, secret: made, way, redirectUris: wanted.redirect_uris as string[] });
    const said = {
      ...wanted,
      client_id: id,
      ...(made !== "" && { client_secret: made, client_secret_expires_at: 0 }),
    };
    json(response, 201, { ...said, ...side.set.registered });
  }

  function authorize(query: URLSearchParams, response: ServerResponse): void {
    side.authorizations.push(query);
    const redirectUri = query.get("redirect_uri") ?? "";
    const client = clients.get(query.get("client_id") ?? "");
    const isRegistered = client?.redirectUris.some((uri) => samePlace(uri, redirectUri)) ?? false;
    const isWell =
      query.get("response_type") === "code" &&
      query.get("code_challenge_method") === "S256" &&
      /^[\w-]{43}$/.test(query.get("code_challenge") ?? "") &&
      query.get("tenant") === "1";
    if (!isRegistered || !isWell) return void response.writeHead(400).end("a bad request");
    const code = secret("code");
    codes.set(code, { query, used: false, tokens: [] });
    const back = new URL(redirectUri);
    const said = { code, state: query.get("state") ?? "", iss: issuer };
    for (const [name, value] of Object.entries(said)) back.searchParams.set(name, value);
    side.set.redirect(back.searchParams);
    response.writeHead(302, { location: back.href }).end();
  }

  function token(form: URLSearchParams, authorization: string, response: ServerResponse): void {
    for (const name of ["code", "code_verifier", "refresh_token"]) {
      const shown = form.get(name);
      if (shown !== null) side.secrets.add(shown);
    }
    const refusal = side.set.tokenFailure === undefined ? refusalOf(form, authorization) : "failure";
    side.exchanges.push({ form, refusal });
    if (side.set.tokenFailure !== undefined) {
      const { status, body } = side.set.tokenFailure;
      return void response.writeHead(status, { "content-type": "application/json" }).end(body);
    }
    if (refusal !== "") {
      const error = refusal === "client" ? "invalid_client" : "invalid_grant";
      json(response, 400, { error, error_description: `${refusal}: ${form.get("code")}` });
      return;
    }
    const resource = form.get("resource") ?? "";
    const [access, refresh] = [secret("access"), secret("refresh")];
    side.access.set(access, resource);
    refreshes.set(refresh, resource);
    codes.get(form.get("code") ?? "")?.tokens.push(access, refresh);
    const said = { access_token: access, token_type: "Bearer", expires_in: 3600, refresh_token: refresh };
    json(response, 200, { ...said, ...side.set.tokens });
  }

  /** What is wrong with it; empty when nothing is. */
  function refusalOf(form: URLSearchParams, authorization: string): string {
    if (!isProven(form, authorization)) return "client";
    if (form.get("grant_type") === "refresh_token") {
      const shown = form.get("refresh_token") ?? "";
      return refreshes.get(shown) === form.get("resource") && refreshes.delete(shown) ? "" : "refresh_token";
    }
    const code = codes.get(form.get("code") ?? "");
    if (form.get("grant_type") !== "authorization_code" || code === undefined) return "code";
    if (code.used) {
      // RFC 6749, 4.1.2: all that was given for it ends.
      for (const given of code.tokens) if (!side.access.delete(given)) refreshes.delete(given);
      return "code reuse";
    }
    code.used = true;
    const challenge = createHash("sha256")
      .update(form.get("code_verifier") ?? "")
      .digest("base64url");
    if (challenge !== code.query.get("code_challenge")) return "verifier";
    for (const name of ["redirect_uri", "resource"]) {
      if (form.get(name) === null || form.get(name) !== code.query.get(name)) return name;
    }
    return "";
  }

  function isProven(form: URLSearchParams, authorization: string): boolean {
    const [id = "", shown = ""] = authorization.startsWith("Basic ")
      ? Buffer.from(authorization.slice(6), "base64").toString().split(":").map(formDecoded)
      : [form.get("client_id") ?? "", form.get("client_secret") ?? ""];
    const client = clients.get(id);
    const way =
      authorization !== ""
        ? "client_secret_basic"
        : form.has("client_secret")
          ? "client_secret_post"
          : "none";
    return client?.way === way && client.secret === shown;
  }

  return side;
}

function usual(): AuthorizationServerSetting {
  return {
    place: "rfc8414",
    metadata: {},
    refusesClients: undefined,
    registered: {},
    redirect: () => {},
    tokens: {},
    tokenFailure: undefined,
  };
}

function placeOf(place: Place): string {
  if (place === "rfc8414") return `/.well-known/oauth-authorization-server${ISSUER_PATH}`;
  if (place === "openid-inserted") return `/.well-known/openid-configuration${ISSUER_PATH}`;
  return `${ISSUER_PATH}/.well-known/openid-configuration`;
}

/** RFC 6749, 2.3.1: as in a form. */
const formDecoded = (text: string) => new URLSearchParams(`v=${text}`).get("v") ?? "";

/** RFC 8252, 7.3: on loopback any port. */
function samePlace(registered: string, asked: string): boolean {
  return registered === asked || registered.replace(LOOPBACK, "") === asked.replace(LOOPBACK, "");
}

function json(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

/** One request to an OAuth token endpoint (RFC 6749, 4.1.3 and 6). Nothing of its body is ever repeated but a known error code. */
import type { Clock } from "../../../kit/clock.ts";
import { hostOf } from "../../../kit/vault/destination.ts";
import type { OauthUse, PlainSecret } from "../../../proto/gen/tendon/v1/vault_service_pb.js";
import { boundedText, jsonObject } from "../../outbound/bounded-text.ts";
import type { OutboundFetch } from "../../outbound/fetch.ts";
import { OutboundRefusal } from "../../outbound/refusal.ts";

export interface Tokens {
  readonly accessToken: string;
  /** Undefined: the old one stays good. */
  readonly refreshToken: string | undefined;
  /** By the wall clock; undefined when the endpoint does not say. */
  readonly expiresAtMs: number | undefined;
  /** Undefined: as it was asked for. */
  readonly scope: string | undefined;
}

export interface TokenFailure {
  /** An error code of the standard, or one of ours: `timeout`, `connection_lost`, `connect_error`, `http_503`, … */
  readonly problem: string;
  /** Nothing but a new secret mends it. */
  readonly isFinal: boolean;
  /** 0 without an answer. */
  readonly httpStatus: number;
}

export type TokenOutcome =
  | { readonly kind: "tokens"; readonly tokens: Tokens; readonly httpStatus: number }
  | ({ readonly kind: "failure" } & TokenFailure);

export interface TokenEndpointDeps {
  readonly fetch: OutboundFetch;
  readonly clock: Clock;
}

const ANSWER_WITHIN_MS = 10_000;
const MAX_ANSWER_BYTES = 64 * 1024;
const MAX_TOKEN_CHARS = 16_384;
const MAX_SCOPE_CHARS = 2_048;
const MAX_LIFE_S = 10 * 365 * 24 * 3600;
/** Errors of the standard, and whether they end the grant. */
const ERRORS: Readonly<Record<string, boolean>> = {
  invalid_grant: true,
  invalid_client: true,
  unauthorized_client: true,
  unsupported_grant_type: true,
  invalid_request: false,
  invalid_scope: false,
  temporarily_unavailable: false,
  server_error: false,
};

/** What an authorization code is traded with. */
export interface CodeGrant {
  readonly code: string;
  readonly redirectUri: string;
  readonly verifier: string;
}

/** Asks for new tokens with the refresh token, once. Does not reject. */
export function requestTokens(
  deps: TokenEndpointDeps,
  use: OauthUse,
  secret: PlainSecret,
): Promise<TokenOutcome> {
  const grant = { grant_type: "refresh_token", refresh_token: secret.refreshToken };
  return askForTokens(deps, use, secret, { ...grant, ...(use.scope !== "" && { scope: use.scope }) });
}

/** Trades a code for tokens, once; of the secret only the client's counts. Does not reject. */
export function exchangeCode(
  deps: TokenEndpointDeps,
  use: OauthUse,
  secret: PlainSecret,
  { code, redirectUri, verifier }: CodeGrant,
): Promise<TokenOutcome> {
  const grant = { grant_type: "authorization_code", code };
  return askForTokens(deps, use, secret, { ...grant, redirect_uri: redirectUri, code_verifier: verifier });
}

async function askForTokens(
  { fetch, clock }: TokenEndpointDeps,
  use: OauthUse,
  secret: PlainSecret,
  grant: Readonly<Record<string, string>>,
): Promise<TokenOutcome> {
  const limit = new AbortController();
  const stop = clock.after(ANSWER_WITHIN_MS, () => limit.abort(new Error("timeout")));
  try {
    const response = await fetch(use.tokenEndpoint, {
      method: "POST",
      headers: { ...authorization(use, secret), accept: "application/json", "content-type": FORM },
      body: form(use, secret, grant).toString(),
      signal: limit.signal,
      // A redirect would show what is sent to somebody else.
      redirect: "error",
    });
    const text = (await boundedText(response, MAX_ANSWER_BYTES, limit.signal)) ?? "";
    return response.ok ? granted(text, response.status, clock.nowMs()) : refused(text, response.status);
  } catch (error) {
    if (limit.signal.aborted) return failure("timeout");
    if (!(error instanceof OutboundRefusal)) return failure("connection_lost");
    if (error.isDenial) return failure(error.reason);
    return failure(error.message.includes("broke the connection") ? "connection_lost" : "connect_error");
  } finally {
    stop();
  }
}

/** For the audit log. */
export function tokenHost(use: OauthUse): string {
  return hostOf(use.tokenEndpoint);
}

const FORM = "application/x-www-form-urlencoded";

function form(use: OauthUse, secret: PlainSecret, grant: Readonly<Record<string, string>>): URLSearchParams {
  const fields = new URLSearchParams(grant);
  if (use.clientAuth !== "client_secret_basic") fields.set("client_id", use.clientId);
  if (use.clientAuth === "client_secret_post") fields.set("client_secret", secret.clientSecret);
  if (use.resource !== "") fields.set("resource", use.resource);
  return fields;
}

/** Both halves are encoded as in a form before they are joined (RFC 6749, 2.3.1). */
function authorization(use: OauthUse, secret: PlainSecret): Record<string, string> {
  if (use.clientAuth !== "client_secret_basic") return {};
  const encode = (text: string) => new URLSearchParams({ v: text }).toString().slice(2);
  const pair = `${encode(use.clientId)}:${encode(secret.clientSecret)}`;
  return { authorization: `Basic ${Buffer.from(pair).toString("base64")}` };
}

function granted(text: string, httpStatus: number, nowMs: number): TokenOutcome {
  const body = jsonObject(text);
  const {
    access_token: accessToken,
    refresh_token: refreshToken,
    expires_in: expiresIn,
    token_type: type,
    scope,
  } = body;
  const isBearer = type === undefined || (typeof type === "string" && type.toLowerCase() === "bearer");
  if (
    !isBearer ||
    !isToken(accessToken) ||
    !(refreshToken === undefined || refreshToken === "" || isToken(refreshToken))
  ) {
    return { kind: "failure", problem: "invalid_response", isFinal: false, httpStatus };
  }
  const seconds = Number(expiresIn);
  const expiresAtMs = seconds > 0 && seconds < MAX_LIFE_S ? nowMs + seconds * 1000 : undefined;
  return {
    kind: "tokens",
    httpStatus,
    tokens: {
      accessToken,
      refreshToken: refreshToken || undefined,
      expiresAtMs,
      scope: isScope(scope) ? scope : undefined,
    },
  };
}

/** RFC 6749, 3.3. */
export function isScope(value: unknown): value is string {
  return (
    typeof value === "string" && value.length <= MAX_SCOPE_CHARS && /^[!#-[\]-~]+( [!#-[\]-~]+)*$/.test(value)
  );
}

function isToken(value: unknown): value is string {
  return typeof value === "string" && value.length <= MAX_TOKEN_CHARS && /^[\x21-\x7e]+$/.test(value);
}

function refused(text: string, httpStatus: number): TokenOutcome {
  const { error } = jsonObject(text);
  if (typeof error === "string" && Object.hasOwn(ERRORS, error)) {
    return { kind: "failure", problem: error, isFinal: ERRORS[error]!, httpStatus };
  }
  return { kind: "failure", problem: `http_${httpStatus}`, isFinal: false, httpStatus };
}

function failure(problem: string): TokenOutcome {
  return { kind: "failure", problem, isFinal: false, httpStatus: 0 };
}

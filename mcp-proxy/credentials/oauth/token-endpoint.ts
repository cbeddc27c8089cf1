/** One request to an OAuth token endpoint (RFC 6749, section 6). Nothing of its body is ever repeated but a known error code. */
import type { Clock } from "../../../kit/clock.ts";
import { hostOf } from "../../../kit/vault/destination.ts";
import type { OauthUse, PlainSecret } from "../../../proto/gen/tendon/v1/vault_service_pb.js";
import type { OutboundFetch } from "../../outbound/fetch.ts";
import { OutboundRefusal } from "../../outbound/refusal.ts";

export interface Tokens {
  readonly accessToken: string;
  /** Undefined: the old one stays good. */
  readonly refreshToken: string | undefined;
  /** By the wall clock; undefined when the endpoint does not say. */
  readonly expiresAtMs: number | undefined;
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

/** Asks for new tokens, once. Does not reject. */
export async function requestTokens(
  { fetch, clock }: TokenEndpointDeps,
  use: OauthUse,
  secret: PlainSecret,
): Promise<TokenOutcome> {
  const limit = new AbortController();
  const stop = clock.after(ANSWER_WITHIN_MS, () => limit.abort(new Error("timeout")));
  try {
    const response = await fetch(use.tokenEndpoint, {
      method: "POST",
      headers: { ...authorization(use, secret), accept: "application/json", "content-type": FORM },
      body: form(use, secret).toString(),
      signal: limit.signal,
      // A redirect would show the refresh token to somebody else.
      redirect: "error",
    });
    const text = await readText(response, limit.signal);
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

function form(use: OauthUse, secret: PlainSecret): URLSearchParams {
  const fields = new URLSearchParams({ grant_type: "refresh_token", refresh_token: secret.refreshToken });
  if (use.clientAuth !== "client_secret_basic") fields.set("client_id", use.clientId);
  if (use.clientAuth === "client_secret_post") fields.set("client_secret", secret.clientSecret);
  if (use.scope !== "") fields.set("scope", use.scope);
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

async function readText(response: Response, signal: AbortSignal): Promise<string> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of (response.body ?? []) as AsyncIterable<Uint8Array>) {
    signal.throwIfAborted();
    bytes += chunk.byteLength;
    if (bytes > MAX_ANSWER_BYTES) return "";
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}

function granted(text: string, httpStatus: number, nowMs: number): TokenOutcome {
  const body = parse(text);
  const {
    access_token: accessToken,
    refresh_token: refreshToken,
    expires_in: expiresIn,
    token_type: type,
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
    tokens: { accessToken, refreshToken: refreshToken || undefined, expiresAtMs },
  };
}

function isToken(value: unknown): value is string {
  return typeof value === "string" && value.length <= MAX_TOKEN_CHARS && /^[\x21-\x7e]+$/.test(value);
}

function refused(text: string, httpStatus: number): TokenOutcome {
  const { error } = parse(text);
  if (typeof error === "string" && Object.hasOwn(ERRORS, error)) {
    return { kind: "failure", problem: error, isFinal: ERRORS[error]!, httpStatus };
  }
  return { kind: "failure", problem: `http_${httpStatus}`, isFinal: false, httpStatus };
}

function parse(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

function failure(problem: string): TokenOutcome {
  return { kind: "failure", problem, isFinal: false, httpStatus: 0 };
}

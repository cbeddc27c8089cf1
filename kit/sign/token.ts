/** Short-lived signed tokens (JWT, Ed25519): session tokens, and the identity of hand agents. */
import { errors, importJWK, type JWTPayload, jwtVerify, SignJWT } from "jose";
import type { Clock } from "../clock.ts";
import { TendonError } from "../errors.ts";
import type { PublicKeyJwk, SigningKey } from "./key-file.ts";

/** Of session tokens: the proxy takes them, and the server for calls in the session's name. */
export const SESSION_TOKEN_AUDIENCE = "tendon-session";
/** How long a session token lives at most. */
export const SESSION_TOKEN_TTL_MS = 15 * 60_000;

export interface TokenClaims {
  /** Who may take the token; the verifier asks for the same. */
  audience: string;
  /** Whom it stands for, an id. */
  subject: string;
  /** Further claims, which must not be named like the registered ones. */
  claims?: Readonly<Record<string, string | number | boolean>>;
}

export interface VerifiedToken {
  subject: string;
  kid: string;
  issuedAtMs: number;
  expiresAtMs: number;
  claims: Readonly<Record<string, unknown>>;
}

export interface VerifyOptions {
  audience: string;
  clock: Clock;
  /** How far the two clocks may differ; at most 5 minutes, default 30 s. */
  clockSkewMs?: number;
  /** Tokens that live longer are refused, whoever signed them; default 24 h. */
  maxTtlMs?: number;
}

const ALGORITHM = "EdDSA";
const MAX_TOKEN_CHARS = 8 * 1024;
const DEFAULT_SKEW_MS = 30_000;
const MAX_SKEW_MS = 5 * 60_000;
const DEFAULT_MAX_TTL_MS = 24 * 3_600_000;

/** Times are whole seconds on the wire: the token lives at most `ttlMs`. */
export async function signToken(
  key: SigningKey,
  { audience, subject, claims }: TokenClaims,
  ttlMs: number,
  clock: Clock,
): Promise<string> {
  const nowMs = clock.nowMs();
  return new SignJWT({ ...claims })
    .setProtectedHeader({ alg: ALGORITHM, kid: key.kid })
    .setAudience(audience)
    .setSubject(subject)
    .setIssuedAt(Math.floor(nowMs / 1000))
    .setExpirationTime(Math.floor((nowMs + ttlMs) / 1000))
    .sign(key.privateKey);
}

/** Public keys by id; may ask a store. Undefined for a key that nobody knows, or that was revoked. */
export type PublicKeys = (kid: string) => PublicKeyJwk | undefined | Promise<PublicKeyJwk | undefined>;

/**
 * What the token says, once signature, audience and times are right. Throws KEY_EXPIRED for a good token that ran out and
 * UNAUTHENTICATED for every other; neither says why in detail. Errors of `publicKeys` are passed on.
 */
export async function verifyToken(
  publicKeys: PublicKeys,
  token: string,
  options: VerifyOptions,
): Promise<VerifiedToken> {
  if (token.length > MAX_TOKEN_CHARS) throw refused();
  const skewMs = Math.min(options.clockSkewMs ?? DEFAULT_SKEW_MS, MAX_SKEW_MS);
  try {
    const { payload, protectedHeader } = await jwtVerify(
      token,
      async ({ kid }) => {
        const key = kid === undefined ? undefined : await publicKeys(kid);
        if (key === undefined) throw new errors.JWKSNoMatchingKey();
        return importJWK({ ...key }, ALGORITHM);
      },
      {
        algorithms: [ALGORITHM],
        audience: options.audience,
        clockTolerance: skewMs / 1000,
        currentDate: new Date(options.clock.nowMs()),
        requiredClaims: ["sub", "iat", "exp"],
      },
    );
    return verified(payload, protectedHeader.kid!, options, skewMs);
  } catch (error) {
    if (error instanceof errors.JWTExpired) throw new TendonError("KEY_EXPIRED", "the token has expired");
    if (error instanceof errors.JOSEError) throw refused();
    throw error;
  }
}

function verified(payload: JWTPayload, kid: string, options: VerifyOptions, skewMs: number): VerifiedToken {
  const { sub, iat, exp, aud: _aud, ...claims } = payload;
  const issuedAtMs = iat! * 1000;
  const expiresAtMs = exp! * 1000;
  if (issuedAtMs - skewMs > options.clock.nowMs()) throw refused();
  if (expiresAtMs - issuedAtMs > (options.maxTtlMs ?? DEFAULT_MAX_TTL_MS)) throw refused();
  return { subject: sub!, kid, issuedAtMs, expiresAtMs, claims };
}

function refused(): TendonError {
  return new TendonError("UNAUTHENTICATED", "the token is not valid");
}

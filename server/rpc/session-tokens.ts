/** Signs session tokens with this replica's key and checks those of every replica. */
import type { Clock } from "../../kit/clock.ts";
import { TendonError } from "../../kit/errors.ts";
import { keyId, type PublicKeyJwk, type SigningKey } from "../../kit/sign/key-file.ts";
import {
  SESSION_TOKEN_AUDIENCE,
  SESSION_TOKEN_TTL_MS,
  signToken,
  verifyToken,
} from "../../kit/sign/token.ts";
import type { SessionTokenClaims, SessionTokens } from "../ports/session-tokens.ts";
import type { ReplicaStore } from "../store/replicas.ts";

/** An unknown key may be a replica that just came: the set is read again, but not more often than this. */
const REFRESH_AFTER_MS = 2_000;

/** Keys of replicas that are long gone are forgotten this late. */
const KEEP_KEYS_MS = 60_000;

export interface SessionTokensDeps {
  readonly key: SigningKey;
  readonly replicas: Pick<ReplicaStore, "publicKeys">;
  readonly clock: Clock;
}

/** What this replica publishes about its key: a JWK set as JSON text. */
export function publicKeySet(key: SigningKey): string {
  return JSON.stringify({ keys: [jwkOf(key.kid, key.publicKey)] });
}

export function createSessionTokens({ key, replicas, clock }: SessionTokensDeps): SessionTokens {
  let known = new Map<string, PublicKeyJwk>();
  let readAtMs = Number.NEGATIVE_INFINITY;

  const read = async () => {
    readAtMs = clock.monotonicMs();
    known = await keysOf(await replicas.publicKeys());
  };
  const findKey = async (kid: string): Promise<PublicKeyJwk | undefined> => {
    if (kid === key.kid) return key.publicKey;
    const ageMs = clock.monotonicMs() - readAtMs;
    if (ageMs > KEEP_KEYS_MS || (!known.has(kid) && ageMs > REFRESH_AFTER_MS)) await read();
    return known.get(kid);
  };
  return {
    async issue({ sessionId, workspaceId, epoch }) {
      const claims = { workspace: workspaceId, epoch: String(epoch) };
      const named = { audience: SESSION_TOKEN_AUDIENCE, subject: sessionId, claims };
      const token = await signToken(key, named, SESSION_TOKEN_TTL_MS, clock);
      return { token, expiresAtMs: clock.nowMs() + SESSION_TOKEN_TTL_MS };
    },
    async verify(token) {
      const options = { audience: SESSION_TOKEN_AUDIENCE, clock, maxTtlMs: SESSION_TOKEN_TTL_MS };
      const { subject, claims } = await verifyToken(findKey, token, options);
      return claimsOf(subject, claims);
    },
    async publicKeys() {
      await read();
      const all = new Map([...known, [key.kid, key.publicKey]]);
      const sorted = [...all].sort(([one], [other]) => (one < other ? -1 : 1));
      return JSON.stringify({ keys: sorted.map(([kid, jwk]) => jwkOf(kid, jwk)) });
    },
  };
}

function claimsOf(sessionId: string, claims: Readonly<Record<string, unknown>>): SessionTokenClaims {
  const { workspace, epoch } = claims;
  if (typeof workspace !== "string" || typeof epoch !== "string" || !/^\d{1,18}$/.test(epoch)) {
    throw new TendonError("UNAUTHENTICATED", "the token is not valid");
  }
  return { sessionId, workspaceId: workspace, epoch: BigInt(epoch) };
}

/** Ids are computed, not believed: a row that names another key's id changes nothing. */
async function keysOf(sets: readonly string[]): Promise<Map<string, PublicKeyJwk>> {
  const keys = sets.flatMap((text) => (JSON.parse(text) as { keys: PublicKeyJwk[] }).keys);
  const known = new Map<string, PublicKeyJwk>();
  for (const { kty, crv, x } of keys) known.set(await keyId({ kty, crv, x }), { kty, crv, x });
  return known;
}

function jwkOf(kid: string, key: PublicKeyJwk): Record<string, string> {
  return { ...key, kid, alg: "EdDSA", use: "sig" };
}

/** Session tokens, checked by the keys that the server publishes: a proxy knows nobody else who may say who asks. */
import type { Clock } from "../kit/clock.ts";
import { TendonError } from "../kit/errors.ts";
import { keyId, type PublicKeyJwk } from "../kit/sign/key-file.ts";
import { SESSION_TOKEN_AUDIENCE, SESSION_TOKEN_TTL_MS, verifyToken } from "../kit/sign/token.ts";

/** Whom a token stands for. Whether the epoch is still the newest the server says, each time something is asked of it. */
export interface SessionCaller {
  readonly sessionId: string;
  readonly workspaceId: string;
  readonly epoch: bigint;
}

export class SessionTokenKeys {
  private readonly clock: Clock;
  private keys = new Map<string, PublicKeyJwk>();

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /** Of a welcome: a JWK set as JSON text. Ids are computed, not believed. */
  async replace(text: string): Promise<void> {
    const known = new Map<string, PublicKeyJwk>();
    for (const { kty, crv, x } of (JSON.parse(text) as { keys: PublicKeyJwk[] }).keys) {
      known.set(await keyId({ kty, crv, x }), { kty, crv, x });
    }
    this.keys = known;
  }

  /** Throws UNAUTHENTICATED, or KEY_EXPIRED. */
  async verify(token: string): Promise<SessionCaller> {
    const options = { audience: SESSION_TOKEN_AUDIENCE, clock: this.clock, maxTtlMs: SESSION_TOKEN_TTL_MS };
    const { subject, claims } = await verifyToken((kid) => this.keys.get(kid), token, options);
    const { workspace, epoch } = claims;
    if (typeof workspace !== "string" || typeof epoch !== "string" || !/^\d{1,18}$/.test(epoch)) {
      throw new TendonError("UNAUTHENTICATED", "the token is not valid");
    }
    return { sessionId: subject, workspaceId: workspace, epoch: BigInt(epoch) };
  }
}

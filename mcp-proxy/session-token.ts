/** Session tokens, checked by the keys that the server publishes: a proxy knows nobody else who may say who asks. */
import type { Clock } from "../kit/clock.ts";
import { TendonError } from "../kit/errors.ts";
import { keyId, type PublicKeyJwk } from "../kit/sign/key-file.ts";
import { hashSecret } from "../kit/sign/secrets.ts";
import { SESSION_TOKEN_AUDIENCE, SESSION_TOKEN_TTL_MS, verifyToken } from "../kit/sign/token.ts";

/** Whom a token stands for. Whether the epoch is still the newest the server says, each time something is asked of it. */
export interface SessionCaller {
  readonly sessionId: string;
  readonly workspaceId: string;
  readonly epoch: bigint;
}

/** Tokens that were found good: a brain shows the same one with every call, for minutes. */
const MAX_KNOWN = 10_000;

interface KnownToken {
  readonly caller: SessionCaller;
  /** By the wall clock, as the token says. */
  readonly expiresAtMs: number;
}

export class SessionTokenKeys {
  private readonly clock: Clock;
  /** Undefined until the server has said them: until then nobody can be told that a token is not valid. */
  private keys: ReadonlyMap<string, PublicKeyJwk> | undefined;
  /** By hash; the oldest goes first. */
  private known = new Map<string, KnownToken>();

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /** Whether the server has said them. */
  get areKnown(): boolean {
    return this.keys !== undefined;
  }

  /** Of a welcome: a JWK set as JSON text. Ids are computed, not believed. */
  async replace(text: string): Promise<void> {
    const known = new Map<string, PublicKeyJwk>();
    for (const { kty, crv, x } of (JSON.parse(text) as { keys: PublicKeyJwk[] }).keys) {
      known.set(await keyId({ kty, crv, x }), { kty, crv, x });
    }
    this.keys = known;
    // What a key that is gone has signed is not believed any longer.
    this.known = new Map();
  }

  /** Throws UNAUTHENTICATED, KEY_EXPIRED, or UNAVAILABLE before the first welcome. */
  async verify(token: string): Promise<SessionCaller> {
    const hash = hashSecret(token);
    const found = this.known.get(hash);
    if (found !== undefined && found.expiresAtMs > this.clock.nowMs()) return found.caller;
    const { known } = this;
    known.delete(hash);
    const { caller, expiresAtMs } = await this.verifySignature(token);
    const oldest = known.size >= MAX_KNOWN ? known.keys().next().value : undefined;
    if (oldest !== undefined) known.delete(oldest);
    known.set(hash, { caller, expiresAtMs });
    return caller;
  }

  private async verifySignature(token: string): Promise<KnownToken> {
    const { keys } = this;
    if (keys === undefined) {
      throw new TendonError("UNAVAILABLE", "the proxy is not connected to its server yet; try again");
    }
    const options = { audience: SESSION_TOKEN_AUDIENCE, clock: this.clock, maxTtlMs: SESSION_TOKEN_TTL_MS };
    const { subject, claims, expiresAtMs } = await verifyToken((kid) => keys.get(kid), token, options);
    const { workspace, epoch } = claims;
    if (typeof workspace !== "string" || typeof epoch !== "string" || !/^\d{1,18}$/.test(epoch)) {
      throw new TendonError("UNAUTHENTICATED", "the token is not valid");
    }
    return {
      caller: { sessionId: subject, workspaceId: workspace, epoch: BigInt(epoch) },
      expiresAtMs,
    };
  }
}

/**
 * Finds out who calls. An API key is looked up by its hash; a hand agent's token is checked against the key that it
 * enrolled with; a session token against the replicas' keys. Whoever is revoked is refused at once by the
 * replica that did it and within `KEY_CACHE_MS` by the others; open streams end within `recheckEveryMs` and that.
 */
import type { Clock } from "../../kit/clock.ts";
import { messageOf, TendonError } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import { createContextKey, type RpcContext } from "../../kit/rpc/context.ts";
import type { RpcInterceptor } from "../../kit/rpc/pipeline.ts";
import { streamsRequests, streamsResponses } from "../../kit/rpc/service.ts";
import type { PublicKeyJwk } from "../../kit/sign/key-file.ts";
import { hashSecret } from "../../kit/sign/secrets.ts";
import { verifyToken } from "../../kit/sign/token.ts";
import { type Principal, principalKey } from "../ports/principal.ts";
import type { SessionTokens } from "../ports/session-tokens.ts";
import type { ApiKeyStore, KeyIdentity } from "../store/api-keys.ts";
import type { EnvironmentKeyIdentity, EnvironmentKeyStore } from "../store/environment-keys.ts";
import type { IdentityStore } from "../store/identities.ts";
import type { WorkspaceStore } from "../store/workspaces.ts";
import { type Credential, credentialOf } from "./credential.ts";
import { isOpen } from "./policy.ts";
import { inChosenWorkspace, WORKSPACE_HEADER } from "./workspace-choice.ts";

export interface AuthenticateDeps {
  readonly apiKeys: Pick<ApiKeyStore, "findByHash" | "touch">;
  readonly identities: Pick<IdentityStore, "findHandAgent">;
  readonly sessionTokens: Pick<SessionTokens, "verify">;
  readonly environmentKeys: Pick<EnvironmentKeyStore, "findByHash" | "findWorkToken" | "touch">;
  readonly workspaces: Pick<WorkspaceStore, "find">;
  readonly clock: Clock;
  readonly log: Logger;
  /** How often the credential of an open stream is looked at again. */
  readonly recheckEveryMs: number;
}

/** Who may take the tokens that hand agents sign. */
export const HAND_AGENT_AUDIENCE = "tendon";
const HAND_AGENT_TOKEN_MAX_TTL_MS = 5 * 60_000;

/** How long a key that was found good is believed without asking the database. */
const KEY_CACHE_MS = 10_000;
const MAX_CACHED_KEYS = 10_000;
const MINUTE_MS = 60_000;

interface CachedKey {
  readonly identity: KeyIdentity;
  readonly untilMs: number;
}

/** A token that was found good: an agent shows the same one on every stream that it opens. */
interface CachedToken {
  readonly principal: Principal & { readonly kind: "hand_agent" };
  readonly untilMs: number;
  /** By the wall clock. */
  readonly expiresAtMs: number;
}

export class Authenticator {
  private readonly deps: AuthenticateDeps;
  /** By hash; the oldest goes first. Keys that were refused are not kept: guesses cannot fill it. */
  private readonly cache = new Map<string, CachedKey>();
  private readonly tokens = new Map<string, CachedToken>();
  /** In which minute the use of an environment's key was noted. */
  private readonly touched = new Map<string, number>();
  /** What was read before something was forgotten is not kept. */
  private forgotten = 0;

  constructor(deps: AuthenticateDeps) {
    this.deps = deps;
  }

  /** Throws UNAUTHENTICATED, KEY_EXPIRED, HAND_AGENT_REVOKED, or UNAVAILABLE when the database cannot be asked. */
  async identify(credential: Credential): Promise<Principal> {
    switch (credential.kind) {
      case "none":
        return { kind: "anonymous" };
      case "api_key":
        return principalOfKey(await this.findKey(credential.secret), this.deps.clock.nowMs());
      case "hand_agent":
        return this.handAgent(credential.token, credential.subject);
      case "session":
        return { kind: "session", ...(await this.deps.sessionTokens.verify(credential.token)) };
      case "environment_key":
        return this.worker(credential.secret);
      case "work_token":
        return this.workItem(credential.secret);
    }
  }

  /** Whether the holder still may: tokens run out without ending a stream, revocation ends it. */
  async recheck(credential: Credential): Promise<void> {
    if (credential.kind === "hand_agent") await this.livingAgent(credential.subject);
    else if (credential.kind !== "session") await this.identify(credential);
  }

  /** Asks the database about this key or hand agent at its next use; without an id, about all. For what was revoked here. */
  forget(id?: string): void {
    this.forgotten += 1;
    for (const [hash, { identity }] of this.cache) {
      if (id === undefined || identity.apiKeyId === id) this.cache.delete(hash);
    }
    for (const [hash, { principal }] of this.tokens) {
      if (id === undefined || principal.handAgentId === id) this.tokens.delete(hash);
    }
  }

  private async findKey(secret: string): Promise<KeyIdentity> {
    const { apiKeys, clock, log } = this.deps;
    const hash = hashSecret(secret);
    const cached = this.cache.get(hash);
    if (cached !== undefined && cached.untilMs > clock.monotonicMs()) return cached.identity;
    this.cache.delete(hash);
    const identity = await apiKeys.findByHash(Buffer.from(hash, "hex"));
    if (identity === undefined) throw new TendonError("UNAUTHENTICATED", "the API key is not known here");
    principalOfKey(identity, clock.nowMs());
    const oldest = this.cache.size >= MAX_CACHED_KEYS ? this.cache.keys().next().value : undefined;
    if (oldest !== undefined) this.cache.delete(oldest);
    this.cache.set(hash, { identity, untilMs: clock.monotonicMs() + KEY_CACHE_MS });
    if (Math.floor((identity.lastUsedAtMs ?? 0) / MINUTE_MS) < Math.floor(clock.nowMs() / MINUTE_MS)) {
      apiKeys
        .touch(identity.apiKeyId)
        .catch((error: unknown) => log.debug({ error: messageOf(error) }, "a key's use was not noted"));
    }
    return identity;
  }

  /** Asked for at every call: whoever is revoked is so with the next one, on every replica. */
  private async worker(secret: string): Promise<Principal> {
    const { environmentKeys, log } = this.deps;
    const identity = await environmentKeys.findByHash(Buffer.from(hashSecret(secret), "hex"));
    if (identity === undefined)
      throw new TendonError("UNAUTHENTICATED", "the environment key is not known here");
    const { environmentKeyId: keyId, environmentId, workspaceId } = checkedWorker(identity);
    const minute = Math.floor(this.deps.clock.nowMs() / MINUTE_MS);
    if (this.touched.get(keyId) !== minute) {
      if (this.touched.size >= MAX_CACHED_KEYS) this.touched.clear();
      this.touched.set(keyId, minute);
      environmentKeys
        .touch(keyId)
        .catch((error: unknown) => log.debug({ error: messageOf(error) }, "a key's use was not noted"));
    }
    return { kind: "worker", keyId, environmentId, workspaceId };
  }

  private async workItem(token: string): Promise<Principal> {
    const identity = await this.deps.environmentKeys.findWorkToken(Buffer.from(hashSecret(token), "hex"));
    if (identity === undefined)
      throw new TendonError("UNAUTHENTICATED", "the token is of no work item that is remembered here");
    const {
      environmentKeyId: _,
      isRevoked: _revoked,
      isExpired: _expired,
      ...item
    } = checkedWorker(identity);
    return { kind: "work_item", ...item };
  }

  private async handAgent(token: string, subject: string): Promise<Principal> {
    const { clock } = this.deps;
    const hash = hashSecret(token);
    const cached = this.tokens.get(hash);
    if (cached && cached.untilMs > clock.monotonicMs() && cached.expiresAtMs > clock.nowMs()) {
      return cached.principal;
    }
    this.tokens.delete(hash);
    const { forgotten } = this;
    const { principal, expiresAtMs } = await this.verifyAgent(token, subject);
    if (forgotten === this.forgotten) {
      const oldest = this.tokens.size >= MAX_CACHED_KEYS ? this.tokens.keys().next().value : undefined;
      if (oldest !== undefined) this.tokens.delete(oldest);
      this.tokens.set(hash, { principal, untilMs: clock.monotonicMs() + KEY_CACHE_MS, expiresAtMs });
    }
    return principal;
  }

  private async verifyAgent(token: string, subject: string) {
    const { handAgentId, workspaceId, pool, publicKey } = await this.livingAgent(subject);
    const x = Buffer.from(publicKey).toString("base64url");
    const jwk: PublicKeyJwk = { kty: "OKP", crv: "Ed25519", x };
    const { expiresAtMs } = await verifyToken(() => jwk, token, {
      audience: HAND_AGENT_AUDIENCE,
      clock: this.deps.clock,
      maxTtlMs: HAND_AGENT_TOKEN_MAX_TTL_MS,
    });
    return { principal: { kind: "hand_agent", handAgentId, workspaceId, pool } as const, expiresAtMs };
  }

  private async livingAgent(handAgentId: string) {
    const identity = await this.deps.identities.findHandAgent(handAgentId);
    if (identity === undefined) throw new TendonError("UNAUTHENTICATED", "the token is not valid");
    if (identity.revoked) {
      throw new TendonError(
        "HAND_AGENT_REVOKED",
        "this hand agent was revoked; enrol it again with a new join token",
        {
          hand_agent_id: handAgentId,
        },
      );
    }
    return identity;
  }
}

function principalOfKey(key: KeyIdentity, nowMs: number): Principal {
  const { apiKeyId: keyId, role, workspaceId } = key;
  if (key.revoked) throw new TendonError("UNAUTHENTICATED", "the API key was revoked", { api_key_id: keyId });
  if (key.workspaceArchived) {
    throw new TendonError("UNAUTHENTICATED", "the API key's workspace was archived", { api_key_id: keyId });
  }
  if (key.expiresAtMs !== undefined && key.expiresAtMs <= nowMs) {
    throw new TendonError("KEY_EXPIRED", "the API key has expired", { api_key_id: keyId });
  }
  if (role === "peer") return { kind: "peer", keyId };
  if (role !== "client") return { kind: role, keyId, workspaceId };
  if (workspaceId === undefined)
    throw new TendonError("UNAUTHENTICATED", "the API key belongs to no workspace");
  return { kind: "client", keyId, workspaceId };
}

function checkedWorker<I extends EnvironmentKeyIdentity>(identity: I): I {
  const facts = { environment_key_id: identity.environmentKeyId };
  if (identity.isRevoked) throw new TendonError("UNAUTHENTICATED", "the environment key was revoked", facts);
  if (identity.isExpired) throw new TendonError("KEY_EXPIRED", "the environment key has expired", facts);
  return identity;
}

const stopWatchingKey = createContextKey<() => void>("stop watching the credential");

/** Leaves the principal in the call's context. Open methods pass unseen: see policy.ts. */
export function authenticateInterceptor(
  deps: AuthenticateDeps,
  authenticator: Authenticator,
): RpcInterceptor {
  return {
    async onCall(context) {
      if (isOpen(context.method)) return;
      const credential = credentialOf(context.requestHeaders);
      const principal = await authenticator.identify(credential);
      const chosen = context.requestHeaders.get(WORKSPACE_HEADER);
      context.set(principalKey, await inChosenWorkspace(deps.workspaces, principal, chosen));
      if (streamsRequests(context.method) || streamsResponses(context.method)) {
        context.set(stopWatchingKey, watch(deps, authenticator, credential, context));
      }
    },
    onEnd: (context) => context.get(stopWatchingKey)?.(),
  };
}

/** Looks again and again; a database that does not answer ends no stream. */
function watch(
  { clock, recheckEveryMs }: AuthenticateDeps,
  authenticator: Authenticator,
  credential: Credential,
  context: RpcContext,
): () => void {
  let busy = false;
  const look = async () => {
    try {
      await authenticator.recheck(credential);
    } catch (error) {
      const refused = error instanceof TendonError && error.reason !== "UNAVAILABLE";
      if (refused) context.fail(error);
    }
  };
  return clock.every(recheckEveryMs, () => {
    if (busy) return;
    busy = true;
    void look().finally(() => {
      busy = false;
    });
  });
}

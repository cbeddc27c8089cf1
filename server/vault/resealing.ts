/**
 * Moves credentials to the proxies' newest key, a few at a time: once none is sealed to an old key, that one can go.
 * Whichever replica has a proxy does it; two that do it at once waste work and harm nothing, for what was stored meanwhile stays.
 */
import type { Clock } from "../../kit/clock.ts";
import { messageOf, TendonError } from "../../kit/errors.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { AuditStore } from "../store/audit.ts";
import type { CredentialStore, StoredCredential } from "../store/credentials.ts";
import { reseal } from "./proxy-asks.ts";
import type { Sealing } from "./sealing.ts";

export interface ResealingDeps {
  readonly credentials: Pick<CredentialStore, "sealedToOthers" | "storeResealed">;
  readonly audit: Pick<AuditStore, "record">;
  readonly proxies: Pick<ProxyDirectory, "ask" | "sealingKeys">;
  readonly sealing: Sealing;
  readonly replicaId: string;
  readonly clock: Clock;
  readonly log: Logger;
}

const EVERY_MS = 2_000;
const BATCH = 20;
/** Credentials that a proxy refused to seal anew, and for how long they are left alone. */
const MAX_REFUSED = 1_000;
const REFUSED_FOR_MS = 600_000;

export class Resealing implements Service {
  readonly name = "re-sealing";
  private readonly deps: ResealingDeps;
  private readonly refused = new Map<string, number>();
  private running: Promise<void> | undefined;
  private stopTicking: (() => void) | undefined;

  constructor(deps: ResealingDeps) {
    this.deps = deps;
  }

  async start(): Promise<void> {
    this.stopTicking = this.deps.clock.every(EVERY_MS, () => {
      this.running ??= this.tick().finally(() => {
        this.running = undefined;
      });
    });
  }

  async stop(): Promise<void> {
    this.stopTicking?.();
    await this.running;
  }

  private async tick(): Promise<void> {
    if (this.deps.proxies.sealingKeys().length === 0) return;
    try {
      await this.resealSome();
    } catch (error) {
      this.deps.log.warn({ error: messageOf(error) }, "credentials could not be sealed to the newest key");
    }
  }

  private async resealSome(): Promise<void> {
    const { clock, credentials, sealing } = this.deps;
    const { keyId } = await sealing.currentKey();
    for (const [id, untilMs] of this.refused) if (untilMs < clock.monotonicMs()) this.refused.delete(id);
    const found = await credentials.sealedToOthers({
      keyId,
      without: [...this.refused.keys()],
      limit: BATCH,
    });
    for (const stored of found) await this.resealOne(stored);
  }

  private async resealOne(stored: StoredCredential): Promise<void> {
    const { credential, sealed, version } = stored;
    const { credentials, proxies, replicaId } = this.deps;
    if (sealed === undefined) return;
    const actor = `server ${replicaId}`;
    try {
      const anew = await reseal(proxies, { ...stored, sealed }, {});
      const detail = { from: credential.sealingKeyId, to: anew.keyId };
      const audit = { actor, action: "credential.reseal", subject: credential.id, detail };
      await credentials.storeResealed({
        credentialId: credential.id,
        expectedVersion: version,
        sealed: anew,
        audit,
      });
    } catch (error) {
      if (!(error instanceof TendonError) || error.reason !== "SEAL_REFUSED") throw error;
      await this.leaveAlone(stored, error.metadata.refusal ?? "");
    }
  }

  /** One that nobody can open any more, for one, because its key was lost. */
  private async leaveAlone({ credential, workspaceId }: StoredCredential, refusal: string): Promise<void> {
    const { audit, clock, log, replicaId } = this.deps;
    log.warn({ credentialId: credential.id, refusal }, "a proxy refused to seal a credential anew");
    const oldest = this.refused.size >= MAX_REFUSED ? this.refused.keys().next().value : undefined;
    if (oldest !== undefined) this.refused.delete(oldest);
    this.refused.set(credential.id, clock.monotonicMs() + REFUSED_FOR_MS);
    const entry = { action: "credential.reseal_refused", subject: credential.id, workspaceId };
    await audit.record({ actor: `server ${replicaId}`, ...entry, detail: { reason: refusal } });
  }
}

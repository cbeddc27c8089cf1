/**
 * What this proxy does with credentials, on its way to the audit log (S5). Written a moment later, so that no request waits
 * for it; the same thing within that moment is one record with a count. When too much waits, nothing is used any more:
 * `requireRoom` says so before a secret is touched.
 */
import type { Clock } from "../../kit/clock.ts";
import { messageOf, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import type { Client } from "../../kit/rpc/client.ts";
import type { CredentialService } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { CredentialRefusal } from "./refusal.ts";

export interface UseRecord {
  /** Empty for a refusal that came before one was found. */
  readonly credentialId: string;
  /** Empty when for none. */
  readonly sessionId: string;
  readonly action: "inject" | "refuse" | "refresh" | "validate";
  /** Host, with its port where it is none of the usual. */
  readonly host: string;
  /** An HTTP status, or a reason in lower case. */
  readonly result: string;
}

interface Waiting extends UseRecord {
  readonly id: string;
  count: number;
}

export interface UseJournalDeps {
  readonly credentials: Pick<Client<typeof CredentialService>, "recordUses">;
  readonly clock: Clock;
  readonly log: Logger;
}

const FLUSH_EVERY_MS = 250;
const WRITE_WITHIN_MS = 5_000;
const BATCH = 500;
const MAX_WAITING = 5_000;
const LAST_FLUSH_MS = 3_000;

export class UseJournal implements Service {
  readonly name = "record of uses";
  private readonly deps: UseJournalDeps;
  private waiting = new Map<string, Waiting>();
  /** Sent and not acknowledged; their counts stay as they are. */
  private sending: Waiting[] = [];
  private flushing: Promise<void> | undefined;
  private stopFlushing: (() => void) | undefined;

  constructor(deps: UseJournalDeps) {
    this.deps = deps;
  }

  async start(): Promise<void> {
    this.stopFlushing = this.deps.clock.every(FLUSH_EVERY_MS, () => void this.flush());
  }

  /** What waits is written, if the server takes it soon. */
  async stop(): Promise<void> {
    this.stopFlushing?.();
    const untilMs = this.deps.clock.monotonicMs() + LAST_FLUSH_MS;
    while (this.size > 0 && this.deps.clock.monotonicMs() < untilMs) {
      const before = this.size;
      await this.flush();
      if (this.size >= before) break;
    }
    if (this.size > 0)
      this.deps.log.error({ records: this.size }, "uses of credentials were not written down");
  }

  /** Throws a CredentialRefusal when uses cannot be written down. */
  requireRoom(): void {
    if (this.size < MAX_WAITING) return;
    throw new CredentialRefusal(
      "AUDIT_UNAVAILABLE",
      "no credential is used while its use cannot be recorded",
    );
  }

  record(use: UseRecord): void {
    const key = JSON.stringify(use);
    const known = this.waiting.get(key);
    if (known !== undefined) known.count += 1;
    // Refusals come without asking for room; beyond twice of it they are only counted by what stands there already.
    else if (this.size < 2 * MAX_WAITING) this.waiting.set(key, { ...use, id: newId("audit"), count: 1 });
  }

  private get size(): number {
    return this.waiting.size + this.sending.length;
  }

  private flush(): Promise<void> {
    this.flushing ??= this.flushOnce().finally(() => {
      this.flushing = undefined;
    });
    return this.flushing;
  }

  private async flushOnce(): Promise<void> {
    if (this.sending.length === 0) {
      this.sending = [...this.waiting.values()];
      this.waiting = new Map();
    }
    while (this.sending.length > 0) {
      const batch = this.sending.slice(0, BATCH);
      try {
        await this.deps.credentials.recordUses({ records: batch }, { deadlineMs: WRITE_WITHIN_MS });
      } catch (error) {
        this.deps.log.warn({ error: messageOf(error) }, "uses of credentials could not be recorded yet");
        // A batch that the server will never take must not stand in the way of the next.
        if (!(error instanceof TendonError && error.reason === "INVALID_FIELD")) return;
      }
      this.sending = this.sending.slice(batch.length);
    }
  }
}

/**
 * Whether the hashes of an exported log fit its events, and what was signed fits the hashes: a log that was changed is not
 * taken for the one it was. Whose keys signed is not known here.
 */
import { isSigned } from "../../kit/chain/checkpoint.ts";
import { eventHash, originHash, type SessionChain, sha256Hex } from "../../kit/chain/event-hash.ts";
import { invalidField, TendonError } from "../../kit/errors.ts";
import type { LogEvent } from "../../kit/log-file/log-lines.ts";

export class ChainCheck {
  private readonly sessionId: string;
  private readonly newestHash: string;
  private previous: string;

  constructor(sessionId: string, chain: SessionChain) {
    this.sessionId = sessionId;
    this.newestHash = chain.hash;
    this.previous = originHash(sessionId, chain.origin);
  }

  /** Events in order. INVALID_FIELD for the first that does not fit. */
  add(event: LogEvent, path: string): void {
    const { payload, internal, internalSha256 } = event;
    this.previous = eventHash(this.previous, this.sessionId, {
      ...event,
      payloadSha256: sha256Hex(payload),
      internalSha256: internal === undefined ? internalSha256 : sha256Hex(internal),
    });
    if (event.hash !== this.previous) {
      throw invalidField(`${path}.hash`, "does not fit the event: the log was changed");
    }
    const { position, checkpoint } = event;
    if (checkpoint === undefined) return;
    if (checkpoint.hash !== event.hash) {
      throw invalidField(`${path}.checkpoint`, "is of another hash than the event's: the log was changed");
    }
    if (!isSigned({ sessionId: this.sessionId, position, ...checkpoint })) {
      throw invalidField(`${path}.checkpoint`, "is not signed by its key: the log was changed");
    }
  }

  end(): void {
    if (this.previous === this.newestHash) return;
    const problem = "line 1.session.chain.hash: is not that of the last event: the log was changed";
    throw new TendonError("INVALID_FIELD", problem, { field: "line 1.session.chain.hash", line: "1" });
  }
}

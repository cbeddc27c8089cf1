/**
 * Whether a log fits itself (pure): each hash its event and the hash before, each checkpoint its signature and the hash at
 * its position. Whose keys they are that signed is for the caller to say.
 */
import { type Checkpoint, isSigned } from "../../kit/chain/checkpoint.ts";
import { eventHash, type HashedEvent, originHash, sha256Hex } from "../../kit/chain/event-hash.ts";
import type { LogEvent, LogHeader } from "../../kit/log-file/log-lines.ts";

export interface Problem {
  /** First position that does not fit. */
  readonly position: number;
  readonly problem: string;
}

/** An event as it is compared with another log's. */
export interface SeenEvent extends HashedEvent {
  /** Undefined when it has none, or is not hashed. */
  readonly hash: string | undefined;
  /** Whether `internalSha256` says what there is. */
  readonly knowsInternal: boolean;
}

export interface KeyUse {
  /** Of the first checkpoint that the key signed. */
  readonly firstPosition: number;
  count: number;
}

const MAX_PROBLEMS = 100;
/** Where servers sign. */
const RESTS = new Set(["session.status_idle", "session.status_terminated", "session.forked"]);
/** A server signs within seconds; when none lives, the next one does, and late. */
const UNSIGNED_FOR_MS = 60_000;
const LATE_MS = 60_000;

export interface Pins {
  /** What others signed counts for nothing. */
  readonly keys?: ReadonlySet<string> | undefined;
  /** Whether signatures that are late or missing make the log a misfit, where they are else worth a note. */
  readonly areStrict?: boolean;
}

export class LogVerifier {
  readonly problems: Problem[] = [];
  readonly notes: string[] = [];
  readonly keys = new Map<string, KeyUse>();
  events = 0;
  checkpoints = 0;
  /** Newest position that fits a checkpoint, and when that was signed. */
  signedUpTo = 0;
  signedAt: Date | undefined;
  private readonly header: LogHeader;
  private readonly pins: Pins;
  private readonly late: { position: number; minutes: number }[] = [];
  /** Whether nothing but events of hands follows on the newest signed position. */
  private isTailOfHands = true;
  private newestAt: Date | undefined;
  /** Undefined for a log without hashes. */
  private previous: string | undefined;

  constructor(header: LogHeader, pins: Pins = {}) {
    this.header = header;
    this.pins = pins;
    this.previous = header.chain && originHash(header.sessionId, header.chain.origin);
  }

  add(event: LogEvent): SeenEvent {
    const { position, hash } = event;
    if (position !== this.events + 1) this.report(this.events + 1, `is missing, ${position} follows`);
    this.events = position;
    const seen = this.seen(event);
    this.newestAt = event.createdAt;
    if (this.previous !== undefined) {
      this.checkHash(seen, this.previous);
      this.checkSigned(event);
      this.previous = hash ?? this.previous;
    }
    return seen;
  }

  /** Nothing follows. */
  end(): void {
    const { head, chain } = this.header;
    if (this.events < head) this.report(this.events + 1, `is missing, the session has ${head} events`);
    if (chain && this.events === head && chain.hash !== this.previous) {
      this.report(Math.max(head, 1), "the session's own hash is not that of its newest event");
    }
  }

  /** After `end`. What was kept vouches for the events up to a position, whenever they were signed. */
  endSignatures(keptUpTo: number): void {
    for (const { position, minutes } of this.late) {
      const text = `was signed ${minutes} minutes late: what was changed until then is not shown by it`;
      if (this.pins.areStrict && position > keptUpTo) this.report(position, text);
      else this.note(`position ${position} ${text}`);
    }
    const known = Math.max(this.signedUpTo, keptUpTo);
    if (!this.header.chain || !this.newestAt || known >= this.events) return;
    const from = known + 1;
    const which = from === this.events ? `position ${from} is` : `positions ${from} to ${this.events} are`;
    if (!this.isOld(this.newestAt)) this.note(`${which} not signed yet`);
    else if (!this.header.isAtRest)
      this.note(`${which} not signed: the server says that the session has work`);
    else if (this.isTailOfHands && this.signedUpTo > 0) this.note(`${which} not signed: events of hands`);
    else if (!this.pins.areStrict) this.note(`${which} not signed, though the session rests`);
    // What does not fit anyway names its own position.
    else if (this.problems.length === 0)
      this.report(
        from,
        `${from === this.events ? "is" : "and what follows are"} not signed, though the session rests`,
      );
  }

  report(position: number, problem: string): void {
    if (this.problems.length < MAX_PROBLEMS) this.problems.push({ position, problem });
  }

  private seen(event: LogEvent): SeenEvent {
    const { payload, internal, internalSha256 } = event;
    return {
      ...event,
      payloadSha256: sha256Hex(payload),
      internalSha256: internal === undefined ? internalSha256 : sha256Hex(internal),
      knowsInternal: this.header.withInternal || this.header.chain !== undefined,
    };
  }

  private checkHash(event: SeenEvent, previous: string): void {
    if (event.hash === undefined) this.report(event.position, "has no hash");
    else if (event.hash !== eventHash(previous, this.header.sessionId, event)) {
      this.report(event.position, "does not fit its hash and the one before");
    }
  }

  private checkSigned(event: LogEvent): void {
    const { position, checkpoint } = event;
    const copied = this.header.chain?.origin.position ?? 0;
    if (checkpoint) {
      this.checkCheckpoint({ sessionId: this.header.sessionId, position, ...checkpoint }, event);
      const lateMs = checkpoint.signedAt.getTime() - event.createdAt.getTime();
      if (lateMs > LATE_MS && position > copied && this.late.length < MAX_PROBLEMS)
        this.late.push({ position, minutes: Math.floor(lateMs / 60_000) });
      return;
    }
    if (!event.type.startsWith("hand.")) this.isTailOfHands = false;
    if (!RESTS.has(event.type) || position <= copied) return;
    if (this.isOld(event.createdAt))
      this.report(position, "the session came to rest, but there is no checkpoint");
  }

  /** A time that has not come yet is none that a database gave. */
  private isOld(time: Date): boolean {
    return Math.abs(this.header.exportedAt.getTime() - time.getTime()) > UNSIGNED_FOR_MS;
  }

  private checkCheckpoint(checkpoint: Checkpoint, event: LogEvent): void {
    const { position, publicKey } = checkpoint;
    this.checkpoints += 1;
    const isPinned = this.pins.keys?.has(publicKey) ?? true;
    if (!isSigned(checkpoint)) {
      this.report(position, "the checkpoint's signature is not that of its key");
      return;
    }
    if (!isPinned) {
      this.report(position, `is signed by ${publicKey}, which is none of the pinned keys`);
      return;
    }
    const use = this.keys.get(publicKey) ?? { firstPosition: position, count: 0 };
    use.count += 1;
    this.keys.set(publicKey, use);
    if (checkpoint.hash === event.hash) {
      this.signedUpTo = position;
      this.isTailOfHands = true;
      this.signedAt = checkpoint.signedAt;
    } else this.report(position, changedAfter(this.signedUpTo, position));
  }

  private note(text: string): void {
    if (this.notes.length < MAX_PROBLEMS) this.notes.push(text);
  }
}

/** A checkpoint is not that of its position, while the one at `fitting` is. */
export function changedAfter(fitting: number, position: number): string {
  const where =
    fitting + 1 === position ? "it was" : `something from position ${fitting + 1} to ${position} was`;
  return `is not what was signed: ${where} changed, and all hashes after it`;
}

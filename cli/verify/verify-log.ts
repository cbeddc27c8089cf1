/** Compares a log with itself, and with what somebody kept of it. */
import type { Checkpoint } from "../../kit/chain/checkpoint.ts";
import { isTendonError } from "../../kit/errors.ts";
import type { LogHeader } from "../../kit/log-file/log-lines.ts";
import { changedAfter, LogVerifier, type Problem, type SeenEvent } from "./log-verifier.ts";
import { BrokenLog, type OpenLog } from "./open-log.ts";

export interface Kept {
  /** An export of the same session. */
  readonly log?: OpenLog | undefined;
  /** Checkpoints of the session. */
  readonly checkpoints?: readonly Checkpoint[];
  /** Keys that alone may have signed. */
  readonly pinnedKeys?: ReadonlySet<string> | undefined;
  /** A log that is signed late, or not up to its end, does not fit. */
  readonly isStrict?: boolean;
}

export interface UsedKey {
  /** 32 bytes in base64url. */
  readonly publicKey: string;
  readonly firstPosition: number;
  readonly checkpoints: number;
  /** Whether the server that gave the log says that it is its own. */
  readonly isServers: boolean;
}

export interface Verdict {
  readonly header: LogHeader;
  readonly events: number;
  readonly checkpoints: number;
  /** Newest position that fits a signature; 0 for none. */
  readonly signedUpTo: number;
  readonly signedAt: Date | undefined;
  /** In the order of positions; empty when all fits. */
  readonly problems: readonly Problem[];
  readonly notes: readonly string[];
  readonly keys: readonly UsedKey[];
}

export async function verifyLog(log: OpenLog, kept: Kept = {}): Promise<Verdict> {
  const { header } = log;
  const verifier = new LogVerifier(header, { keys: kept.pinnedKeys, areStrict: kept.isStrict ?? false });
  const others = kept.log && new Other(kept.log);
  const checkpoints = new KeptCheckpoints(kept.checkpoints ?? []);
  try {
    for await (const event of log.events) {
      const seen = verifier.add(event);
      await others?.compare(seen, verifier);
      checkpoints.compare(seen, verifier);
    }
    verifier.end();
  } catch (error) {
    verifier.report(verifier.events + 1, unreadable(error));
  }
  await others?.end(verifier);
  checkpoints.end(verifier);
  verifier.endSignatures(Math.max(others?.events ?? 0, checkpoints.fitting));
  return verdictOf(header, verifier);
}

/** What is wrong with the log; whatever else is wrong is thrown on. */
function unreadable(error: unknown): string {
  if (error instanceof BrokenLog) return `cannot be read: ${error.message}`;
  // The server knows the session, or there would be no first line.
  if (isTendonError(error, "NOT_FOUND"))
    return "is missing in the database, or the session was deleted just now";
  throw error;
}

/** Reads a kept log beside another one. */
class Other {
  private readonly log: OpenLog;
  private readonly verifier: LogVerifier;
  private ended = false;

  constructor(log: OpenLog) {
    this.log = log;
    this.verifier = new LogVerifier(log.header);
  }

  /** How many it has. */
  get events(): number {
    return this.verifier.events;
  }

  async compare(seen: SeenEvent, verifier: LogVerifier): Promise<void> {
    const kept = await this.next();
    const difference = kept && differenceOf(seen, kept);
    if (difference) verifier.report(seen.position, `${difference} is not what was kept`);
  }

  async end(verifier: LogVerifier): Promise<void> {
    const kept = await this.next();
    if (kept) verifier.report(verifier.events + 1, `is missing, it was kept (${kept.type})`);
    await this.log.events.return();
  }

  private async next(): Promise<SeenEvent | undefined> {
    if (this.ended) return undefined;
    const next = await this.log.events.next();
    if (!next.done) return this.verifier.add(next.value);
    this.ended = true;
    return undefined;
  }
}

function differenceOf(one: SeenEvent, other: SeenEvent): string | undefined {
  if (one.position !== other.position) return "its position";
  if (one.id !== other.id) return "its id";
  if (one.type !== other.type) return "its type";
  if (one.createdAt.getTime() !== other.createdAt.getTime()) return "its time";
  if (one.threadId !== other.threadId) return "its thread";
  if (one.payloadSha256 !== other.payloadSha256) return "its payload";
  const isKnown = one.knowsInternal && other.knowsInternal;
  if (isKnown && one.internalSha256 !== other.internalSha256) return "its internal";
  if (other.hash !== undefined && one.hash !== other.hash) return "its hash";
  return undefined;
}

class KeptCheckpoints {
  /** In the order of positions. */
  private readonly left: Checkpoint[];
  fitting = 0;

  constructor(checkpoints: readonly Checkpoint[]) {
    this.left = [...checkpoints].sort((one, other) => one.position - other.position);
  }

  compare({ position, hash }: SeenEvent, verifier: LogVerifier): void {
    while (this.left[0] && this.left[0].position <= position) {
      const kept = this.left.shift()!;
      if (kept.position !== position) continue;
      if (kept.hash === hash) this.fitting = position;
      else verifier.report(position, changedAfter(this.fitting, position));
    }
  }

  end(verifier: LogVerifier): void {
    const last = this.left.at(-1);
    if (last) verifier.report(verifier.events + 1, `is missing: a kept checkpoint is at ${last.position}`);
  }
}

function verdictOf(header: LogHeader, verifier: LogVerifier): Verdict {
  const { events, checkpoints, signedUpTo, signedAt, notes } = verifier;
  const problems = [...verifier.problems].sort((one, other) => one.position - other.position);
  const keys = [...verifier.keys].map(([publicKey, { firstPosition, count }]) => ({
    publicKey,
    firstPosition,
    checkpoints: count,
    isServers: publicKey === header.serverKey,
  }));
  return { header, events, checkpoints, signedUpTo, signedAt, problems, notes, keys };
}

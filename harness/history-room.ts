/**
 * How much memory the histories of all sessions of this harness take together, and who may read more of one.
 *
 * M1 What is read from the server is reserved first. What would not fit waits, the longest waiting session first, also where
 *    it was given back meanwhile: a large one is not passed by small ones for ever. Few read at a time.
 * M2 Nobody waits for somebody who waits: when the first does not get its room soon, others make it. They give their sessions
 *    back with their next step, as a harness does that stops; nothing is lost, and each has had its turn before.
 * M3 What does not get room in time is given back to the server, which offers it to other harnesses first.
 * M4 A history that is larger than all there is has no room here or anywhere: it is said so, instead of waiting.
 * M5 `OWN_BYTES` of each session do not count, so that sessions with small histories never wait.
 */
import { getHeapStatistics } from "node:v8";
import type { Clock } from "../kit/clock.ts";
import { chooseToLeave, type Holder, OWN_BYTES, shareOf } from "./history-room-rules.ts";

/** Of one session's history, beyond which nothing is read. */
export class HistoryTooLarge extends Error {
  override readonly name = "HistoryTooLarge";
}

/** The session is to be given back, so that another one gets its turn, here or there. */
export class NoRoom extends Error {
  override readonly name = "NoRoom";
}

/** Of the heap: a history is there once between two requests, and up to five times while one is put together. */
const HEAP_SHARE = 1 / 8;
/** Each holds what it reads a second time until it is a text. */
const READS_AT_A_TIME = 4;
/** Turns often end by themselves; after this others are asked to make room. */
const PATIENCE_MS = 3_000;
/** For one try, at this harness. */
const LONGEST_WAIT_MS = 120_000;
const LOOK_EVERY_MS = 500;
/** Who was given back is not forgotten for so long. */
const REMEMBERED_MS = 10 * 60_000;

/** By default; a whole number. */
export function defaultHistoryBytes(): number {
  return Math.floor(getHeapStatistics().heap_size_limit * HEAP_SHARE);
}

interface Waiting {
  readonly share: HistoryShare;
  readonly bytes: number;
  /** Since when the session waits, by all its tries. */
  readonly sinceMs: number;
  /** Of this try. */
  readonly triedMs: number;
  readonly granted: () => void;
  readonly refused: (error: Error) => void;
}

export class HistoryRoom {
  readonly maxBytes: number;
  private readonly clock: Clock;
  private readonly shares = new Set<HistoryShare>();
  private queue: Waiting[] = [];
  private reads = 0;
  private taken = 0;
  /** Since when sessions wait that were given back without room, by their ids. */
  private readonly remembered = new Map<string, number>();
  private stopLooking: (() => void) | undefined;

  constructor(maxBytes: number, clock: Clock) {
    this.maxBytes = maxBytes;
    this.clock = clock;
  }

  /** Of the budget, by all sessions together; what is about to be read counts. */
  get takenBytes(): number {
    return this.taken;
  }

  /** Sessions that wait for room. */
  get waiting(): number {
    return this.queue.length;
  }

  /** For a session that this harness gets. `leave` is called at most once, when it is to be given back for want of room. */
  enter(sessionId: string, leave: () => void): HistoryShare {
    const share = new HistoryShare(sessionId, this, leave);
    this.shares.add(share);
    return share;
  }

  /** For shares. */
  left(share: HistoryShare): void {
    this.shares.delete(share);
    this.queue = this.queue.filter((waiting) => waiting.share !== share);
    this.serve();
  }

  /** For shares: one of them takes so much more. */
  changed(share: HistoryShare, byBytes: number): void {
    this.taken += byBytes;
    if (share.takenBytes === 0) share.holdsSinceMs = undefined;
    else share.holdsSinceMs ??= this.clock.monotonicMs();
    this.serve();
  }

  /** For shares. Resolves when it is the share's turn and so many bytes fit; waits until the signal aborts at most. */
  async admit(share: HistoryShare, bytes: number, signal: AbortSignal): Promise<void> {
    const nowMs = this.clock.monotonicMs();
    this.forgetOld(nowMs);
    const sinceMs = this.remembered.get(share.sessionId) ?? nowMs;
    let abort = () => {};
    try {
      await new Promise<void>((resolve, reject) => {
        abort = () => {
          this.queue = this.queue.filter((waiting) => waiting.share !== share);
          reject(signal.reason);
        };
        const waiting = { share, bytes, sinceMs, triedMs: nowMs, granted: resolve, refused: reject };
        this.queue.push(waiting);
        this.queue.sort((a, b) => a.sinceMs - b.sinceMs);
        this.serve();
        // Too late to wait, not to take what is free.
        if (signal.aborted) abort();
        else signal.addEventListener("abort", abort, { once: true });
      });
      this.remembered.delete(share.sessionId);
    } finally {
      signal.removeEventListener("abort", abort);
      this.serve();
    }
  }

  /** For shares. */
  readEnded(): void {
    this.reads -= 1;
    this.serve();
  }

  private serve(): void {
    for (let first = this.queue[0]; first !== undefined; first = this.queue[0]) {
      if (this.reads >= READS_AT_A_TIME || this.missingFor(first) > 0) break;
      this.queue.shift();
      this.reads += 1;
      first.share.reserve(first.bytes);
      // Its turn begins with what it has waited for.
      first.share.holdsSinceMs = this.clock.monotonicMs();
      first.granted();
    }
    const isQuiet = this.queue.length === 0 && this.taken <= this.maxBytes;
    if (isQuiet) this.stopLooking?.();
    if (isQuiet) this.stopLooking = undefined;
    else this.stopLooking ??= this.clock.every(LOOK_EVERY_MS, () => this.look());
  }

  private missingFor({ share, bytes }: Waiting): number {
    return this.taken + share.moreFor(bytes) - this.maxBytes;
  }

  private look(): void {
    const nowMs = this.clock.monotonicMs();
    for (const { share, triedMs, sinceMs } of [...this.queue]) {
      if (nowMs - triedMs >= LONGEST_WAIT_MS) this.sendAway(share, sinceMs);
    }
    this.forgetOld(nowMs);
    const [first] = this.queue;
    const isPatient = first !== undefined && nowMs - first.sinceMs < PATIENCE_MS;
    const missing = first === undefined || isPatient ? this.taken - this.maxBytes : this.missingFor(first);
    if (missing > 0) this.makeRoom(missing, first?.share, nowMs);
    this.serve();
  }

  private forgetOld(nowMs: number): void {
    for (const [sessionId, sinceMs] of this.remembered) {
      if (nowMs - sinceMs >= REMEMBERED_MS) this.remembered.delete(sessionId);
    }
  }

  private makeRoom(missingBytes: number, forShare: HistoryShare | undefined, nowMs: number): void {
    const holders = [...this.shares]
      .filter((share) => share !== forShare)
      .map((share): Holder & { share: HistoryShare; sinceMs: number } => {
        const waiting = this.queue.find((waiting) => waiting.share === share);
        const heldMs = nowMs - (share.holdsSinceMs ?? nowMs);
        const { takenBytes: bytes, leaves } = share;
        return {
          bytes,
          heldMs,
          waits: waiting !== undefined,
          leaves,
          share,
          sinceMs: waiting?.sinceMs ?? nowMs,
        };
      });
    for (const { share, sinceMs } of chooseToLeave(missingBytes, holders)) this.sendAway(share, sinceMs);
  }

  /** With its next step, or at once if it waits. */
  private sendAway(share: HistoryShare, sinceMs: number): void {
    this.remembered.set(share.sessionId, sinceMs);
    const waiting = this.queue.find((waiting) => waiting.share === share);
    this.queue = this.queue.filter((other) => other !== waiting);
    share.sendAway();
    waiting?.refused(new NoRoom("there was no room for the session's history"));
  }
}

/** What one session takes. */
export class HistoryShare {
  readonly sessionId: string;
  /** For the room: since when it takes part of the budget. */
  holdsSinceMs: number | undefined;
  leaves = false;
  private held = 0;
  /** What it is about to read. */
  private reserved = 0;
  private taken = 0;
  private readonly room: HistoryRoom;
  private readonly leave: () => void;

  constructor(sessionId: string, room: HistoryRoom, leave: () => void) {
    this.sessionId = sessionId;
    this.room = room;
    this.leave = leave;
  }

  /** Of the budget. */
  get takenBytes(): number {
    return this.taken;
  }

  get maxBytes(): number {
    return this.room.maxBytes;
  }

  /** Of the budget, if so many bytes came besides. */
  moreFor(bytes: number): number {
    return shareOf(this.held + this.reserved + bytes) - this.taken;
  }

  /** So much of these bytes as the session may have at all. */
  possible(bytes: number): number {
    return Math.max(0, Math.min(bytes, this.maxBytes + OWN_BYTES - this.held - this.reserved));
  }

  /** So many bytes are held now. False where the session alone has more than all may have. */
  holds(bytes: number): boolean {
    this.held = bytes;
    this.recount();
    return shareOf(bytes) <= this.maxBytes;
  }

  /**
   * Does `read`, which brings up to so many bytes into memory, once there is room. What has come of them is said with `holds`,
   * at best before `read` ends. Rejects with HistoryTooLarge, NoRoom, or, when the signal aborts while it waits, with its reason.
   */
  async read<T>(bytes: number, signal: AbortSignal, read: () => Promise<T>): Promise<T> {
    const more = this.moreFor(bytes);
    if (more === 0) return read();
    if (this.taken + more > this.maxBytes)
      throw new HistoryTooLarge("the session's history is larger than what a harness may hold");
    if (this.leaves) throw new NoRoom("the session makes room for others");
    await this.room.admit(this, bytes, signal);
    try {
      return await read();
    } finally {
      this.reserve(-bytes);
      this.room.readEnded();
    }
  }

  /** For the room: so many bytes more, or less, are about to be read. */
  reserve(bytes: number): void {
    this.reserved += bytes;
    this.recount();
  }

  /** For the room. */
  sendAway(): void {
    if (this.leaves) return;
    this.leaves = true;
    this.leave();
  }

  /** The session is not held any more. */
  close(): void {
    this.held = 0;
    this.recount();
    this.room.left(this);
  }

  private recount(): void {
    const before = this.taken;
    this.taken = shareOf(this.held + this.reserved);
    if (this.taken !== before) this.room.changed(this, this.taken - before);
  }
}

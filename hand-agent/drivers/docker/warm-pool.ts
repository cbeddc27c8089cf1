/**
 * Hands made ahead. A pool begins with the first hand of its kind that is asked for; it keeps `size` of them, replaces
 * those that grow too old, and ends when nobody has asked for one for that long. Each is claimed by one hand alone.
 */
import type { Clock } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import type { Logger } from "../../../kit/log.ts";

/** Kinds at a time; the one that was longest unused ends when another one begins. */
const MAX_POOLS = 16;
const MAX_IN_POOL = 32;
/** After one could not be made: who asks meanwhile makes its own and hears why. */
const RETRY_MS = 30_000;
const REFILL_AFTER_MS = 100;

export interface WarmHand {
  readonly isUsable: boolean;
  destroy(): Promise<unknown>;
}

export interface WarmKind<T extends WarmHand> {
  /** The same for hands that are made alike. */
  readonly key: string;
  readonly size: number;
  readonly maxAgeMs: number;
  make(signal: AbortSignal): Promise<T>;
}

interface Pool<T extends WarmHand> {
  kind: WarmKind<T>;
  readonly ready: { readonly hand: T; readonly stopTimer: () => void }[];
  making: number;
  usedMs: number;
  failedMs: number | undefined;
}

export class WarmPools<T extends WarmHand> {
  private readonly clock: Clock;
  private readonly log: Logger;
  private readonly pools = new Map<string, Pool<T>>();
  private readonly going = new Set<Promise<unknown>>();
  private readonly stopper = new AbortController();

  constructor(clock: Clock, log: Logger) {
    this.clock = clock;
    this.log = log;
  }

  /** One that is ready, for the caller alone, or undefined; others are made meanwhile. */
  claim(kind: WarmKind<T>): T | undefined {
    if (kind.size < 1 || this.stopper.signal.aborted) return undefined;
    const pool = this.poolOf(kind);
    let claimed: T | undefined;
    while (claimed === undefined && pool.ready.length > 0) {
      const { hand, stopTimer } = pool.ready.shift()!;
      stopTimer();
      if (hand.isUsable) claimed = hand;
      else this.discard(hand);
    }
    return claimed;
  }

  /** Makes what is missing, a moment later: the hand that was just given has its first call first. */
  refillSoon(key: string): void {
    this.clock.after(REFILL_AFTER_MS, () => this.refill(key));
  }

  private refill(key: string): void {
    const pool = this.pools.get(key);
    if (pool === undefined || this.stopper.signal.aborted) return;
    if (pool.failedMs !== undefined && this.clock.monotonicMs() - pool.failedMs < RETRY_MS) return;
    const size = Math.min(pool.kind.size, MAX_IN_POOL);
    // One at a time: hands that somebody waits for come first.
    if (pool.making === 0 && pool.ready.length < size) this.makeOne(pool);
  }

  async close(): Promise<void> {
    this.stopper.abort(new Error("the hand agent is stopping"));
    for (const pool of [...this.pools.values()]) this.end(pool);
    while (this.going.size > 0) await Promise.all(this.going);
  }

  private poolOf(kind: WarmKind<T>): Pool<T> {
    let pool = this.pools.get(kind.key);
    this.pools.delete(kind.key);
    pool ??= { kind, ready: [], making: 0, usedMs: 0, failedMs: undefined };
    pool.kind = kind;
    pool.usedMs = this.clock.monotonicMs();
    this.pools.set(kind.key, pool); // the last is the newest
    if (this.pools.size > MAX_POOLS) this.end(this.pools.values().next().value!);
    return pool;
  }

  private makeOne(pool: Pool<T>): void {
    pool.making += 1;
    this.follow(
      pool.kind.make(this.stopper.signal).then(
        (hand) => {
          pool.making -= 1;
          pool.failedMs = undefined;
          this.keep(pool, hand);
        },
        (error) => {
          pool.making -= 1;
          pool.failedMs = this.clock.monotonicMs();
          if (!this.stopper.signal.aborted) this.log.warn(`no hand could be made ahead: ${messageOf(error)}`);
        },
      ),
    );
  }

  private keep(pool: Pool<T>, hand: T): void {
    if (this.pools.get(pool.kind.key) !== pool) {
      this.discard(hand);
      return;
    }
    const stopTimer = this.clock.after(pool.kind.maxAgeMs, () => this.expire(pool, hand));
    pool.ready.push({ hand, stopTimer });
    this.refill(pool.kind.key);
  }

  private expire(pool: Pool<T>, hand: T): void {
    const at = pool.ready.findIndex((each) => each.hand === hand);
    if (at < 0) return;
    pool.ready.splice(at, 1);
    this.discard(hand);
    if (this.clock.monotonicMs() - pool.usedMs >= pool.kind.maxAgeMs) this.end(pool);
    else this.refill(pool.kind.key);
  }

  private end(pool: Pool<T>): void {
    this.pools.delete(pool.kind.key);
    for (const { hand, stopTimer } of pool.ready.splice(0)) {
      stopTimer();
      this.discard(hand);
    }
  }

  private discard(hand: T): void {
    this.follow(
      hand
        .destroy()
        .catch((error) => this.log.warn(`a hand made ahead was not removed: ${messageOf(error)}`)),
    );
  }

  private follow(work: Promise<unknown>): void {
    const followed = work.finally(() => this.going.delete(followed));
    this.going.add(followed);
  }
}

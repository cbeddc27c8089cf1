/** A clock that stands still until a test moves it. */
import type { Clock } from "../../kit/clock.ts";

interface Timer {
  dueMs: number;
  everyMs: number | undefined;
  run: () => void;
}

export class FakeClock implements Clock {
  private currentMs: number;
  private readonly timers = new Set<Timer>();

  constructor(startMs = 1_700_000_000_000) {
    this.currentMs = startMs;
  }

  nowMs = () => this.currentMs;
  monotonicMs = () => this.currentMs;

  sleep(delayMs: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const abort = () => {
        cancel();
        reject(signal?.reason);
      };
      const cancel = this.after(delayMs, () => {
        signal?.removeEventListener("abort", abort);
        resolve();
      });
      signal?.addEventListener("abort", abort, { once: true });
    });
  }

  after(delayMs: number, run: () => void): () => void {
    return this.add({ dueMs: this.currentMs + delayMs, everyMs: undefined, run });
  }

  every(periodMs: number, run: () => void): () => void {
    return this.add({ dueMs: this.currentMs + periodMs, everyMs: periodMs, run });
  }

  soon(run: () => void): void {
    setImmediate(run);
  }

  /** Timers that wait. */
  get waiting(): number {
    return this.timers.size;
  }

  /** Moves on, firing what falls due in order; promises settle between timers. */
  async advance(byMs: number): Promise<void> {
    const untilMs = this.currentMs + byMs;
    await settle();
    for (;;) {
      const next = [...this.timers].sort((a, b) => a.dueMs - b.dueMs)[0];
      if (next === undefined || next.dueMs > untilMs) break;
      this.currentMs = Math.max(this.currentMs, next.dueMs);
      if (next.everyMs === undefined) this.timers.delete(next);
      // As the system does it: rounds that a sleeping machine missed are not made up for.
      else next.dueMs = this.currentMs + next.everyMs;
      next.run();
      await settle();
    }
    this.currentMs = untilMs;
  }

  /** A machine that slept: the time is gone, and what was due fires at the next advance. */
  skip(byMs: number): void {
    this.currentMs += byMs;
  }

  private add(timer: Timer): () => void {
    this.timers.add(timer);
    return () => this.timers.delete(timer);
  }
}

/** Lets promises that are settled already run their course. */
async function settle(): Promise<void> {
  for (let i = 0; i < 20; i++) await Promise.resolve();
}

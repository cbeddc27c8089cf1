/** Polls that wait for an item. What comes into the queue at this replica wakes them; what others bring is found by looking. */
import type { Clock } from "../../kit/clock.ts";
import { TendonError } from "../../kit/errors.ts";

/** How often a poll that waits looks at the queue. */
const LOOK_EVERY_MS = 250;
const MAX_WAITING = 2_000;

export class WaitingPolls {
  private readonly clock: Clock;
  private readonly waiting = new Map<string, Set<() => void>>();
  private count = 0;
  private isOver = false;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /** What `look` finds, at once or within the time; undefined when it finds nothing. LIMIT_EXCEEDED when too many wait. */
  async find<T>(
    environmentId: string,
    withinMs: number,
    signal: AbortSignal,
    look: () => Promise<T | undefined>,
  ): Promise<T | undefined> {
    const untilMs = this.clock.monotonicMs() + withinMs;
    for (;;) {
      // Listening begins before the look: what comes in between is not missed.
      const woken = this.listen(environmentId);
      try {
        const found = await look();
        const leftMs = untilMs - this.clock.monotonicMs();
        if (found !== undefined || leftMs <= 0 || signal.aborted || this.isOver) return found;
        if (this.count > MAX_WAITING)
          throw new TendonError("LIMIT_EXCEEDED", "too many workers wait here; poll again", {
            limit: "polls",
          });
        const pause = new AbortController();
        const over = AbortSignal.any([signal, pause.signal]);
        const slept = this.clock.sleep(Math.min(leftMs, LOOK_EVERY_MS), over).catch(() => {});
        await Promise.race([woken.promise, slept]);
        pause.abort();
      } finally {
        woken.forget();
      }
    }
  }

  wake(environmentId: string): void {
    for (const wake of this.waiting.get(environmentId) ?? []) wake();
  }

  /** The server stops: nobody waits any more. */
  end(): void {
    this.isOver = true;
    for (const environmentId of this.waiting.keys()) this.wake(environmentId);
  }

  private listen(environmentId: string): { promise: Promise<void>; forget: () => void } {
    let wake = () => {};
    const promise = new Promise<void>((resolve) => {
      wake = resolve;
    });
    const waiters = this.waiting.get(environmentId) ?? new Set();
    this.waiting.set(environmentId, waiters.add(wake));
    this.count += 1;
    const forget = () => {
      this.count -= 1;
      waiters.delete(wake);
      if (waiters.size === 0 && this.waiting.get(environmentId) === waiters)
        this.waiting.delete(environmentId);
    };
    return { promise, forget };
  }
}

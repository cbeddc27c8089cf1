/** Waits for messages that come on streams, and keeps when each came. */
import { systemClock } from "../../kit/clock.ts";

const WITHIN_MS = 30_000;

/** Milliseconds of the machine's monotonic clock, which all of its processes share. */
export function atMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

export class Arrivals {
  private times: number[] = [];
  private wanted = 0;
  private resolve: (times: readonly number[]) => void = () => {};

  /** The times of the next `count` arrivals. To be asked for before what makes them come; one at a time. Rejects after 30 s. */
  next(count: number): Promise<readonly number[]> {
    this.times = [];
    this.wanted = count;
    return new Promise((resolve, reject) => {
      const stop = systemClock.after(WITHIN_MS, () =>
        reject(new Error(`${this.times.length} of ${count} messages arrived within ${WITHIN_MS} ms`)),
      );
      this.resolve = (times) => {
        stop();
        resolve(times);
      };
    });
  }

  arrived(timeMs: number): void {
    this.times.push(timeMs);
    if (this.times.length === this.wanted) this.resolve(this.times);
  }
}

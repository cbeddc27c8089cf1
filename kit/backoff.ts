/** Jittered exponential delays: full jitter inside [half, whole] of a window that doubles up to a bound. */
import type { Clock } from "./clock.ts";

export interface BackoffOptions {
  firstMs: number;
  maxMs: number;
  /** The delays start over only after an attempt has stood this long, so that a flapping peer is not hammered. */
  resetAfterMs: number;
}

export class Backoff {
  private readonly clock: Clock;
  private readonly options: BackoffOptions;
  private readonly random: () => number;
  private attempt = 0;
  private startedMs: number | undefined;

  constructor(clock: Clock, options: BackoffOptions, random: () => number = Math.random) {
    this.clock = clock;
    this.options = options;
    this.random = random;
  }

  /** Call when the connection stands. */
  connected(): void {
    this.startedMs = this.clock.monotonicMs();
  }

  /** How long to wait before the next attempt. */
  nextDelayMs(): number {
    if (
      this.startedMs !== undefined &&
      this.clock.monotonicMs() - this.startedMs >= this.options.resetAfterMs
    ) {
      this.attempt = 0;
    }
    this.startedMs = undefined;
    const window = Math.min(this.options.maxMs, this.options.firstMs * 2 ** Math.min(this.attempt, 30));
    this.attempt += 1;
    return window / 2 + this.random() * (window / 2);
  }
}

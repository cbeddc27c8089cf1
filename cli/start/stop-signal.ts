/** SIGINT, SIGTERM and SIGHUP: the first asks to stop, a second one ends this process at once. */
import { type Clock, systemClock } from "../../kit/clock.ts";

/** npm passes a signal on that the terminal had sent to everyone already: so soon, it is the same one. */
const SAME_SIGNAL_MS = 700;

export class StopSignal {
  private readonly controller = new AbortController();
  private firstMs: number | undefined;
  /** Resolves with the signal's name. */
  readonly received: Promise<string>;

  constructor(clock: Clock = systemClock) {
    this.received = new Promise((resolve) => {
      const onSignal = (signal: NodeJS.Signals) => {
        const nowMs = clock.monotonicMs();
        if (this.firstMs === undefined) {
          this.firstMs = nowMs;
          this.controller.abort();
          resolve(signal);
        } else if (nowMs - this.firstMs > SAME_SIGNAL_MS) {
          // As if nobody had listened. Lifelines end with this process: the programs stop by themselves.
          process.removeAllListeners(signal);
          process.kill(process.pid, signal);
        }
      };
      for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, onSignal);
    });
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }
}

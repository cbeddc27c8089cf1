/**
 * Takes a few hand agents in at a time; the others wait in the order in which they came.
 *
 * After a restart of the server all agents come at once. Whoever has waited for too long gives up and comes again, so work
 * for those who have left would be done in place of work for those who wait: with enough agents on a slow machine nobody
 * would get in any more. Here who leaves while he waits costs nothing, and the time of a restart grows with the number of
 * agents and no faster.
 */
interface Waiting {
  readonly enter: () => void;
  readonly signal: AbortSignal;
}

export class AgentAdmission {
  private free: number;
  private readonly waiting: Waiting[] = [];

  constructor(places: number) {
    this.free = places;
  }

  /** Runs once there is a place. Rejects with the signal's reason when that aborts before; then nothing was run. */
  async run<T>(signal: AbortSignal, task: () => Promise<T>): Promise<T> {
    await this.enter(signal);
    try {
      return await task();
    } finally {
      this.leave();
    }
  }

  private enter(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    if (this.free > 0) {
      this.free -= 1;
      return Promise.resolve();
    }
    return new Promise((resolve, reject) => {
      const enter = () => {
        signal.removeEventListener("abort", leave);
        resolve();
      };
      const leave = () => reject(signal.reason);
      signal.addEventListener("abort", leave, { once: true });
      this.waiting.push({ enter, signal });
    });
  }

  private leave(): void {
    for (let next = this.waiting.shift(); next !== undefined; next = this.waiting.shift()) {
      // Who has left meanwhile is passed over.
      if (next.signal.aborted) continue;
      next.enter();
      return;
    }
    this.free += 1;
  }
}

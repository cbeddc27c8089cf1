/** Time is an input: programs take a `Clock`, so that tests can hold it. No other file of the product touches timers. */

export interface Clock {
  /** Milliseconds since 1970. */
  nowMs(): number;
  /** Milliseconds on a clock that never goes back; only differences mean something. */
  monotonicMs(): number;
  /** Resolves after `delayMs`, or rejects with the signal's reason as soon as it aborts. */
  sleep(delayMs: number, signal?: AbortSignal): Promise<void>;
  /** Calls `run` once after `delayMs`; the returned function calls it off. Does not keep the process alive. */
  after(delayMs: number, run: () => void): () => void;
  /** Calls `run` every `periodMs` until the returned function is called. Does not keep the process alive. */
  every(periodMs: number, run: () => void): () => void;
  /** Calls `run` once the input and output that is ready by now has been served. */
  soon(run: () => void): void;
}

export const systemClock: Clock = {
  nowMs: () => Date.now(),
  monotonicMs: () => performance.now(),
  sleep(delayMs, signal) {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const onAbort = () => {
        clearTimeout(timer);
        reject(signal?.reason);
      };
      const timer = setTimeout(() => {
        signal?.removeEventListener("abort", onAbort);
        resolve();
      }, delayMs);
      signal?.addEventListener("abort", onAbort, { once: true });
    });
  },
  after(delayMs, run) {
    const timer = setTimeout(run, delayMs);
    timer.unref();
    return () => clearTimeout(timer);
  },
  every(periodMs, run) {
    const timer = setInterval(run, periodMs);
    timer.unref();
    return () => clearInterval(timer);
  },
  soon(run) {
    setImmediate(run);
  },
};

/** Resolves with `promise`, or rejects with `onTimeout()` once `timeoutMs` have passed. The promise itself goes on. */
export async function within<T>(
  clock: Clock,
  timeoutMs: number,
  promise: Promise<T>,
  onTimeout: () => Error,
): Promise<T> {
  let stop = () => {};
  const timeout = new Promise<never>((_, reject) => {
    stop = clock.after(timeoutMs, () => reject(onTimeout()));
  });
  try {
    return await Promise.race([promise, timeout]);
  } finally {
    stop();
  }
}

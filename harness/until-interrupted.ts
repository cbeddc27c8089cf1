/** What a client's interrupt ends at once. */
import type { Lease } from "./lease.ts";
import type { SessionView } from "./session-view.ts";

/** A client interrupted what was going on. */
class Interrupted extends Error {
  override readonly name = "Interrupted";
}

/**
 * Runs `work` until it is done or a client interrupts; then the result is undefined. Rejects when the lease is over or
 * `stopping` aborts. What `work` does after its signal aborted is dropped.
 */
export async function untilInterrupted<T>(
  { lease, view }: { readonly lease: Lease; readonly view: SessionView },
  stopping: AbortSignal,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T | undefined> {
  const interrupt = new AbortController();
  const look = () => {
    if (view.state.interrupts.length > 0) interrupt.abort(new Interrupted("a client interrupted"));
  };
  const stopLooking = view.onChange(look);
  const signal = AbortSignal.any([lease.signal, stopping, interrupt.signal]);
  look();
  try {
    return await raceSignal(work(signal), signal);
  } catch (error) {
    if (!signal.aborted) throw error;
    if (signal.reason instanceof Interrupted) return undefined;
    throw signal.reason;
  } finally {
    stopLooking();
  }
}

/** Settles with `promise`, or rejects as soon as the signal aborts; what comes of the promise then is dropped. */
function raceSignal<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const aborted = () => reject(signal.reason);
    if (signal.aborted) aborted();
    else signal.addEventListener("abort", aborted, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", aborted));
  });
}

/** Waits that have a bound. */
import type { Clock } from "../kit/clock.ts";

/** Whether it was done within the bound, and before `cut`. */
export async function inTime(
  clock: Clock,
  ms: number,
  run: (signal: AbortSignal) => Promise<void>,
  cut?: AbortSignal,
): Promise<boolean> {
  const limit = new AbortController();
  const abort = () => limit.abort(new Error("out of time"));
  const cancel = clock.after(ms, abort);
  cut?.addEventListener("abort", abort, { once: true });
  if (cut?.aborted) abort();
  try {
    await run(limit.signal);
    return true;
  } catch {
    return false;
  } finally {
    cancel();
  }
}

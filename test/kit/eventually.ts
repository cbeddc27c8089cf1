/** Waits for a condition with a bound, instead of sleeping and hoping. */
import { setTimeout as delay } from "node:timers/promises";

/**
 * Calls `check` until it neither throws nor returns undefined, null or false, and gives its value.
 * After `withinMs` (default 60 s: a bound for what hangs, long enough for a busy machine) it throws the last failure.
 */
export async function eventually<T>(
  check: () => T | Promise<T>,
  { withinMs = 60_000, everyMs = 20 }: { withinMs?: number; everyMs?: number } = {},
): Promise<NonNullable<T>> {
  const deadline = performance.now() + withinMs;
  let last: unknown = new Error("the condition never held");
  for (;;) {
    try {
      const value = await check();
      if (value !== undefined && value !== null && value !== false) return value as NonNullable<T>;
    } catch (error) {
      last = error;
    }
    if (performance.now() >= deadline) throw last;
    await delay(everyMs);
  }
}

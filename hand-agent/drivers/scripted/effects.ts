/** How what a script says comes about. */
import type { Clock } from "../../../kit/clock.ts";
import { type DestroyReport, HandError, type ProcessInfo } from "../driver.ts";
import type { Effect } from "./script.ts";

/** Numbers that no process of a usual machine has. */
const FIRST_INVENTED_PID = 2 ** 22;

/** The part of an effect that all operations can have. */
export async function suffer(clock: Clock, effect: Effect, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  if (effect.delayMs !== undefined) await clock.sleep(effect.delayMs, signal);
  if (effect.hang) await endOf(signal);
  if (effect.fail !== undefined) throw new HandError(effect.fail);
  if (effect.bug !== undefined) throw new TypeError(effect.bug);
}

/** What really did not end, and what the script adds. */
export function reportWith({ left }: DestroyReport, effect: Effect): DestroyReport {
  const invented = Array.from({ length: effect.left ?? 0 }, (_, index): ProcessInfo => {
    return { pid: FIRST_INVENTED_PID + index, command: "scripted" };
  });
  return { left: [...left, ...invented] };
}

function endOf(signal: AbortSignal | undefined): Promise<never> {
  return new Promise((_, reject) => {
    signal?.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}

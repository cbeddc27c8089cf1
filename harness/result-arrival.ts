/** Whether the log has a call's result. The server stores it before it is told, so its event is on its way. */
import { type Clock, within } from "../kit/clock.ts";
import type { SessionView } from "./session-view.ts";

/** After this the log is asked. */
const RESULT_WAIT_MS = 300;

/** Rejects with the signal's reason when that aborts. */
export async function resultArrived(
  { view, clock }: { readonly view: SessionView; readonly clock: Clock },
  callId: string,
  signal: AbortSignal,
): Promise<boolean> {
  const hasResult = () => !view.state.openCalls.has(callId);
  const stop = new AbortController();
  try {
    const arrives = view.until(hasResult, AbortSignal.any([signal, stop.signal]));
    await within(clock, RESULT_WAIT_MS, arrives, () => new Error("late"));
    return true;
  } catch {
    signal.throwIfAborted();
    await view.refresh();
    return hasResult();
  } finally {
    stop.abort();
  }
}

/** A root that waits for threads says that the budget is spent, once nobody of its tree works any more. */
import type { NewEvent } from "../store/events.ts";
import type { SessionStore } from "../store/sessions.ts";
import type { ThreadStore } from "../store/threads.ts";
import { derivedEventId, treeEvent } from "../store/tree-events.ts";

export interface BudgetNoticeDeps {
  readonly threads: Pick<ThreadStore, "isQuiet" | "standings" | "waitsOf">;
  readonly sessions: Pick<SessionStore, "standing">;
}

/**
 * To be appended to the root's log if that still ends where it was looked at. `cause`: the thread's event that says so, or the
 * call that waits for a thread that has said so before.
 */
export async function budgetNotice(
  { threads, sessions }: BudgetNoticeDeps,
  rootSessionId: string,
  cause: { readonly id: string; readonly payload: string },
): Promise<{ event: NewEvent; head: number } | undefined> {
  const said = JSON.parse(cause.payload) as { stop_reason?: { type?: unknown }; stop_details?: unknown };
  if (said.stop_reason?.type !== "budget_reached") return undefined;
  const standing = await sessions.standing(rootSessionId);
  if (standing === undefined || standing.archived) return undefined;
  const [root] = await threads.standings([rootSessionId]);
  const waits = root?.status === "idle" && root.stopReason === "waiting_for_threads";
  if (!waits || !(await threads.isQuiet(rootSessionId))) return undefined;
  const calls = (await threads.waitsOf(rootSessionId)).map(({ callId }) => callId);
  const event = treeEvent(derivedEventId(cause.id, "budget"), "session.status_idle", {
    stop_reason: said.stop_reason,
    stop_details: said.stop_details ?? null,
    waiting_calls: calls,
  });
  return { event, head: standing.head };
}

/**
 * A root that waits for threads waits for a client, once nobody of its tree works and some thread waits for one: its log says
 * for which calls, and that it goes on. So who looks at the root alone knows that something is to be answered.
 */
import type { EventStore, NewEvent } from "../store/events.ts";
import type { SessionStore } from "../store/sessions.ts";
import type { ThreadStore } from "../store/threads.ts";
import { derivedEventId, treeEvent } from "../store/tree-events.ts";

export const THREADS_ASK = "session.threads_ask";
export const THREADS_GO_ON = "session.threads_go_on";

const WORDS = [THREADS_ASK, THREADS_GO_ON, "session.status_idle", "session.status_running"];
const READ_BYTES = 256 * 1024;

export interface ThreadAsksDeps {
  readonly threads: Pick<ThreadStore, "isQuiet" | "standings" | "asks">;
  readonly sessions: Pick<SessionStore, "standing">;
  readonly events: Pick<EventStore, "read">;
}

export interface Notice {
  readonly event: NewEvent;
  /** Where the root's log ended when it was looked at. */
  readonly head: number;
}

/** What the root's log is to say: `said` when it says so already, undefined when there is nothing to say yet. */
export async function askNotice(
  { threads, sessions, events }: ThreadAsksDeps,
  rootSessionId: string,
): Promise<Notice | "said" | undefined> {
  const standing = await sessions.standing(rootSessionId);
  if (standing === undefined || standing.archived) return undefined;
  const [root] = await threads.standings([rootSessionId]);
  if (root?.status !== "idle" || root.stopReason !== "waiting_for_threads") return undefined;
  if (!(await threads.isQuiet(rootSessionId))) return undefined;
  const ids = await threads.asks(rootSessionId);
  const last = await lastWord(events, rootSessionId);
  if (ids.length === 0 || last === undefined) return undefined;
  const payload = { event_ids: ids };
  if (last.type === THREADS_ASK && last.payload === JSON.stringify(payload)) return "said";
  const event = treeEvent(derivedEventId(`${last.id}\n${ids.join("\n")}`, "asks"), THREADS_ASK, payload);
  return { event, head: standing.head };
}

/** Undefined where the root's log does not say that it waits for a client. */
export async function goOnNotice(
  { events }: Pick<ThreadAsksDeps, "events">,
  rootSessionId: string,
): Promise<NewEvent | undefined> {
  const last = await lastWord(events, rootSessionId);
  if (last?.type !== THREADS_ASK) return undefined;
  return treeEvent(derivedEventId(last.id, "goes on"), THREADS_GO_ON, {});
}

async function lastWord(events: Pick<EventStore, "read">, sessionId: string) {
  const slice = await events.read({
    sessionId,
    afterPosition: 0,
    descending: true,
    types: WORDS,
    limit: 1,
    maxBytes: READ_BYTES,
    inlineLimitBytes: READ_BYTES,
    withInternal: false,
  });
  return slice.events[0];
}

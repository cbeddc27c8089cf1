/** Which thread a client's word on a session is for: answers belong to the thread that asked, an interrupt to the one that it names. */
import { notFound } from "../../kit/errors.ts";
import { isId } from "../../kit/ids.ts";
import type { NewEvent } from "../store/events.ts";
import type { ThreadStore } from "../store/threads.ts";
import { primaryThreadId } from "../store/tree-events.ts";
import { spokenOf } from "./client-answers.ts";

type Threads = Pick<ThreadStore, "threadsOfCalls" | "place">;

/** The same events, each with its thread. NOT_FOUND for a thread that is not of the session. */
export async function addressEvents(
  threads: Threads,
  sessionId: string,
  events: readonly NewEvent[],
): Promise<NewEvent[]> {
  // A thread's own log has no other.
  if (!isId("session", sessionId)) return [...events];
  const named = events.map((event) => ({ ...event, threadId: namedThread(sessionId, event) }));
  for (const threadId of new Set(named.map((event) => event.threadId))) {
    if (threadId === "") continue;
    if ((await threads.place(threadId))?.rootSessionId !== sessionId) throw notFound("thread", threadId);
  }
  const callIds = spokenOf(named.filter(({ threadId }) => threadId === ""));
  if (callIds.length === 0) return named;
  const askers = await threads.threadsOfCalls(sessionId, callIds);
  return named.map((event) => {
    const [callId] = spokenOf([event]);
    return { ...event, threadId: event.threadId || (askers.get(callId ?? "") ?? "") };
  });
}

function namedThread(sessionId: string, { type, threadId, payload }: NewEvent): string {
  const named = type === "user.interrupt" && threadId === "" ? interruptedThread(payload) : threadId;
  return named === primaryThreadId(sessionId) ? "" : named;
}

function interruptedThread(payload: string): string {
  const { session_thread_id: threadId } = JSON.parse(payload) as Record<string, unknown>;
  return typeof threadId === "string" ? threadId : "";
}

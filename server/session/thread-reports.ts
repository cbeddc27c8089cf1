/** What a thread's turn came to, as its parent is told. */
import type { EventStore, NewEvent } from "../store/events.ts";
import type { TreeNews, TreePlace } from "../store/threads.ts";
import { receivedEvent } from "../store/tree-events.ts";

const MAX_CHARS = 100_000;
const READ_EVENTS = 200;
const READ_BYTES = 4 * 1024 * 1024;
const INLINE_BYTES = 1024 * 1024;

/** Stops that the parent has to hear of; all others say that the thread goes on, or that somebody wanted it to stop. */
const ENDS: Readonly<Record<string, string>> = {
  end_turn: "",
  refusal: "[The model refused to go on.]",
  retries_exhausted: "[The thread gave up: what could be tried again was tried again.]",
};

/** Undefined when there is nothing to tell. */
export async function reportOf(
  events: Pick<EventStore, "read">,
  thread: TreePlace,
  parent: TreePlace,
  idle: TreeNews,
): Promise<NewEvent | undefined> {
  const { stop_reason: reason, interrupted } = JSON.parse(idle.payload) as {
    stop_reason?: { type?: unknown } | null;
    interrupted?: unknown;
  };
  const stop = String(reason?.type);
  const note = interrupted === undefined ? ENDS[stop] : undefined;
  if (note === undefined) return undefined;
  const texts = [await lastWords(events, thread.sessionId, idle.position), note].filter(
    (text) => text !== "",
  );
  if (texts.length === 0) return undefined;
  const message = {
    causeId: idle.eventId,
    content: texts.map((text) => ({ type: "text", text })),
    from: thread,
    to: parent,
  };
  return receivedEvent(message, { stop_reason: { type: stop } });
}

/** The newest text of the turn that ended at `position`. */
async function lastWords(
  events: Pick<EventStore, "read">,
  sessionId: string,
  position: number,
): Promise<string> {
  const slice = await events.read({
    sessionId,
    afterPosition: 0,
    beforePosition: position,
    descending: true,
    types: ["agent.message", "session.status_idle", "brain.inputs_consumed"],
    limit: READ_EVENTS,
    maxBytes: READ_BYTES,
    inlineLimitBytes: INLINE_BYTES,
    withInternal: false,
  });
  for (const { type, payload } of slice.events) {
    if (type === "session.status_idle" && !goesOn(payload)) return "";
    const text = type === "agent.message" ? textOf(payload) : "";
    if (text.trim() !== "") return text.length <= MAX_CHARS ? text : `${text.slice(0, MAX_CHARS)}\n[cut]`;
  }
  return "";
}

/** An idle event in the middle of a turn. */
function goesOn(payload: string | undefined): boolean {
  const { stop_reason: reason } = JSON.parse(payload ?? "{}") as { stop_reason?: { type?: unknown } };
  return ["requires_action", "waiting_for_threads", "budget_reached"].includes(String(reason?.type));
}

function textOf(payload: string | undefined): string {
  if (payload === undefined) return "[Its message is too long to be shown here.]";
  const { content } = JSON.parse(payload) as { content?: { type?: string; text?: string }[] };
  return (content ?? []).map(({ text }) => text ?? "").join("\n");
}

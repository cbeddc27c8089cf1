/** Ids and texts of what logs of one tree say to each other (pure). Ids follow from what is said, so that a repeat says it once. */
import { createHash } from "node:crypto";
import { ID_PREFIXES, outcomeIdOf } from "../../kit/ids.ts";
import type { NewEvent } from "./events.ts";

/** The id that the event about `sourceId` has in another log of the tree. */
export function derivedEventId(sourceId: string, what: string): string {
  const digest = createHash("sha256").update(`${what}\n${sourceId}`).digest("hex").slice(0, 40);
  return `${ID_PREFIXES.event}${digest}`;
}

/** Id of a session's own, primary thread, as clients of threads name it. */
export function primaryThreadId(sessionId: string): string {
  return sessionId.replace(ID_PREFIXES.session, ID_PREFIXES.thread);
}

/** As the other side of a message is named: a root by its primary thread. */
export function threadIdOf(sessionId: string): string {
  return sessionId.startsWith(ID_PREFIXES.session) ? primaryThreadId(sessionId) : sessionId;
}

export function treeEvent(id: string, type: string, payload: object, threadId = ""): NewEvent {
  return { id, type, threadId, payload: JSON.stringify(payload), internal: undefined };
}

export interface ThreadMessage {
  /** Event id of the call that sends it, or of the event that it follows from. */
  readonly causeId: string;
  readonly content: readonly object[];
  readonly from: { readonly sessionId: string; readonly agentName: string };
  readonly to: { readonly sessionId: string; readonly agentName: string };
}

export function sentEvent({ causeId, content, to }: ThreadMessage): NewEvent {
  return treeEvent(derivedEventId(causeId, "sent"), "agent.thread_message_sent", {
    content,
    to_session_thread_id: threadIdOf(to.sessionId),
    to_agent_name: to.agentName,
  });
}

/** `more`: what else the receiver's log is to say of it. */
export function receivedEvent({ causeId, content, from }: ThreadMessage, more: object = {}): NewEvent {
  return treeEvent(derivedEventId(causeId, "received"), "agent.thread_message_received", {
    content,
    from_session_thread_id: threadIdOf(from.sessionId),
    from_agent_name: from.agentName,
    ...more,
  });
}

/** Nothing below the session works any more: what it works towards can be judged. */
export function threadsRestedEvent(id: string, outcomeEventId: string): NewEvent {
  return treeEvent(id, "brain.threads_rested", { outcome_id: outcomeIdOf(outcomeEventId) });
}

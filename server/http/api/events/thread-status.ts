/**
 * How threads stand, as clients of this API are told it. The log of a session, or of a thread, says how it stands itself
 * (`session.status_*`); clients know that of every thread, the primary one too, as `session.thread_status_*`:
 *
 * P1 In a thread's log its own statuses have that name, and nothing else of them changes.
 * P2 In a session's log each one is told of the primary thread too, directly before it; before the usage that goes with it, if
 *    it is an idle one. Its end is told as the session's alone.
 */
import type { Event } from "../../../../proto/gen/tendon/v1/event_pb.js";
import { type Beside, isShown, STATUS_OF_TREE, toldText } from "./event-json.ts";
import { ownWords } from "./own-words.ts";

const OWN = "session.status_";
const THREADS = "session.thread_status_";
const ENDED = "session.status_terminated";
export const IDLE = "session.status_idle";
export const USAGE = "session.usage";
/** Makes another id of that of the event that it follows from, and can be taken off again. */
const ID_MARK = "_thread";

/** A log, as clients name its thread. */
export interface ToldLog {
  readonly sessionId: string;
  /** Whether it is that of a thread below a session. */
  readonly isThread: boolean;
  readonly threadId: string;
  /** Of the agent that it runs. */
  agentName(): Promise<string>;
}

/** Whether the event says how the owner of its log stands. */
export function isOwnStatus({ type, threadId }: Event): boolean {
  return threadId === "" && type.startsWith(OWN);
}

export function isOwn(event: Event, type: string): boolean {
  return event.type === type && event.threadId === "";
}

/** P2. */
export function tellsOfPrimary(event: Event, { isThread }: Pick<ToldLog, "isThread">): boolean {
  return !isThread && isOwnStatus(event) && event.type !== ENDED && isShown(event);
}

export function threadStatusType(type: string): string {
  return type.replace(OWN, THREADS);
}

/** The types of the log from which events of these types are told. */
export function sourceTypes(types: readonly string[]): string[] {
  const own = types.filter((type) => type.startsWith(THREADS)).map((type) => type.replace(THREADS, OWN));
  const ofTree = Object.keys(STATUS_OF_TREE).filter((type) => types.includes(STATUS_OF_TREE[type]!));
  const results = types.includes("user.custom_tool_result") ? ["agent.tool_result"] : [];
  return [...new Set([...types, ...own, ...ofTree, ...results])];
}

/** P1, with the event's own id; P2 with one that follows from it. */
export async function threadStatusText(event: Event, log: ToldLog): Promise<string> {
  const id = log.isThread ? event.id : `${event.id}${ID_MARK}`;
  const beside: Beside = {
    id: JSON.stringify(id),
    type: JSON.stringify(threadStatusType(event.type)),
    session_thread_id: JSON.stringify(log.threadId),
    agent_name: JSON.stringify(await log.agentName()),
  };
  return toldText(event, ownWords(event.type, event.payload), beside);
}

/** The event that a told id is of, and whether it is what is told of the primary thread. */
export function sourceId(toldId: string): { readonly id: string; readonly isOfPrimary: boolean } {
  const isOfPrimary = toldId.endsWith(ID_MARK);
  return { id: isOfPrimary ? toldId.slice(0, -ID_MARK.length) : toldId, isOfPrimary };
}

/** Events as existing clients know them: JSON text, with the payload as it stands in the log (pure). */
import { type Timestamp, timestampDate } from "@bufbuild/protobuf/wkt";
import { outcomeIdOf } from "../../../../kit/ids.ts";
import { membersOf, objectText } from "../../../../kit/json-slices.ts";
import type { Event } from "../../../../proto/gen/tendon/v1/event_pb.js";
import type { FindMember } from "../agents/roster.ts";
import { ownWords } from "./own-words.ts";

/** Stands beside a payload, and is not part of it. */
export const BESIDE: ReadonlySet<string> = new Set(["id", "type", "processed_at"]);
/** Read by brains alone; clients of this API see what follows from them. */
const HIDDEN_PREFIX = "brain.";
/** Somebody has to take these in; all else is over the moment it is said. */
const TAKEN_IN = new Set(["user.message", "user.interrupt", "user.tool_confirmation", "system.message"]);

/** A session that waits for its threads is not idle to clients of this API: something of it works. */
export function isShown({ type, payload }: Pick<Event, "type" | "payload">): boolean {
  if (type === "session.status_idle" || type === "session.thread_status_idle")
    return !payload.includes('"waiting_for_threads"');
  return !type.startsWith(HIDDEN_PREFIX);
}

/** Told a second time when a brain takes it in; what brains take in of their own was said once and for all. */
export function isToldAgain({ type }: Pick<Event, "type">): boolean {
  return TAKEN_IN.has(type);
}

/** When it was processed; undefined while it waits. What a thread takes in is on its way there once it is said. */
export function processedAt({ type, threadId, createdAt, processedAt: taken }: Event): Timestamp | undefined {
  return TAKEN_IN.has(type) && threadId === "" ? taken : createdAt;
}

/** Whether a session that waits for its threads waits for clients with them is its status here. */
export const STATUS_OF_TREE: Readonly<Record<string, string>> = {
  "session.threads_ask": "session.status_idle",
  "session.threads_go_on": "session.status_running",
};

const CUSTOM = '{"custom":true,"tool_use_id":';

/** Whoever answers calls of custom tools takes only a result of theirs for an answer: the platform's too has that type here. */
export function toldType({ type, payload }: Pick<Event, "type" | "payload">): string {
  if (type === "agent.tool_result" && payload.startsWith(CUSTOM)) return "user.custom_tool_result";
  return STATUS_OF_TREE[type] ?? type;
}

/** Members that a client is told beside the payload, each with the JSON text of its value. */
export type Beside = Readonly<Record<string, string>>;

/** `payload` stands for the event's own where that was left out for its size. */
export function eventText(event: Event, payload = event.payload, find?: FindMember): string {
  const { id, threadId } = event;
  const type = toldType(event);
  const words = type === event.type ? payload : payload.replace(CUSTOM, '{"custom_tool_use_id":');
  return toldText(event, ownWords(event.type, words, find), {
    id: JSON.stringify(id),
    type: JSON.stringify(type),
    ...(threadId !== "" && { session_thread_id: JSON.stringify(threadId) }),
    ...(type === "user.define_outcome" && { outcome_id: JSON.stringify(outcomeIdOf(id)) }),
  });
}

/** `payload` in these clients' words; `beside` has `id` and `type`, and whatever else is said in the payload's stead. */
export function toldText(event: Event, payload: string, beside: Beside): string {
  const time = processedAt(event);
  const { id, type, ...more } = beside;
  const told = {
    id,
    type,
    processed_at: time === undefined ? "null" : JSON.stringify(timestampDate(time).toISOString()),
    ...more,
  };
  const heads = Object.entries(told).map(([name, text]) => `"${name}":${text}`);
  const members = membersText(payload, told);
  return `{${heads.join(",")}${members === "" ? "" : `,${members}`}}`;
}

/** What stands between the braces, without members of the names that stand beside a payload. */
function membersText(text: string, beside: object): string {
  const isBeside = (name: string) => Object.hasOwn(beside, name);
  const payload = /"(?:id|type|processed_at|session_thread_id|agent_name|outcome_id)"/.test(text)
    ? objectText(membersOf(text).filter(({ name }) => !isBeside(name)))
    : text;
  return payload.slice(payload.indexOf("{") + 1, payload.lastIndexOf("}")).trim();
}

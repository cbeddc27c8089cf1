/** Events as existing clients know them: JSON text, with the payload as it stands in the log (pure). */
import { type Timestamp, timestampDate } from "@bufbuild/protobuf/wkt";
import { outcomeIdOf } from "../../../../kit/ids.ts";
import { membersOf, memberText, objectText } from "../../../../kit/json-slices.ts";
import type { Event } from "../../../../proto/gen/tendon/v1/event_pb.js";
import { updatedText } from "./updated-text.ts";

/** Stands beside a payload, and is not part of it. */
export const BESIDE: ReadonlySet<string> = new Set(["id", "type", "processed_at"]);
/** Read by brains alone; clients of this API see what follows from them. */
const HIDDEN_PREFIX = "brain.";
/** Said in the past tense the moment they are said: nobody has to take them in. */
const AT_ONCE = new Set(["user.define_outcome", "user.custom_tool_result", "user.tool_result"]);
const OUTCOME_DEFINED = "user.define_outcome";
/** What counts where a definition does not say. */
const DEFAULT_ITERATIONS = 3;
const WRITTEN_BY_PLATFORM = new Set(["agent", "session", "span", "hand", "workflow_run"]);

/** A session that waits for its threads is not idle to clients of this API: something of it works. */
export function isShown({ type, payload }: Pick<Event, "type" | "payload">): boolean {
  if (type === "session.status_idle") return !payload.includes('"waiting_for_threads"');
  return !type.startsWith(HIDDEN_PREFIX);
}

/** Told a second time when a brain takes it in; what brains take in of their own was said once and for all. */
export function isToldAgain({ type }: Pick<Event, "type">): boolean {
  return !type.startsWith("span.");
}

/** When it was processed; undefined while it waits. */
export function processedAt({ type, createdAt, processedAt: taken }: Event): Timestamp | undefined {
  const prefix = type.slice(0, type.indexOf("."));
  if (WRITTEN_BY_PLATFORM.has(prefix) || AT_ONCE.has(type)) return createdAt;
  return taken;
}

/** `payload` stands for the event's own where that was left out for its size. */
export function eventText(event: Event, payload = event.payload): string {
  const time = processedAt(event);
  const beside = [
    `"id":${JSON.stringify(event.id)}`,
    `"type":${JSON.stringify(event.type)}`,
    `"processed_at":${time === undefined ? "null" : JSON.stringify(timestampDate(time).toISOString())}`,
    ...(event.threadId === "" ? [] : [`"session_thread_id":${JSON.stringify(event.threadId)}`]),
    ...(event.type === OUTCOME_DEFINED ? definitionFields(event.id, payload) : []),
  ];
  const members = membersText(ownText(event.type, payload));
  return `{${beside.join(",")}${members === "" ? "" : `,${members}`}}`;
}

/** What clients know of a payload, as far as it is not told otherwise. */
function ownText(type: string, payload: string): string {
  if (type === "session.updated") return updatedText(payload);
  return type === OUTCOME_DEFINED ? withoutOwn(payload) : payload;
}

/** Set by the platform. */
const DEFINITION_OWN = new Set(["outcome_id", "max_iterations"]);

function definitionFields(eventId: string, payload: string): string[] {
  const said = memberText(payload, "max_iterations");
  const iterations = said === undefined || said === "null" ? String(DEFAULT_ITERATIONS) : said;
  return [`"outcome_id":${JSON.stringify(outcomeIdOf(eventId))}`, `"max_iterations":${iterations}`];
}

function withoutOwn(payload: string): string {
  return objectText(membersOf(payload).filter(({ name }) => !DEFINITION_OWN.has(name)));
}

/** What stands between the braces, without members of the names that stand beside a payload. */
function membersText(text: string): string {
  const payload = /"(?:id|type|processed_at)"/.test(text)
    ? objectText(membersOf(text).filter(({ name }) => !BESIDE.has(name)))
    : text;
  return payload.slice(payload.indexOf("{") + 1, payload.lastIndexOf("}")).trim();
}

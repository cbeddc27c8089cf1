/** Reads fields of events' JSON texts without trusting them: other programs wrote them. */
import type { Event } from "../proto/gen/tendon/v1/event_pb.js";

export type Json = Record<string, unknown>;

export function payloadOf(event: Pick<Event, "payload">): Json {
  try {
    return objectOf(JSON.parse(event.payload || "{}"));
  } catch {
    return {};
  }
}

export function objectOf(value: unknown): Json {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : {};
}

export function stringOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** The text of content blocks; other blocks are named in brackets. */
export function contentText(content: unknown): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map(objectOf).map(blockText).join("\n");
}

function blockText(block: Json): string {
  if (block.type === "text") return stringOf(block.text);
  if (block.type === "search_result") return `${stringOf(block.title)}: ${stringOf(block.source)}`;
  return `[${stringOf(block.type) || "block"}]`;
}

/** The text of a result's content, which is JSON text itself. */
export function resultText(content: string): string {
  try {
    return contentText(JSON.parse(content));
  } catch {
    return content;
  }
}

/** Why a session became idle, such as "end_turn"; undefined for other events. */
export function stopReasonOf(event: Pick<Event, "type" | "payload">): string | undefined {
  if (event.type === "session.status_terminated") return "terminated";
  if (event.type !== "session.status_idle") return undefined;
  return stringOf(objectOf(payloadOf(event).stop_reason).type) || "end_turn";
}

/** Ids of the events that a brain took in with this one. */
export function consumedIds(event: Pick<Event, "type" | "payload">): string[] {
  if (event.type !== "brain.inputs_consumed") return [];
  const ids = payloadOf(event).event_ids;
  return Array.isArray(ids) ? ids.map(stringOf) : [];
}

/** Reads fields of events' JSON texts without trusting them: other programs wrote them, maybe other versions of this one. */
import type { Event } from "../proto/gen/tendon/v1/event_pb.js";

export type Json = Record<string, unknown>;

export function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The object that the text holds; an empty one when it holds none. */
export function parseObject(text: string): Json {
  if (text === "") return {};
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : {};
  } catch {
    return {};
  }
}

export function payloadOf(event: Event): Json {
  return parseObject(event.payload);
}

export function stringOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

export function stringsOf(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((item) => typeof item === "string") : [];
}

export function objectsOf(value: unknown): Json[] {
  return Array.isArray(value) ? value.filter(isObject) : [];
}

/** A count; anything else is 0. */
export function countOf(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) && value > 0 ? value : 0;
}

/** The event that a result answers; empty when the event is no result. */
export function answeredId(event: Event): string {
  switch (event.type) {
    case "agent.tool_result":
    case "user.tool_result":
      return stringOf(payloadOf(event).tool_use_id);
    case "agent.mcp_tool_result":
      return stringOf(payloadOf(event).mcp_tool_use_id);
    case "user.custom_tool_result":
      return stringOf(payloadOf(event).custom_tool_use_id);
    default:
      return "";
  }
}

/** JSON text of one object kept as it was written, when it is one; undefined otherwise. Empty text stands for `{}`. */
export function objectText(text: string): string | undefined {
  if (text.trim() === "") return "{}";
  try {
    return isObject(JSON.parse(text)) ? text : undefined;
  } catch {
    return undefined;
  }
}

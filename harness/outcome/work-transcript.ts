/**
 * What an agent said and did, as text for whoever judges it: from the log alone, whatever loop made it. Pure.
 *
 * A part begins at the beginning of a line, and nothing within one does: no text can look like another's. What a document holds
 * stands deeper than the words that it came with.
 */
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { isObject, objectsOf, payloadOf, stringOf } from "../event-payload.ts";
import { partsWithin, type TextPart } from "../shortened-text.ts";

/** At most about `maxBytes`; the beginning and the newest part stay. */
export function workTranscript(events: readonly Event[], maxBytes: number): string {
  return partsWithin(events.flatMap(partOf), maxBytes);
}

function partOf(event: Event): TextPart[] {
  const payload = payloadOf(event);
  const part = (head: string, text: string) =>
    text.trim() === "" ? [] : [{ head: `${indented(head)}: `, text: indented(text) }];
  switch (event.type) {
    case "user.message":
      return part("user", contentText(payload.content));
    case "agent.message":
      return part("agent", contentText(payload.content));
    case "agent.tool_use":
    case "agent.mcp_tool_use":
    case "agent.custom_tool_use":
      return part(`agent calls ${stringOf(payload.name)}`, JSON.stringify(payload.input ?? {}));
    case "agent.tool_result":
    case "agent.mcp_tool_result":
    case "user.tool_result":
    case "user.custom_tool_result":
      return part(payload.is_error === true ? "the call failed" : "result", contentText(payload.content));
    case "agent.thread_message_received":
      return part(`thread ${stringOf(payload.from_agent_name)}`, contentText(payload.content));
    default:
      return [];
  }
}

function contentText(content: unknown): string {
  if (typeof content === "string") return content;
  return objectsOf(content)
    .map((block) => {
      if (block.type === "text") return stringOf(block.text);
      const source = isObject(block.source) ? block.source : {};
      const isPlain = block.type === "document" && source.type === "text";
      return isPlain ? `[document:\n  ${indented(stringOf(source.data))}\n]` : `[${stringOf(block.type)}]`;
    })
    .join("\n");
}

/** All lines but the first. */
function indented(text: string): string {
  return text.replace(/\r\n?|[\n\u2028\u2029]/g, "\n  ");
}

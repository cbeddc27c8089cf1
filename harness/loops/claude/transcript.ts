/** A talk as plain text within a bound: for summaries where the talk itself does not fit into a request any more. Pure. */
import { objectsOf, parseObject, stringOf } from "../../event-payload.ts";
import { partsWithin } from "../../shortened-text.ts";
import type { HistoryMessage } from "./message-list.ts";

/** At most about `maxBytes` of UTF-8: the beginning and the end, long blocks by their beginning and end. */
export function transcript(messages: readonly HistoryMessage[], maxBytes: number): string {
  const parts = messages.flatMap(({ role, blocks }) =>
    blocks.flatMap((block) => {
      const text = blockText(block);
      return text === "" ? [] : [{ head: `${role}: `, text }];
    }),
  );
  return partsWithin(parts, maxBytes);
}

function blockText(block: string): string {
  const { type, text, name, input, content } = parseObject(block);
  switch (type) {
    case "text":
      return stringOf(text);
    case "tool_use":
      return `[call of ${stringOf(name)}] ${JSON.stringify(input)}`;
    case "tool_result": {
      const texts = objectsOf(content).map((inner) =>
        inner.type === "text" ? stringOf(inner.text) : `[${stringOf(inner.type)}]`,
      );
      return `[result] ${texts.join("\n")}`;
    }
    case "thinking":
    case "redacted_thinking":
      return "";
    default:
      return `[${stringOf(type)}]`;
  }
}

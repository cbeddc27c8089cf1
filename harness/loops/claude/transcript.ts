/** A talk as plain text within a bound: for summaries where the talk itself does not fit into a request any more. Pure. */
import { objectsOf, parseObject, stringOf } from "../../event-payload.ts";
import type { HistoryMessage } from "./message-list.ts";

/** Of the bound, for the beginning; the rest is for the newest part. */
const HEAD_SHARE = 0.2;
/** No block takes more than this share of the bound. */
const BLOCK_SHARE = 0.05;
const MIN_BLOCK_BYTES = 200;

/** At most about `maxBytes` of UTF-8: the beginning and the end, long blocks by their beginning and end. */
export function transcript(messages: readonly HistoryMessage[], maxBytes: number): string {
  const blockBytes = Math.max(MIN_BLOCK_BYTES, Math.floor(maxBytes * BLOCK_SHARE));
  const parts = messages.flatMap(({ role, blocks }) =>
    blocks.flatMap((block) => {
      const text = blockText(block);
      return text === "" ? [] : [`${role}: ${shortened(text, blockBytes)}`];
    }),
  );
  const sizes = parts.map((part) => Buffer.byteLength(part) + 2);
  let from = parts.length;
  for (let left = maxBytes * (1 - HEAD_SHARE); from > 0 && left >= sizes[from - 1]!; from--)
    left -= sizes[from - 1]!;
  let headEnd = 0;
  for (let left = maxBytes * HEAD_SHARE; headEnd < from && left >= sizes[headEnd]!; headEnd++)
    left -= sizes[headEnd]!;
  if (headEnd >= from) return parts.join("\n\n");
  const gap = `[${from - headEnd} parts left out]`;
  return [...parts.slice(0, headEnd), gap, ...parts.slice(from)].join("\n\n");
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

/** Beginning and end, and how much is missing between them. */
export function shortened(text: string, maxBytes: number): string {
  const bytes = Buffer.byteLength(text);
  if (bytes <= maxBytes) return text;
  const chars = Math.floor((maxBytes * text.length) / bytes / 2);
  return `${text.slice(0, chars)} [… ${text.length - 2 * chars} characters left out …] ${text.slice(text.length - chars)}`;
}

/** What stands in a request in place of the messages that a summary replaced. Pure. */
import { parseObject, stringOf } from "../../event-payload.ts";
import { shortened } from "../../shortened-text.ts";
import { textBlock } from "./blocks.ts";
import type { HistoryMessage } from "./message-list.ts";

/** Of what the user said last, where the summary replaced it too. */
const MAX_WORDS_BYTES = 8_000;
/** Of system messages, which hold on; the newest count. */
const MAX_SYSTEM_BYTES = 32_000;

/** `words` are blocks of the user's newest message where it is among the `dropped` messages. */
export function summaryMessages(
  summary: string,
  words: readonly string[],
  dropped: readonly HistoryMessage[],
): HistoryMessage[] {
  const intro =
    "[The conversation up to here was longer than fits. These notes stand in its place; the events themselves are still in the session's log.]";
  const blocks = [textBlock(`${intro}\n\n${summary}`)];
  const text = words
    .map((block) => stringOf(parseObject(block).text))
    .filter((said) => said !== "")
    .join("\n");
  if (text !== "") {
    const said = shortened(text, MAX_WORDS_BYTES);
    blocks.push(textBlock(`[What the user said last, in their own words:]\n\n${said}`));
  }
  const user: HistoryMessage = { role: "user", blocks };
  const system = systemBlocks(dropped);
  return system.length === 0 ? [user] : [user, { role: "system", blocks: system }];
}

function systemBlocks(dropped: readonly HistoryMessage[]): string[] {
  const all = dropped.filter(({ role }) => role === "system").flatMap(({ blocks }) => blocks);
  let left = MAX_SYSTEM_BYTES;
  const kept: string[] = [];
  for (const block of all.toReversed()) {
    left -= Buffer.byteLength(block);
    if (left < 0) break;
    kept.unshift(block);
  }
  return kept;
}

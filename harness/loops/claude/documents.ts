/**
 * Documents of a request. One that the model API cannot read, or that is too much for it, has the whole request refused, and
 * every later one with it. So where that happens documents are left out again, and a line in their place says so. Pure.
 */
import { type Json, objectsOf, parseObject } from "../../event-payload.ts";
import { jsonText, textBlock } from "./blocks.ts";
import type { DocumentsDecision } from "./context-decision.ts";
import type { History } from "./history.ts";
import type { BlockPlace, HistoryMessage, MessageList } from "./message-list.ts";

/** Why the newest request was refused. */
export type DocumentTrouble =
  /** Together they have more pages than a request may. */
  | "pages"
  /** The model API cannot read one of them. */
  | "unreadable";

const NOTES: Readonly<Record<DocumentsDecision["why"], string>> = {
  unreadable: "[A document was left out here: the model API cannot read it.]",
  room: "[A document was left out here: with it the request would have been larger than the model API takes.]",
};

/**
 * What the model has read goes before what it has not, unless one of the new ones cannot be read. Undefined where there is
 * nothing that could be left out.
 */
export function documentsStep(history: History): DocumentsDecision | undefined {
  const { documents: trouble, tooLong } = history.trouble;
  if (trouble === undefined && tooLong === 0) return undefined;
  const { seen, all } = countedDocuments(history);
  if (all === 0) return undefined;
  const isNewOnly = trouble === "unreadable" && seen < all;
  const [from, to] = isNewOnly ? [seen, all] : seen > 0 && trouble !== "unreadable" ? [0, seen] : [0, all];
  return { kind: "documents", from, to, why: trouble === "unreadable" ? "unreadable" : "room" };
}

export function hasNewDocuments(history: History): boolean {
  const { seen, all } = countedDocuments(history);
  return seen < all;
}

export function hasDocuments({ messages }: Pick<History, "messages">): boolean {
  return messages.some(({ blocks }) => blocks.some((block) => documentsIn(block) > 0));
}

/** `from` and `to` count documents from 0, in the order of the messages. */
export function leaveOutDocuments(list: MessageList, { from, to, why }: DocumentsDecision): void {
  let index = 0;
  for (const message of list.messages) {
    for (const [block, text] of message.blocks.entries()) {
      const count = documentsIn(text);
      if (count > 0 && index < to && index + count > from)
        list.replace({ message, block }, withoutDocuments(text, from - index, to - index, NOTES[why]));
      index += count;
    }
  }
}

/** Of all documents, those up to the end of the newest request that was answered. */
function countedDocuments({ messages, answeredEnd }: Pick<History, "messages" | "answeredEnd">) {
  let all = 0;
  let seen = 0;
  for (const message of messages) {
    for (const [block, text] of message.blocks.entries()) {
      all += documentsIn(text);
      if (isEnd({ message, block }, answeredEnd)) seen = all;
    }
  }
  return { seen, all };
}

function isEnd({ message, block }: BlockPlace, end: BlockPlace | undefined): boolean {
  return end !== undefined && end.message === message && end.block === block;
}

/** A document by itself, or those in a tool's result. */
function documentsIn(block: HistoryMessage["blocks"][number]): number {
  if (!block.includes(`"type":"document"`)) return 0;
  const { type, content } = parseObject(block);
  if (type === "document") return 1;
  return type === "tool_result" ? objectsOf(content).filter(isDocument).length : 0;
}

function withoutDocuments(block: string, from: number, to: number, note: string): string {
  const value = parseObject(block);
  if (value.type === "document") return textBlock(note);
  let index = 0;
  const content = objectsOf(value.content).map((inner) => {
    if (!isDocument(inner)) return inner;
    const isLeftOut = index >= from && index < to;
    index += 1;
    return isLeftOut ? { type: "text", text: note } : inner;
  });
  return jsonText({ ...value, content });
}

function isDocument(block: Json): boolean {
  return block.type === "document";
}

/**
 * Documents and images of a request. One that the model API cannot read, or that is too much for it, has the whole request
 * refused, and every later one with it. So where that happens they are left out again, and a line in their place says so. Pure.
 */
import { type Json, objectsOf, parseObject } from "../../event-payload.ts";
import { jsonText, textBlock } from "./blocks.ts";
import type { AttachmentsDecision } from "./context-decision.ts";
import type { History, PlacedEvent } from "./history.ts";
import type { BlockPlace, HistoryMessage, MessageList } from "./message-list.ts";

export type AttachmentType = "document" | "image";

/** Why the newest request was refused. */
export interface AttachmentTrouble {
  readonly of: AttachmentType;
  /** `room`: together they are more than a request may have; `unreadable`: the model API does not take one of them. */
  readonly why: "room" | "unreadable";
}

export const ATTACHMENT_TYPES: readonly AttachmentType[] = ["document", "image"];
const NAMES: Readonly<Record<AttachmentType, string>> = { document: "A document", image: "An image" };
const REASONS: Readonly<Record<AttachmentTrouble["why"], string>> = {
  unreadable: "the model API cannot read it",
  room: "with it the request would have been larger than the model API takes",
};

/**
 * What the model has read goes before what it has not, unless one of the new ones cannot be read. Undefined where there is
 * nothing that could be left out.
 */
export function attachmentsStep(history: History): AttachmentsDecision | undefined {
  const { attachments: trouble, tooLong } = history.trouble;
  if (trouble === undefined && tooLong === 0) return undefined;
  const { of, why }: AttachmentTrouble = trouble ?? { of: "document", why: "room" };
  const { seen, all } = counted(history, of);
  if (all === 0) return undefined;
  const isNewOnly = why === "unreadable" && seen < all;
  const [from, to] = isNewOnly ? [seen, all] : seen > 0 && why === "room" ? [0, seen] : [0, all];
  return { kind: "attachments", of, from, to, why };
}

export function hasNewDocuments(history: History): boolean {
  const { seen, all } = counted(history, "document");
  return seen < all;
}

export function hasAttachments({ messages }: Pick<History, "messages">, of: AttachmentType): boolean {
  return messages.some(({ blocks }) => blocks.some((block) => attachmentsIn(block, of) > 0));
}

/** `from` and `to` count those of the decision's type from 0, in the order of the messages. */
export function leaveOutAttachments(list: MessageList, { of, from, to, why }: AttachmentsDecision): void {
  const note = `[${NAMES[of]} was left out here: ${REASONS[why]}.]`;
  let index = 0;
  for (const message of list.messages) {
    for (const [block, text] of message.blocks.entries()) {
      const count = attachmentsIn(text, of);
      if (count > 0 && index < to && index + count > from) {
        const isLeftOut = (n: number) => index + n >= from && index + n < to;
        list.replace({ message, block }, without(text, of, isLeftOut, note));
      }
      index += count;
    }
  }
}

/**
 * Events whose images and documents no later request shows: decisions have put a line in their place, or a summary. What was
 * measured before such a decision depends on them, so that has to be over first; undefined until then.
 */
export function spentAttachments(history: History): ReadonlySet<string> | undefined {
  if (history.isMeasuredBefore) return undefined;
  const shown = new Set(history.messages);
  const isSpent = ({ message, from, to }: PlacedEvent) =>
    !shown.has(message) ||
    message.blocks
      .slice(from, to)
      .every((block) => ATTACHMENT_TYPES.every((of) => attachmentsIn(block, of) === 0));
  return new Set(history.placed.filter(isSpent).map(({ eventId }) => eventId));
}

/** Of all in the history, those up to the end of the newest request that was answered. */
function counted({ messages, answeredEnd }: Pick<History, "messages" | "answeredEnd">, of: AttachmentType) {
  let all = 0;
  let seen = 0;
  for (const message of messages) {
    for (const [block, text] of message.blocks.entries()) {
      all += attachmentsIn(text, of);
      if (isEnd({ message, block }, answeredEnd)) seen = all;
    }
  }
  return { seen, all };
}

function isEnd({ message, block }: BlockPlace, end: BlockPlace | undefined): boolean {
  return end !== undefined && end.message === message && end.block === block;
}

/** One by itself, or those in a tool's result. */
function attachmentsIn(block: HistoryMessage["blocks"][number], of: AttachmentType): number {
  if (!block.includes(`"type":"${of}"`)) return 0;
  const { type, content } = parseObject(block);
  if (type === of) return 1;
  return type === "tool_result" ? objectsOf(content).filter((inner) => inner.type === of).length : 0;
}

function without(block: string, of: AttachmentType, isLeftOut: (n: number) => boolean, note: string): string {
  const value = parseObject(block);
  if (value.type === of) return textBlock(note);
  let n = 0;
  const content = objectsOf(value.content).map((inner): Json => {
    if (inner.type !== of) return inner;
    n += 1;
    return isLeftOut(n - 1) ? { type: "text", text: note } : inner;
  });
  return jsonText({ ...value, content });
}

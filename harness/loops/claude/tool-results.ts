/** Results of tools as they stand in messages, whole at first, and cut down to their beginning once that was decided. Pure. */
import type { Event } from "../../../proto/gen/tendon/v1/event_pb.js";
import { INTERRUPTED_TEXT } from "../../brain-events.ts";
import { objectsOf, payloadOf, stringOf } from "../../event-payload.ts";
import { resultBlocks, textBlock } from "./blocks.ts";
import type { BlockPlace } from "./message-list.ts";

export interface PlacedResult {
  readonly place: BlockPlace;
  /** Of the call's event. */
  readonly position: number;
  /** The name by which model and result know the call. */
  readonly modelId: string;
  readonly event: Event | undefined;
  isTrimmed: boolean;
}

/** What the note about what was left out may weigh. */
export const TRIMMED_NOTE_CHARS = 250;

export function resultBlock(modelId: string, event: Event | undefined): string {
  const payload = event && payloadOf(event);
  const isError = payload === undefined || payload.is_error === true;
  const blocks =
    payload === undefined ? [textBlock(INTERRUPTED_TEXT)] : resultBlocks(payload.content, isError);
  return withContent(modelId, blocks, isError);
}

/** The first characters of its text, and where the rest is. */
export function trimmedResultBlock({ modelId, event }: PlacedResult, keepChars: number): string {
  const payload = event && payloadOf(event);
  const content = payload?.content;
  const texts =
    typeof content === "string"
      ? [content]
      : objectsOf(content).map((block) =>
          block.type === "text" ? stringOf(block.text) : `[${stringOf(block.type) || "content"}]`,
        );
  const whole = texts.join("\n");
  const head = whole.slice(0, keepChars);
  const note = `[The rest of this result was left out later, to save room. It had ${whole.length} characters and is event ${event?.position ?? 0} of the session's log.]`;
  const text = head.trim() === "" ? note : `${head}\n${note}`;
  return withContent(modelId, [textBlock(text)], payload?.is_error === true);
}

function withContent(modelId: string, blocks: readonly string[], isError: boolean): string {
  const head = `{"type":"tool_result","tool_use_id":${JSON.stringify(modelId)}`;
  const body = blocks.length === 0 ? "" : `,"content":[${blocks.join(",")}]`;
  return `${head}${body}${isError ? `,"is_error":true` : ""}}`;
}

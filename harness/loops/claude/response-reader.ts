/** Gathers the events of one streamed answer into what the loop proposes, and shows its text while it forms. */
import { countOf, isObject, type Json, objectText, stringOf } from "../../event-payload.ts";
import type {
  LoopPreview,
  ModelUsage,
  ProposedCall,
  ProposedEvent,
  ProposedResponse,
  ResponseStop,
} from "../loop.ts";
import type { StreamEvent } from "./model-client.ts";

/** A stream that is no whole answer, or not one of this API. */
export class BrokenAnswer extends Error {
  override readonly name = "BrokenAnswer";
}

/** An answer that grows beyond this is given up: no model gives one. */
const MAX_ANSWER_CHARS = 16 * 1024 * 1024;
const MAX_BLOCKS = 200;
const SHOWN_INPUT_CHARS = 2_000;

interface FormingBlock {
  readonly start: Json;
  /** Text, thinking or a call's input, as it came. */
  text: string;
  signature: string;
  readonly citations: unknown[];
  isComplete: boolean;
  readonly eventId: string;
  /** Of the block within its event. */
  readonly index: number;
}

/** What a turn gives to whoever reads its answer. */
export interface ReaderHooks {
  newEventId(): string;
  preview(preview: LoopPreview): void;
  callBegan(eventId: string, modelName: string): void;
}

export class ResponseReader {
  private readonly newEventId: () => string;
  private readonly preview: (preview: LoopPreview) => void;
  private readonly callBegan: (eventId: string, modelName: string) => void;
  private readonly blocks: FormingBlock[] = [];
  private readonly byIndex = new Map<number, FormingBlock>();
  private chars = 0;
  private usage: Json = {};
  private stopReason = "";
  private stopDetails: Json = {};
  private isWhole = false;

  constructor({ newEventId, preview, callBegan }: ReaderHooks) {
    this.newEventId = newEventId;
    this.preview = preview;
    this.callBegan = callBegan;
  }

  /** Throws BrokenAnswer for what no answer holds. */
  take(event: StreamEvent): void {
    switch (event.type) {
      case "message_start":
        this.usage = {
          ...(isObject(event.message) && isObject(event.message.usage) ? event.message.usage : {}),
        };
        return;
      case "content_block_start":
        this.startBlock(event);
        return;
      case "content_block_delta":
        this.extend(event);
        return;
      case "content_block_stop":
        this.blockAt(event).isComplete = true;
        return;
      case "message_delta":
        this.noteEnd(event);
        return;
      case "message_stop":
        this.isWhole = true;
    }
  }

  /** The answer, once the stream has ended. Throws BrokenAnswer when it is not whole. */
  finish(): ProposedResponse {
    if (!this.isWhole || this.stopReason === "")
      throw new BrokenAnswer("the stream ended before the answer did");
    const stop = this.stop();
    return { events: this.events(stop), stop, usage: this.modelUsage() };
  }

  private startBlock(event: StreamEvent): void {
    const start = isObject(event.content_block) ? event.content_block : {};
    if (this.blocks.length >= MAX_BLOCKS)
      throw new BrokenAnswer(`an answer of more than ${MAX_BLOCKS} blocks`);
    const last = this.blocks.at(-1);
    const joins = start.type === "text" && last?.start.type === "text";
    const block: FormingBlock = {
      start,
      text: stringOf(start.text) + stringOf(start.thinking),
      signature: stringOf(start.signature),
      citations: [],
      isComplete: false,
      eventId: joins ? last.eventId : this.newEventId(),
      index: joins ? last.index + 1 : 0,
    };
    this.blocks.push(block);
    this.byIndex.set(Number(event.index), block);
    const type =
      start.type === "text" ? "agent.message" : /thinking/.test(stringOf(start.type)) ? "agent.thinking" : "";
    if (type !== "" && !joins) this.preview({ kind: "start", eventId: block.eventId, type });
    if (start.type === "tool_use") this.callBegan(block.eventId, stringOf(start.name));
  }

  private blockAt(event: StreamEvent): FormingBlock {
    const block = this.byIndex.get(Number(event.index));
    if (block === undefined) throw new BrokenAnswer("a delta of a block that never began");
    return block;
  }

  private extend(event: StreamEvent): void {
    const block = this.blockAt(event);
    const delta = isObject(event.delta) ? event.delta : {};
    if (delta.type === "signature_delta") block.signature += stringOf(delta.signature);
    if (delta.type === "citations_delta") block.citations.push(delta.citation);
    const added = stringOf(delta.text) + stringOf(delta.thinking) + stringOf(delta.partial_json);
    this.chars += added.length;
    if (this.chars > MAX_ANSWER_CHARS) throw new BrokenAnswer("an answer that does not end");
    block.text += added;
    if (delta.type === "text_delta") {
      this.preview({ kind: "text", eventId: block.eventId, index: block.index, text: added });
    }
  }

  private noteEnd(event: StreamEvent): void {
    const delta = isObject(event.delta) ? event.delta : {};
    this.stopReason = stringOf(delta.stop_reason) || this.stopReason;
    if (isObject(delta.stop_details)) this.stopDetails = delta.stop_details;
    for (const [name, value] of Object.entries(isObject(event.usage) ? event.usage : {})) {
      if (value !== null) this.usage[name] = value;
    }
  }

  private stop(): ResponseStop {
    const reason = this.stopReason;
    if (reason === "refusal") {
      const { category, explanation } = this.stopDetails;
      const refusal = { category: stringOf(category) || null, explanation: stringOf(explanation) || null };
      return { kind: "refusal", reason, refusal };
    }
    if (reason === "pause_turn") return { kind: "paused", reason };
    if (reason !== "max_tokens" && reason !== "model_context_window_exceeded")
      return { kind: "done", reason };
    const last = this.blocks.at(-1);
    const isCut =
      last?.start.type === "tool_use" && (last.text.trim() === "" || objectText(last.text) === undefined);
    return { kind: isCut ? "cut_in_call" : "limit", reason };
  }

  private events(stop: ResponseStop): ProposedEvent[] {
    const events: ProposedEvent[] = [];
    let stray: string[] = [];
    for (const block of this.blocks) {
      const text = blockText(block);
      const last = events.at(-1);
      const { type } = block.start;
      if (type === "tool_use") {
        events.push({ ...this.callOf(block, stop), blocks: [...stray, text] });
        stray = [];
      } else if (type === "text" && last?.kind === "message" && last.eventId === block.eventId) {
        events[events.length - 1] = {
          ...last,
          texts: [...last.texts, block.text],
          blocks: [...last.blocks, text],
        };
      } else if (type === "text") {
        events.push({
          kind: "message",
          eventId: block.eventId,
          texts: [block.text],
          blocks: [...stray, text],
        });
        stray = [];
      } else if (type === "thinking" || type === "redacted_thinking") {
        events.push({ kind: "thinking", eventId: block.eventId, blocks: [...stray, text] });
        stray = [];
      } else {
        // A block of a kind that has no event of its own is kept with what follows.
        stray.push(text);
      }
    }
    if (stray.length > 0) events.push({ kind: "thinking", eventId: this.newEventId(), blocks: stray });
    // Clients are told of no message that says nothing.
    return events.filter((event) => event.kind !== "message" || event.texts.some((text) => text !== ""));
  }

  private callOf(block: FormingBlock, stop: ResponseStop): ProposedCall {
    const isLast = block === this.blocks.at(-1);
    const problem = isLast && stop.kind === "cut_in_call" ? CUT_CALL : inputProblem(block.text);
    return {
      kind: "call",
      eventId: block.eventId,
      modelName: stringOf(block.start.name),
      inputText: block.text,
      problem,
      blocks: [],
    };
  }

  private modelUsage(): ModelUsage {
    const { input_tokens, output_tokens, cache_read_input_tokens, cache_creation_input_tokens } = this.usage;
    return {
      inputTokens: countOf(input_tokens),
      outputTokens: countOf(output_tokens),
      cacheReadInputTokens: countOf(cache_read_input_tokens),
      cacheCreationInputTokens: countOf(cache_creation_input_tokens),
    };
  }
}

const CUT_CALL =
  "The answer reached its length limit inside this call, so the call did not run. Make it shorter, or split it into several.";

function inputProblem(text: string): string | undefined {
  if (objectText(text) !== undefined) return undefined;
  let why = "it is not an object";
  try {
    JSON.parse(text);
  } catch (error) {
    why = (error as Error).message;
  }
  const shown = text.length > SHOWN_INPUT_CHARS ? `${text.slice(0, SHOWN_INPUT_CHARS)}…` : text;
  return `The input of this call is not valid JSON, so the call did not run: ${why}\nIt was: ${shown}`;
}

/** The block as a later request holds it, except that a call's input stays the text that it was. */
function blockText({ start, text, signature, citations }: FormingBlock): string {
  switch (start.type) {
    case "text":
      return JSON.stringify({ type: "text", text, ...(citations.length > 0 && { citations }) });
    case "thinking":
      return JSON.stringify({ type: "thinking", thinking: text, signature });
    case "redacted_thinking":
      return JSON.stringify({ type: "redacted_thinking", data: start.data });
    case "tool_use":
      return JSON.stringify({ type: "tool_use", id: start.id, name: start.name, input_text: text });
    default:
      return JSON.stringify(start);
  }
}

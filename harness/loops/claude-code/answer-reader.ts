/** One answer of the SDK's model, from the API's own stream events: what is shown of it, and what it proposes when it is whole. */
import { countOf, isObject, type Json, objectText, stringOf } from "../../event-payload.ts";
import type { LoopPreview, ModelUsage, ProposedEvent, ProposedResponse, ResponseStop } from "../loop.ts";

export interface AnswerReaderOptions {
  readonly newEventId: () => string;
  readonly preview: (preview: LoopPreview) => void;
  /** The model has begun a call; see LoopTurn. */
  readonly callBegan: (eventId: string, modelName: string) => void;
  /** The catalogue's name of a tool. */
  readonly nameOf: (calledAs: string) => string;
}

interface OpenBlock {
  readonly block: Json;
  eventId: string | undefined;
  /** Input of a call, as the model writes it. */
  input: string;
}

const PARTIAL_TEXTS: Readonly<Record<string, string>> = {
  text_delta: "text",
  thinking_delta: "thinking",
  signature_delta: "signature",
};

export class AnswerReader {
  /** The API's id of the message. */
  messageId = "";
  private readonly options: AnswerReaderOptions;
  private blocks: OpenBlock[] = [];
  private usage: Json = {};
  private stopReason = "";
  private stopDetails: unknown;

  constructor(options: AnswerReaderOptions) {
    this.options = options;
  }

  get began(): boolean {
    return this.messageId !== "";
  }

  /** Whether the model ended its answer: one that broke off has no reason for its end, whatever follows it. */
  get isWhole(): boolean {
    return this.stopReason !== "";
  }

  /** Blocks of which the program writes a line each. */
  get writtenBlocks(): number {
    return this.blocks.filter(({ block }) => block.type !== "text" || stringOf(block.text).trim() !== "")
      .length;
  }

  /** The model's ids of its calls, by the events that propose them. */
  get callIds(): ReadonlyMap<string, string> {
    const calls = this.blocks.filter(({ block }) => block.type === "tool_use");
    return new Map(calls.map(({ eventId, block }) => [eventId!, stringOf(block.id)]));
  }

  /** Whether the answer is whole with this event. */
  take(event: Json): boolean {
    switch (event.type) {
      case "message_start": {
        const message = isObject(event.message) ? event.message : {};
        this.messageId = stringOf(message.id) || "unknown";
        // The program has asked once more: what came of the first answer broke off.
        this.blocks = [];
        this.stopReason = "";
        this.usage = {};
        this.addUsage(message.usage);
        return false;
      }
      case "content_block_start":
        this.open(isObject(event.content_block) ? { ...event.content_block } : {});
        return false;
      case "content_block_delta":
        this.extend(countOf(event.index), isObject(event.delta) ? event.delta : {});
        return false;
      case "message_delta": {
        const delta = isObject(event.delta) ? event.delta : {};
        this.stopReason = stringOf(delta.stop_reason);
        this.stopDetails = delta.stop_details;
        this.addUsage(event.usage);
        return false;
      }
      default:
        return event.type === "message_stop";
    }
  }

  response(): ProposedResponse {
    const events = this.blocks.flatMap((open) => this.proposal(open));
    return { events, stop: this.stop(), usage: this.usageOf() };
  }

  private open(block: Json): void {
    const hasEvent = block.type === "text" || block.type === "tool_use" || isThinking(block);
    const eventId = hasEvent ? this.options.newEventId() : undefined;
    this.blocks.push({ block, eventId, input: "" });
    const { preview, callBegan, nameOf } = this.options;
    if (block.type === "tool_use") callBegan(eventId!, nameOf(stringOf(block.name)));
    if (block.type === "text") preview({ kind: "start", eventId: eventId!, type: "agent.message" });
  }

  private extend(index: number, delta: Json): void {
    const open = this.blocks[index];
    if (open === undefined) return;
    if (delta.type === "input_json_delta") {
      open.input += stringOf(delta.partial_json);
      return;
    }
    const field = PARTIAL_TEXTS[stringOf(delta.type)];
    if (field === undefined) return;
    const text = stringOf(delta[field]);
    open.block[field] = stringOf(open.block[field]) + text;
    if (field !== "text" || open.eventId === undefined) return;
    this.options.preview({ kind: "text", eventId: open.eventId, index: 0, text });
  }

  private proposal({ block, eventId, input }: OpenBlock): ProposedEvent[] {
    if (eventId === undefined) return [];
    if (isThinking(block)) return [{ kind: "thinking", eventId, blocks: [JSON.stringify(block)] }];
    if (block.type === "text") {
      const text = stringOf(block.text);
      if (text.trim() === "") return [];
      return [{ kind: "message", eventId, texts: [text], blocks: [JSON.stringify({ type: "text", text })] }];
    }
    const modelName = this.options.nameOf(stringOf(block.name));
    const inputText = input === "" ? JSON.stringify(isObject(block.input) ? block.input : {}) : input;
    const kept = { type: "tool_use", id: block.id, name: modelName, input_text: inputText };
    const isWhole = objectText(inputText) !== undefined;
    const problem = isWhole ? undefined : "The input of this call is not one JSON object, so it did not run.";
    return [{ kind: "call", eventId, modelName, inputText, problem, blocks: [JSON.stringify(kept)] }];
  }

  private stop(): ResponseStop {
    const reason = this.stopReason;
    switch (reason) {
      case "refusal": {
        const details = isObject(this.stopDetails) ? this.stopDetails : {};
        const category = typeof details.category === "string" ? details.category : null;
        const explanation = typeof details.explanation === "string" ? details.explanation : null;
        return { kind: "refusal", reason, refusal: { category, explanation } };
      }
      case "max_tokens":
      case "model_context_window_exceeded":
        return { kind: this.blocks.at(-1)?.block.type === "tool_use" ? "cut_in_call" : "limit", reason };
      case "pause_turn":
        return { kind: "paused", reason };
      default:
        return { kind: "done", reason };
    }
  }

  private addUsage(usage: unknown): void {
    if (isObject(usage)) this.usage = { ...this.usage, ...usage };
  }

  private usageOf(): ModelUsage {
    const { usage } = this;
    return {
      inputTokens: countOf(usage.input_tokens),
      outputTokens: countOf(usage.output_tokens),
      cacheReadInputTokens: countOf(usage.cache_read_input_tokens),
      cacheCreationInputTokens: countOf(usage.cache_creation_input_tokens),
    };
  }
}

function isThinking({ type }: Json): boolean {
  return type === "thinking" || type === "redacted_thinking";
}

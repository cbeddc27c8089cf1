/**
 * The answering side of the Messages API's wire: blocks, stream events, server-sent-event frames, error bodies.
 * Only what an endpoint writes; what a client sends is read where it is judged.
 */

/** A content block of an answer. A tool's input is text, because that is what streams. */
export type AnswerBlock =
  | { type: "text"; text: string }
  | { type: "thinking"; thinking: string; signature: string }
  | { type: "redacted_thinking"; data: string }
  | { type: "tool_use"; id: string; name: string; inputJson: string };

export type StopReason =
  | "end_turn"
  | "max_tokens"
  | "stop_sequence"
  | "tool_use"
  | "pause_turn"
  | "refusal"
  | "model_context_window_exceeded";

/** Token counts of one answer; the input is the sum of the first three. */
export interface Usage {
  inputTokens: number;
  cacheReadTokens: number;
  cacheCreation5mTokens: number;
  cacheCreation1hTokens: number;
  outputTokens: number;
}

/** What every answer says about itself besides its content. */
export interface AnswerHead {
  id: string;
  model: string;
  usage: Usage;
}

export interface StopDetails {
  type: "refusal";
  category: string | null;
  explanation: string | null;
}

/** One event of a stream; `type` is also the name of its frame. */
export type WireEvent = { type: string } & Record<string, unknown>;

/** The frame of one event as it travels. */
export function encodeEvent(event: WireEvent): string {
  return `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`;
}

export function errorBody(type: string, message: string, requestId: string): WireEvent {
  return { type: "error", error: { type, message }, request_id: requestId };
}

function wireUsage(usage: Usage, outputTokens: number): Record<string, unknown> {
  return {
    input_tokens: usage.inputTokens,
    cache_creation_input_tokens: usage.cacheCreation5mTokens + usage.cacheCreation1hTokens,
    cache_read_input_tokens: usage.cacheReadTokens,
    cache_creation: {
      ephemeral_5m_input_tokens: usage.cacheCreation5mTokens,
      ephemeral_1h_input_tokens: usage.cacheCreation1hTokens,
    },
    output_tokens: outputTokens,
    output_tokens_details: null,
    server_tool_use: null,
    service_tier: "standard",
    inference_geo: null,
    speed: null,
  };
}

function wireMessage(head: AnswerHead, content: unknown[], outputTokens: number): Record<string, unknown> {
  return {
    id: head.id,
    type: "message",
    role: "assistant",
    model: head.model,
    content,
    container: null,
    diagnostics: null,
    stop_reason: null,
    stop_sequence: null,
    stop_details: null,
    usage: wireUsage(head.usage, outputTokens),
  };
}

function wireBlock(block: AnswerBlock, filled: boolean): Record<string, unknown> {
  switch (block.type) {
    case "text":
      return { type: "text", text: filled ? block.text : "", citations: null };
    case "thinking":
      return {
        type: "thinking",
        thinking: filled ? block.thinking : "",
        signature: filled ? block.signature : "",
      };
    case "redacted_thinking":
      return { type: "redacted_thinking", data: block.data };
    case "tool_use":
      return {
        type: "tool_use",
        id: block.id,
        name: block.name,
        input: filled ? JSON.parse(block.inputJson) : {},
        caller: { type: "direct" },
      };
  }
}

/** The whole answer in one JSON body, as a request without `stream` gets it. Throws when a tool's input is not JSON. */
export function wholeMessage(
  head: AnswerHead,
  blocks: readonly AnswerBlock[],
  stop: { reason: StopReason; details?: StopDetails },
): Record<string, unknown> {
  const content = blocks.map((block) => wireBlock(block, true));
  return {
    ...wireMessage(head, content, head.usage.outputTokens),
    stop_reason: stop.reason,
    stop_details: stop.details ?? null,
  };
}

export function messageStart(head: AnswerHead): WireEvent {
  return { type: "message_start", message: wireMessage(head, [], 1) };
}

export function blockStart(index: number, block: AnswerBlock): WireEvent {
  return { type: "content_block_start", index, content_block: wireBlock(block, false) };
}

/** The part of a block that arrives in pieces, as one text. */
export function streamedText(block: AnswerBlock): string {
  switch (block.type) {
    case "text":
      return block.text;
    case "thinking":
      return block.thinking;
    case "tool_use":
      return block.inputJson;
    case "redacted_thinking":
      return "";
  }
}

/** The deltas of a block whose streamed text was split into `pieces`; a thinking block's signature comes last. */
export function blockDeltas(index: number, block: AnswerBlock, pieces: readonly string[]): WireEvent[] {
  const event = (delta: Record<string, unknown>): WireEvent => ({
    type: "content_block_delta",
    index,
    delta,
  });
  switch (block.type) {
    case "text":
      return pieces.map((text) => event({ type: "text_delta", text }));
    case "thinking":
      return [
        ...pieces.map((thinking) => event({ type: "thinking_delta", thinking })),
        event({ type: "signature_delta", signature: block.signature }),
      ];
    case "tool_use":
      // The API opens every tool input with an empty piece.
      return ["", ...pieces].map((piece) => event({ type: "input_json_delta", partial_json: piece }));
    case "redacted_thinking":
      return [];
  }
}

export function blockStop(index: number): WireEvent {
  return { type: "content_block_stop", index };
}

/** The last two events of a stream that ends well. */
export function messageEnd(usage: Usage, stop: { reason: StopReason; details?: StopDetails }): WireEvent[] {
  return [
    {
      type: "message_delta",
      delta: {
        stop_reason: stop.reason,
        stop_sequence: null,
        stop_details: stop.details ?? null,
        container: null,
      },
      usage: {
        input_tokens: usage.inputTokens,
        cache_creation_input_tokens: usage.cacheCreation5mTokens + usage.cacheCreation1hTokens,
        cache_read_input_tokens: usage.cacheReadTokens,
        output_tokens: usage.outputTokens,
        output_tokens_details: null,
        server_tool_use: null,
      },
    },
    { type: "message_stop" },
  ];
}

/** Splits text every `length` characters, never inside a surrogate pair. */
export function piecesOf(text: string, length: number): string[] {
  const pieces: string[] = [];
  for (let from = 0; from < text.length; ) {
    let to = Math.min(text.length, from + Math.max(1, length));
    const last = text.charCodeAt(to - 1);
    if (to < text.length && last >= 0xd800 && last <= 0xdbff) to += 1;
    pieces.push(text.slice(from, to));
    from = to;
  }
  return pieces;
}

/** A rough count, good enough for a made-up usage: four bytes of UTF-8 are a token. */
export function roughTokens(text: string): number {
  return Math.ceil(Buffer.byteLength(text) / 4);
}

/** What the fake model does with one request, and short ways to write it. Nothing here knows about sockets. */
import { createHmac } from "node:crypto";
import type { AnswerBlock, StopDetails, StopReason } from "../../harness/demo-model/messages-wire.ts";

/** Something to wait for before the next bytes go out. A function is called when its moment has come. */
export type Wait = Promise<unknown> | (() => Promise<unknown> | undefined);

/** A block, and how its streamed text is split. A tool_use without an id gets one that no other call has. */
export type TurnBlock = (Exclude<AnswerBlock, { type: "tool_use" }> | ToolUseTurn) & {
  pieces?: readonly string[];
};

interface ToolUseTurn {
  type: "tool_use";
  id?: string;
  name: string;
  inputJson: string;
}

/** How a stream ends early. */
export type BreakOff =
  /** Exactly this many bytes of the body are sent; then the socket closes, or the response ends as if it were whole. */
  | { atByte: number; how: "destroy" | "end" }
  /** Exactly this many bytes are sent; `held` is told, and nothing more comes until the client goes. */
  | { atByte: number; how: "hold"; held: () => void }
  /** After this many deltas an `error` event is sent and the response ends. */
  | { afterDeltas: number; errorType: string; message: string };

export interface Answer {
  kind: "answer";
  blocks: readonly TurnBlock[];
  /** Default: tool_use when there is a tool_use block, else end_turn. */
  stopReason?: StopReason;
  stopDetails?: StopDetails;
  /** Replaces the counts that the fake works out. */
  usage?: Partial<{ inputTokens: number; outputTokens: number; cacheReadTokens: number }>;
  /** Held before the status line; before the first delta; before delta n (from 0); before the closing events. */
  before?: {
    headers?: Wait;
    firstDelta?: Wait;
    delta?: (n: number) => Promise<unknown> | undefined;
    end?: Wait;
  };
  breakOff?: BreakOff;
}

export interface HttpFailure {
  kind: "http_failure";
  status: number;
  errorType: string;
  message: string;
  headers?: Record<string, string>;
}

/** `hang`: no answer until the client goes. `drop`: the socket closes without one. */
export type Turn = Answer | HttpFailure | { kind: "hang" } | { kind: "drop" };

/** A text block; with `pieces`, one delta each. */
export function text(...pieces: string[]): TurnBlock {
  return { type: "text", text: pieces.join(""), pieces };
}

/** A thinking block with a signature that the fake will know again, also in a later instance. */
export function thinking(...pieces: string[]): TurnBlock {
  const all = pieces.join("");
  return { type: "thinking", thinking: all, signature: sign("thinking", all), pieces };
}

export function redactedThinking(secret: string): TurnBlock {
  const sealed = Buffer.from(secret).toString("base64url");
  return { type: "redacted_thinking", data: `${sealed}.${sign("redacted", sealed)}` };
}

export interface ToolUseOptions {
  id?: string;
  /** How the input's JSON is split; joined, the pieces are the input. */
  pieces?: readonly string[];
}

/** A call. `input` as text is sent as it stands, also when it is not JSON. */
export function toolUse(name: string, input: unknown, { id, pieces }: ToolUseOptions = {}): TurnBlock {
  const inputJson = pieces?.join("") ?? (typeof input === "string" ? input : JSON.stringify(input));
  return { type: "tool_use", name, inputJson, ...(id && { id }), ...(pieces && { pieces }) };
}

/** An answer of these blocks; a bare string is a text block. */
export function turn(
  blocks: readonly (TurnBlock | string)[],
  options: Omit<Answer, "kind" | "blocks"> = {},
): Answer {
  const whole = blocks.map((block) => (typeof block === "string" ? text(block) : block));
  return { kind: "answer", blocks: whole, ...options };
}

export function refusal(
  blocks: readonly (TurnBlock | string)[] = [],
  category: string | null = null,
): Answer {
  return turn(blocks, {
    stopReason: "refusal",
    stopDetails: { type: "refusal", category, explanation: null },
  });
}

export function rateLimited(retryAfterSeconds?: number): HttpFailure {
  return {
    kind: "http_failure",
    status: 429,
    errorType: "rate_limit_error",
    message: "This request would exceed your rate limit.",
    ...(retryAfterSeconds !== undefined && { headers: { "retry-after": String(retryAfterSeconds) } }),
  };
}

export function overloaded(): HttpFailure {
  return { kind: "http_failure", status: 529, errorType: "overloaded_error", message: "Overloaded" };
}

export function serverError(): HttpFailure {
  return { kind: "http_failure", status: 500, errorType: "api_error", message: "Internal server error" };
}

export function invalidRequest(message: string): HttpFailure {
  return { kind: "http_failure", status: 400, errorType: "invalid_request_error", message };
}

export const hang: Turn = { kind: "hang" };
export const drop: Turn = { kind: "drop" };

/** A wait that the test ends. */
export interface Gate {
  readonly opened: Promise<void>;
  open(): void;
}

export function gate(): Gate {
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open };
}

/** Whether the fake made this block: signature and text belong together. */
export function isGenuine(
  block:
    | { type: "thinking"; thinking: string; signature: string }
    | { type: "redacted_thinking"; data: string },
): boolean {
  if (block.type === "thinking") return block.signature === sign("thinking", block.thinking);
  const [sealed = "", signature] = block.data.split(".");
  return signature === sign("redacted", sealed);
}

function sign(kind: string, content: string): string {
  return createHmac("sha256", "the fake model's own").update(`${kind}:${content}`).digest("base64");
}

/** What a tool is: data that the model sees, and a function over the primitives of a hand. */
import type { Clock } from "../../kit/clock.ts";
import type { Hand, ToolDefinition } from "../drivers/driver.ts";
import type { ToolResult } from "../result.ts";
import type { HandTools } from "./hand-tools.ts";

export interface ToolCall {
  readonly hand: Hand;
  readonly state: HandTools;
  readonly callId: string;
  readonly input: Readonly<Record<string, unknown>>;
  /** The caller's bound; 0 leaves it to the tool. */
  readonly timeoutMs: number;
  /** W3C `traceparent`, for the environment of what the call starts. */
  readonly traceParent?: string | undefined;
  readonly signal: AbortSignal;
  /** Output while it comes, as raw bytes. The tool reads on when the promise resolves. */
  readonly onOutput: (chunk: Uint8Array) => void | Promise<void>;
  readonly clock: Clock;
}

export interface Tool {
  readonly definition: ToolDefinition;
  /** True for tools that bound their own time and cancel by themselves. */
  readonly ownsTime?: boolean;
  /** May throw `InputError`, `FileError` and `HandError`; anything else is a bug. */
  run(call: ToolCall): Promise<ToolResult>;
}

/** The model's input cannot be used; the text says what to change. */
export class InputError extends Error {
  override readonly name = "InputError";
}

export const DEFAULT_TIMEOUT_MS = 120_000;
/** How long a call may show no progress when its environment does not say. */
export const DEFAULT_STALL_MS = 30 * 60_000;
export const MAX_TIMEOUT_MS = 24 * 3_600_000;
/** The most that `read` gives and `edit` takes. */
export const MAX_FILE_BYTES = 256 * 1024;

/** Calls tools on a hand the way a tunnel does, with what a test wants to change. */

import type { Hand } from "../../hand-agent/drivers/driver.ts";
import type { ToolResult } from "../../hand-agent/result.ts";
import { executeTool } from "../../hand-agent/tools/execute-tool.ts";
import { HandTools } from "../../hand-agent/tools/hand-tools.ts";
import { type Clock, systemClock } from "../../kit/clock.ts";

export interface CallOptions {
  callId?: string;
  timeoutMs?: number;
  signal?: AbortSignal;
  onOutput?: (chunk: Uint8Array) => void | Promise<void>;
}

export interface ToolCaller {
  (name: string, input: unknown, options?: CallOptions): Promise<ToolResult>;
  bash(command: string, options?: CallOptions & { input?: Record<string, unknown> }): Promise<ToolResult>;
}

/** `stallMs`: how long a command may show no progress; `clock`: what measures the time of calls. */
export function toolCaller(hand: Hand, stallMs = 0, clock: Clock = systemClock): ToolCaller {
  const state = new HandTools(hand, clock, stallMs);
  let calls = 0;
  const call = (name: string, input: unknown, options: CallOptions = {}) =>
    executeTool({
      hand,
      state,
      callId: options.callId ?? `call_${calls++}`,
      name,
      input: typeof input === "string" ? input : JSON.stringify(input),
      timeoutMs: options.timeoutMs ?? 0,
      signal: options.signal ?? new AbortController().signal,
      onOutput: options.onOutput ?? (() => {}),
    });
  return Object.assign(call, {
    bash: (command: string, { input, ...options }: CallOptions & { input?: Record<string, unknown> } = {}) =>
      call("bash", { command, ...input }, options),
  });
}

export function textOf(result: ToolResult): string {
  return result.content.map((block) => (block.type === "text" ? block.text : "")).join("");
}

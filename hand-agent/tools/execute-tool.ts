/** Runs one tool call on a hand. The one entrance for whoever carries calls to hands. */
import { messageOf } from "../../kit/errors.ts";
import { FileError, type Hand, HandError } from "../drivers/driver.ts";
import { errorResult, type ToolResult } from "../result.ts";
import type { HandTools } from "./hand-tools.ts";
import { TOOLS } from "./registry.ts";
import { DEFAULT_TIMEOUT_MS, InputError, MAX_TIMEOUT_MS, type Tool, type ToolCall } from "./tool.ts";

export interface ExecuteToolRequest {
  readonly hand: Hand;
  /** One per hand. */
  readonly state: HandTools;
  /** Unique per execution; marks the call's processes and names its artefact. */
  readonly callId: string;
  readonly name: string;
  /** JSON text of one object; an empty text means `{}`. */
  readonly input: string;
  /** 0: the tool's default. At most 24 h. */
  readonly timeoutMs: number;
  /** W3C `traceparent` for what the call starts. */
  readonly traceParent?: string | undefined;
  /** Cancels the call. The result then says what was done about its processes. */
  readonly signal: AbortSignal;
  readonly onOutput: (chunk: Uint8Array) => void | Promise<void>;
}

/** How long a tool that was told to stop may take before the call ends without it. */
const STOP_GRACE_MS = 2_000;

/** Never rejects: whatever happens is a result. Calls of one shell queue; other tools run side by side. */
export async function executeTool(request: ExecuteToolRequest): Promise<ToolResult> {
  const { hand, state, name } = request;
  if (hand.callTool !== undefined) return callOwnTool(request);
  const tool = TOOLS.find((each) => each.definition.name === name);
  if (!tool) {
    const known = TOOLS.map((each) => each.definition.name).join(", ");
    return errorResult(`unknown tool ${JSON.stringify(name)}; this hand has: ${known}`, "failed");
  }
  try {
    const call: ToolCall = {
      hand,
      state,
      callId: request.callId,
      input: parseInput(name, request.input),
      timeoutMs: Math.min(Math.max(0, request.timeoutMs), MAX_TIMEOUT_MS),
      traceParent: request.traceParent,
      signal: request.signal,
      onOutput: request.onOutput,
      clock: state.clock,
    };
    return tool.ownsTime ? await tool.run(call) : await runWithin(tool, call);
  } catch (error) {
    return failure(name, error);
  }
}

/** A tool that the hand brings itself: its driver knows it. */
async function callOwnTool({ hand, state, name, ...request }: ExecuteToolRequest): Promise<ToolResult> {
  try {
    return await hand.callTool!({
      name,
      input: parseInput(name, request.input),
      timeoutMs: Math.min(Math.max(0, request.timeoutMs), MAX_TIMEOUT_MS),
      signal: request.signal,
      onOutput: request.onOutput,
      clock: state.clock,
    });
  } catch (error) {
    return failure(name, error);
  }
}

function parseInput(name: string, text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = text.trim() === "" ? {} : JSON.parse(text);
  } catch (error) {
    throw new InputError(`${name}: the input is not valid JSON: ${messageOf(error)}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new InputError(`${name}: the input must be a JSON object`);
  }
  return value as Record<string, unknown>;
}

/** Tools that do not bound their own time are stopped by a signal, and left behind if they do not obey. */
async function runWithin(tool: Tool, call: ToolCall): Promise<ToolResult> {
  const { name } = tool.definition;
  const timeoutMs = call.timeoutMs || DEFAULT_TIMEOUT_MS;
  const stop = new AbortController();
  const cancel = () => stop.abort();
  call.signal.addEventListener("abort", cancel, { once: true });
  if (call.signal.aborted) cancel();
  const stopTimer = call.clock.after(timeoutMs, cancel);
  const running = tool.run({ ...call, signal: stop.signal });
  running.catch(() => {}); // also when nobody waits any more
  try {
    return await Promise.race([running, graceAfter(stop.signal, call)]);
  } catch (error) {
    if (!stop.signal.aborted) throw error;
    const { left } = await call.hand
      .killCall(call.callId, { withinMs: STOP_GRACE_MS })
      .catch(() => ({ left: [] }));
    const rest = left.length === 0 ? {} : { leftProcesses: left };
    return call.signal.aborted
      ? { ...errorResult(`${name}: cancelled`, "cancelled"), ...rest }
      : { ...errorResult(`${name}: timed out after ${timeoutMs}ms`, "timed_out"), ...rest };
  } finally {
    stopTimer();
    call.signal.removeEventListener("abort", cancel);
  }
}

function graceAfter(signal: AbortSignal, { clock }: ToolCall): Promise<never> {
  return new Promise((_, reject) => {
    const onAbort = () => clock.after(STOP_GRACE_MS / 4, () => reject(signal.reason));
    signal.addEventListener("abort", onAbort, { once: true });
    if (signal.aborted) onAbort();
  });
}

function failure(name: string, error: unknown): ToolResult {
  if (error instanceof InputError) return errorResult(error.message, "failed");
  if (error instanceof HandError) return errorResult(`${name}: the hand failed: ${error.message}`, "failed");
  if (error instanceof FileError) return errorResult(`${name}: ${error.path}: ${error.message}`, "failed");
  const { code, syscall } = error as NodeJS.ErrnoException;
  // Its text names a file of the agent.
  if (syscall !== undefined)
    return errorResult(`${name}: the hand agent failed: ${syscall} ${code}`, "failed");
  return errorResult(`Error: ${messageOf(error)}`, "failed");
}

/** What agents are told about executions. */
import type { ExecutionRecord } from "../store/executions.ts";
import type { AgentMessage } from "./agent-link.ts";

/** Larger inputs go on the execution's own stream. */
export const MAX_INLINE_INPUT_BYTES = 256 * 1024;

/** `traceParent`: under what the call runs; unknown, and empty, where it is sent again. */
export function startMessage(execution: ExecutionRecord, traceParent = ""): AgentMessage {
  const inputBytes = Buffer.byteLength(execution.input);
  const inline = inputBytes <= MAX_INLINE_INPUT_BYTES;
  return {
    case: "startExecution",
    value: {
      executionKey: execution.executionKey,
      handId: execution.handId!,
      ownerNumber: BigInt(execution.ownerNumber),
      name: execution.name,
      input: inline ? execution.input : "",
      inputBytes: inline ? 0n : BigInt(inputBytes),
      timeoutMs: BigInt(execution.timeoutMs),
      traceParent,
    },
  };
}

export function stopMessage(execution: ExecutionRecord, reason: string): AgentMessage {
  return { case: "stopExecution", value: { executionKey: execution.executionKey, reason } };
}

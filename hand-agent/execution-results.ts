/** The results that the agent itself gives, and those of tools in the contract's words. */
import { create } from "@bufbuild/protobuf";
import {
  ExecutionOutcome,
  type ExecutionResult,
  ExecutionResultSchema,
  FailureOriginSchema,
} from "../proto/gen/tendon/v1/hand_pb.js";
import type { TextBlock, ToolOutcome, ToolResult } from "./result.ts";

const OUTCOMES: Record<ToolOutcome, ExecutionOutcome> = {
  completed: ExecutionOutcome.COMPLETED,
  failed: ExecutionOutcome.COMPLETED,
  timed_out: ExecutionOutcome.TIMED_OUT,
  stalled: ExecutionOutcome.TIMED_OUT,
  cancelled: ExecutionOutcome.CANCELLED,
  unknown: ExecutionOutcome.UNKNOWN,
};

/** `note` is said to the model before the tool's own text. */
export function resultOfTool(result: ToolResult, outputBytes: number, note?: string): ExecutionResult {
  const blocks: TextBlock[] = note === undefined ? [] : [{ type: "text", text: note }];
  const message = create(ExecutionResultSchema, {
    isError: result.isError,
    outcome: OUTCOMES[result.outcome],
    content: JSON.stringify([...blocks, ...result.content]),
    artefacts: result.artefacts
      .slice(0, 64)
      .map(({ path, bytes, sha256 }) => ({ path, sizeBytes: BigInt(bytes), sha256 })),
    outputBytes: BigInt(outputBytes),
  });
  if (result.outcome === "stalled") {
    message.failure = create(FailureOriginSchema, { part: "sandbox", reason: "STALLED" });
  }
  if (result.exit !== undefined) {
    const { code, signal } = result.exit;
    message.exit = create(ExecutionResultSchema.field.exit.message!, {
      code: code ?? -1,
      signal: signal ?? "",
    }) as never;
  }
  return message;
}

/** A call that never started. `reason` is for programs, `text` for the model. */
export function notStarted(reason: string, text: string): ExecutionResult {
  return ownResult(ExecutionOutcome.NOT_STARTED, reason, text);
}

/** A call whose end nobody saw. */
export function unknownOutcome(text: string): ExecutionResult {
  return ownResult(ExecutionOutcome.UNKNOWN, "OUTCOME_UNKNOWN", text);
}

export const AGENT_RESTARTED_TEXT =
  "The outcome of this call is unknown: the hand agent stopped while the call was running and has started again. " +
  "The call may have done all, some or none of its work, and it was not run again. " +
  "Check the state of the workspace before you repeat it.";

function ownResult(outcome: ExecutionOutcome, reason: string, text: string): ExecutionResult {
  return create(ExecutionResultSchema, {
    isError: true,
    outcome,
    content: JSON.stringify([{ type: "text", text }]),
    failure: { part: "hand_agent", reason },
  });
}

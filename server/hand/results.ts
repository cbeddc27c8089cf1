/** Results of executions as they are stored, and as the log tells them (pure). */
import { create, fromJsonString, type MessageInitShape, toJsonString } from "@bufbuild/protobuf";
import { type FailureOrigin, PARTS } from "../../kit/errors.ts";
import {
  ExecutionOutcome,
  type ExecutionResult,
  ExecutionResultSchema,
} from "../../proto/gen/tendon/v1/hand_pb.js";
import type { HandEvent } from "../store/hands.ts";

export const RESULT_EVENT = "agent.tool_result";

const OUTCOME_NAMES: Readonly<Record<ExecutionOutcome, string>> = {
  [ExecutionOutcome.UNSPECIFIED]: "unknown",
  [ExecutionOutcome.COMPLETED]: "completed",
  [ExecutionOutcome.TIMED_OUT]: "timed_out",
  [ExecutionOutcome.CANCELLED]: "cancelled",
  [ExecutionOutcome.NOT_STARTED]: "not_started",
  [ExecutionOutcome.UNKNOWN]: "unknown",
};

/** A failure that is not the tool's own; `text` is for the model. */
export interface CallFailure extends FailureOrigin {
  readonly outcome: ExecutionOutcome;
  readonly text: string;
}

export function failureResult({ outcome, part, reason, text }: CallFailure): ExecutionResult {
  return create(ExecutionResultSchema, {
    isError: true,
    outcome,
    content: JSON.stringify([{ type: "text", text }]),
    failure: { part, reason },
  });
}

export function cancelledResult(why: string): ExecutionResult {
  return failureResult({
    outcome: ExecutionOutcome.CANCELLED,
    part: "server",
    reason: "CANCELLED",
    text: `The call was cancelled before it started${why === "" ? "" : `: ${why}`}. It never ran.`,
  });
}

export function unknownResult(why: string): ExecutionResult {
  return failureResult({
    outcome: ExecutionOutcome.UNKNOWN,
    part: "hand_agent",
    reason: "OUTCOME_UNKNOWN",
    text: `It is not known what became of this call: ${why}. It may have run in part, in whole, or not at all, and it will not be run again by itself. Check what it did before you repeat it.`,
  });
}

/** Text blocks must say something; these types are all that a result may hold. */
const BLOCK_TYPES = new Set(["text", "image", "document", "search_result"]);

/**
 * What an agent sent, made fit to be kept: content that is no list of blocks becomes an error, lone surrogates become
 * U+FFFD (no model API takes them), and what the call has to say first stands first.
 */
export function acceptResult(result: ExecutionResult, notice: string): ExecutionResult {
  const blocks = parseBlocks(result.content);
  if (blocks === undefined) {
    const text = "The hand agent answered with a result that is no list of content blocks.";
    const bad = failureResult({
      outcome: result.outcome || ExecutionOutcome.UNKNOWN,
      part: "hand_agent",
      reason: "INVALID_RESULT",
      text,
    });
    return { ...bad, outputBytes: result.outputBytes };
  }
  const changed = notice !== "" || LONE_SURROGATE.test(result.content);
  if (notice !== "") blocks.unshift({ type: "text", text: notice });
  const outcome = result.outcome || ExecutionOutcome.UNKNOWN;
  return {
    ...result,
    outcome,
    isError: result.isError || outcome === ExecutionOutcome.UNKNOWN,
    content: changed ? JSON.stringify(blocks, wellFormed) : result.content,
  };
}

/** An escaped surrogate: rare, and only then the text is looked at more closely. */
const LONE_SURROGATE = /\\u[dD][89a-fA-F]/;

function wellFormed(_key: string, value: unknown): unknown {
  return typeof value === "string" ? Buffer.from(value, "utf8").toString("utf8") : value;
}

function parseBlocks(content: string): Record<string, unknown>[] | undefined {
  let value: unknown;
  try {
    value = JSON.parse(content === "" ? "[]" : content);
  } catch {
    return undefined;
  }
  const fits =
    Array.isArray(value) &&
    value.every((block) => typeof block === "object" && block !== null && BLOCK_TYPES.has(block.type));
  return fits ? (value as Record<string, unknown>[]) : undefined;
}

/** The event that tells a session of the result; `content` stands in it as the agent wrote it. */
export function resultEvent(
  call: { executionId: string; slot: string; handId?: string | undefined },
  result: ExecutionResult,
): HandEvent {
  const facts = {
    is_error: result.isError,
    outcome: OUTCOME_NAMES[result.outcome],
    hand: call.slot,
    ...(call.handId === undefined ? {} : { hand_id: call.handId }),
    ...(result.exit === undefined ? {} : { exit: exitOf(result.exit) }),
    ...(result.isError ? { failure: failureOf(result) } : {}),
    ...(result.artefacts.length === 0
      ? {}
      : {
          artefacts: result.artefacts.map(({ path, sizeBytes, sha256 }) => ({
            path,
            bytes: Number(sizeBytes),
            sha256,
          })),
        }),
  };
  const head = `{"tool_use_id":${JSON.stringify(call.executionId)},"content":${result.content || "[]"},`;
  return { type: RESULT_EVENT, payload: head + JSON.stringify(facts).slice(1) };
}

/** An agent says where a call failed when it was not the tool; what it says nothing of, its outcome tells. */
const OUTCOME_FAILURES: Readonly<Record<ExecutionOutcome, FailureOrigin>> = {
  [ExecutionOutcome.UNSPECIFIED]: { part: "hand_agent", reason: "OUTCOME_UNKNOWN" },
  [ExecutionOutcome.COMPLETED]: { part: "sandbox", reason: "TOOL_FAILED" },
  [ExecutionOutcome.TIMED_OUT]: { part: "sandbox", reason: "TIMED_OUT" },
  [ExecutionOutcome.CANCELLED]: { part: "server", reason: "CANCELLED" },
  [ExecutionOutcome.NOT_STARTED]: { part: "hand_agent", reason: "NOT_STARTED" },
  [ExecutionOutcome.UNKNOWN]: { part: "hand_agent", reason: "OUTCOME_UNKNOWN" },
};

function failureOf({ failure, outcome }: ExecutionResult): FailureOrigin {
  const { part, reason } = OUTCOME_FAILURES[outcome];
  const named = PARTS.find((known) => known === failure?.part);
  return { part: named ?? part, reason: failure?.reason || reason };
}

function exitOf(exit: { code: number; signal: string }): Record<string, unknown> {
  return exit.signal === "" ? { code: exit.code } : { code: exit.code, signal: exit.signal };
}

export function storedText(result: ExecutionResult): string {
  return toJsonString(ExecutionResultSchema, result);
}

export function fromStoredText(text: string): ExecutionResult {
  return fromJsonString(ExecutionResultSchema, text, { ignoreUnknownFields: true });
}

/** The result of a call that no execution answered: what the log's result event says. */
export function resultOfEvent(payload: string): MessageInitShape<typeof ExecutionResultSchema> {
  const event = JSON.parse(payload) as { content?: unknown; is_error?: unknown; outcome?: unknown };
  const named = Object.entries(OUTCOME_NAMES).find(([, name]) => name === event.outcome);
  return {
    isError: event.is_error === true,
    outcome: named === undefined ? ExecutionOutcome.COMPLETED : (Number(named[0]) as ExecutionOutcome),
    content: JSON.stringify(event.content ?? []),
  };
}

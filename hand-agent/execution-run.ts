/** Carries one call from its acceptance to its result: input, journal, hand, tool. */
import { type Clock, within } from "../kit/clock.ts";
import { type FailureOrigin, messageOf, PARTS } from "../kit/errors.ts";
import { failpoint } from "../kit/failpoint.ts";
import type { Logger } from "../kit/log.ts";
import {
  formatTraceParent,
  NO_TRACING,
  parseTraceParent,
  type TraceContext,
  type Tracing,
} from "../kit/trace.ts";
import type { ExecutionResult } from "../proto/gen/tendon/v1/hand_pb.js";
import type { Execution, ExecutionCommand } from "./execution.ts";
import { notStarted, resultOfTool, unknownOutcome } from "./execution-results.ts";
import { HandRefusal } from "./hand-refusal.ts";
import type { LiveHand } from "./hand-slot.ts";
import { type Journal, JournalError } from "./journal.ts";
import type { ToolResult } from "./result.ts";
import type { ExecuteToolRequest } from "./tools/execute-tool.ts";

export interface RunDeps {
  journal: Pick<Journal, "start">;
  hands: { use(handId: string, ownerNumber: bigint): Promise<LiveHand> };
  executeTool(request: ExecuteToolRequest): Promise<ToolResult>;
  clock: Clock;
  log: Logger;
  /** Not set: contexts are passed on to processes, and no spans are made. */
  tracing?: Tracing;
}

export interface RunOutcome {
  result: ExecutionResult;
  /** Whether the journal knows the execution. */
  journalled: boolean;
  /** Whether processes of the call live on. */
  leftProcesses: boolean;
}

/** For the rest of an input that comes on the stream. */
const INPUT_WITHIN_MS = 60_000;

/** Tools end within 3 s of being told to; this is for those that have a bug. */
const STUCK_AFTER_MS = 8_000;
const STUCK_TEXT =
  "The outcome of this call is unknown: it was told to end and did not. It may still be running in the hand; " +
  "check the state of the workspace before you go on.";

const RESUMED_NOTE =
  "[the hand was resumed: its files are as they were, its processes have ended and its shell is new]";
const OWN_TOOLS_RESUMED_NOTE =
  "[the hand was resumed: its server was started again, and what it kept in memory is gone]";

/** Never rejects: whatever happens is a result. */
export async function runExecution(
  deps: RunDeps,
  execution: Execution,
  command: ExecutionCommand,
  startInput: string,
): Promise<RunOutcome> {
  const { tracing = NO_TRACING } = deps;
  const span = tracing.start("execution", {
    parent: parseTraceParent(command.traceParent),
    kind: "server",
    attributes: {
      "gen_ai.tool.name": command.name,
      "tendon.execution": command.key,
      "tendon.hand_id": command.handId,
    },
  });
  const outcome = await run(deps, execution, command, startInput, span.context);
  span.end(failureOf(outcome.result));
  return outcome;
}

async function run(
  deps: RunDeps,
  execution: Execution,
  command: ExecutionCommand,
  startInput: string,
  trace: TraceContext | undefined,
): Promise<RunOutcome> {
  let journalled = false;
  try {
    const input = execution.input === undefined ? startInput : await lateInput(deps, execution);
    const finding = deps.hands.use(command.handId, command.ownerNumber);
    finding.catch(() => {}); // looked at once the journal has spoken
    const { key, handId, name } = command;
    await deps.journal.start({ key, handId, name, input, atMs: deps.clock.nowMs() });
    journalled = true;
    failpoint("agent.journalled");
    const live = await finding;
    if (execution.stopSignal.aborted)
      return { result: stoppedEarly(execution), journalled, leftProcesses: false };
    const ended = await runTool(deps, execution, command, { input, live, trace });
    return { ...ended, journalled };
  } catch (error) {
    return { result: failedEarly(deps, error), journalled, leftProcesses: false };
  }
}

async function lateInput({ clock }: RunDeps, execution: Execution): Promise<string> {
  const stopped = new Promise<never>((_, reject) => {
    const stop = () => reject(new HandRefusal("CANCELLED", stoppedText(execution)));
    execution.stopSignal.addEventListener("abort", stop, { once: true });
    if (execution.stopSignal.aborted) stop();
  });
  return within(clock, INPUT_WITHIN_MS, Promise.race([execution.input!.text, stopped]), () => {
    return new HandRefusal("INPUT_INCOMPLETE", "The input did not arrive in time; the call was not started.");
  });
}

async function runTool(
  deps: RunDeps,
  execution: Execution,
  { key, name, timeoutMs }: ExecutionCommand,
  { input, live, trace }: { input: string; live: LiveHand; trace: TraceContext | undefined },
): Promise<Pick<RunOutcome, "result" | "leftProcesses">> {
  execution.running();
  const resumed = live.hand.callTool === undefined ? RESUMED_NOTE : OWN_TOOLS_RESUMED_NOTE;
  const note = live.isNews ? resumed : undefined;
  live.isNews = false;
  const { tracing = NO_TRACING } = deps;
  const span = tracing.start("process", { parent: trace, attributes: { "gen_ai.tool.name": name } });
  const running = deps.executeTool({
    hand: live.hand,
    state: live.tools,
    callId: key,
    name,
    input,
    timeoutMs,
    ...(span.context && { traceParent: formatTraceParent(span.context) }),
    signal: execution.stopSignal,
    onOutput: (chunk) => {
      failpoint("agent.tool_running");
      return execution.spool?.append(chunk);
    },
  });
  const result = await orStuck(deps, execution, running);
  failpoint("agent.tool_ended");
  const ended =
    result === "stuck"
      ? unknownOutcome(STUCK_TEXT)
      : resultOfTool(result, execution.spool?.endOffset ?? 0, note);
  if (ended.exit !== undefined) span.set({ "process.exit.code": ended.exit.code });
  span.end(failureOf(ended));
  return {
    result: ended,
    leftProcesses: result === "stuck" || (result.leftProcesses?.length ?? 0) > 0,
  };
}

/** For spans: a tool that says no has failed in its sandbox. */
function failureOf({ isError, failure }: ExecutionResult): FailureOrigin | undefined {
  if (!isError) return undefined;
  const part = PARTS.find((known) => known === failure?.part);
  return { part: part ?? "sandbox", reason: failure?.reason || "TOOL_FAILED" };
}

/** A call that was told to end has a result even if its tool never comes back. */
async function orStuck(
  { clock, log }: RunDeps,
  { key, stopSignal }: Execution,
  running: Promise<ToolResult>,
): Promise<ToolResult | "stuck"> {
  let cancel = () => {};
  const stuck = new Promise<"stuck">((resolve) => {
    const stopped = () => {
      cancel = clock.after(STUCK_AFTER_MS, () => resolve("stuck"));
    };
    stopSignal.addEventListener("abort", stopped, { once: true });
  });
  const result = await Promise.race([running, stuck]);
  cancel();
  if (result === "stuck") log.error({ execution: key }, "a tool did not end after it was told to");
  return result;
}

function failedEarly({ log }: RunDeps, error: unknown): ExecutionResult {
  if (error instanceof HandRefusal) return notStarted(error.reason, error.message);
  if (error instanceof JournalError)
    return notStarted("JOURNAL_FAILED", `The call was not started: ${error.message}.`);
  log.error({ err: error }, `a call failed: ${messageOf(error)}`);
  return notStarted("INTERNAL", "The hand agent failed before the call was started; its log says more.");
}

function stoppedEarly(execution: Execution): ExecutionResult {
  return notStarted("CANCELLED", stoppedText(execution));
}

export function stoppedText({ stopSignal }: Pick<Execution, "stopSignal">): string {
  return tombstoneText(String(stopSignal.reason ?? ""));
}

export function tombstoneText(reason: string): string {
  return `The call was cancelled before it started${reason === "" ? "" : ` (${reason})`}.`;
}

/** `bash`: a command in the hand's one shell. */
import { errorResult, OutputCollector, type ToolResult, textResult } from "../result.ts";
import { optionalBoolean, optionalInteger, optionalString } from "./input.ts";
import { NO_BASH } from "./live-shell.ts";
import { QueueFullError, type ShellEnd, type ShellResult } from "./shell.ts";
import { DEFAULT_TIMEOUT_MS, InputError, MAX_TIMEOUT_MS, type Tool, type ToolCall } from "./tool.ts";

export const bashTool: Tool = {
  ownsTime: true,
  definition: {
    name: "bash",
    description:
      "Run a command in a persistent bash shell: variables and the working directory stay from call to call. " +
      "Standard input is empty. Start long-running programs in the background with &, their output sent to a file.",
    inputSchema: {
      type: "object",
      properties: {
        command: { type: "string", description: "The command to run." },
        restart: { type: "boolean", description: "Start with a new shell." },
        timeout_ms: {
          type: "integer",
          minimum: 0,
          maximum: MAX_TIMEOUT_MS,
          description: "After this many milliseconds the command is killed. Default, and meant by 0: 120000.",
        },
      },
    },
  },
  async run(call) {
    const command = optionalString("bash", call.input, "command");
    const restart = optionalBoolean("bash", call.input, "restart");
    const asked = optionalInteger("bash", call.input, "timeout_ms", { min: 0, max: MAX_TIMEOUT_MS }) ?? 0;
    if (command?.includes("\0")) throw new InputError("bash: command must not hold a NUL character");
    try {
      if (command) return await runCommand(call, command, restart, timeoutOf(asked, call.timeoutMs));
      if (!restart) throw new InputError("bash: command is required");
      await call.state.shell.restart(call.signal);
      return textResult("bash session restarted");
    } catch (error) {
      if (error instanceof QueueFullError) throw new InputError(`bash: ${error.message}`);
      throw error;
    }
  },
};

/** Of the model's bound and the caller's the smaller one that was given. */
function timeoutOf(asked: number, callers: number): number {
  const given = [asked, callers].filter((ms) => ms > 0);
  return given.length === 0 ? DEFAULT_TIMEOUT_MS : Math.min(...given);
}

async function runCommand(
  call: ToolCall,
  command: string,
  restart: boolean,
  timeoutMs: number,
): Promise<ToolResult> {
  const collector = new OutputCollector(call.hand, call.callId);
  const result = await call.state.shell.run({
    callId: call.callId,
    traceParent: call.traceParent,
    command,
    timeoutMs,
    signal: call.signal,
    restart,
    onOutput: async (chunk) => {
      await collector.push(chunk);
      await call.onOutput(chunk);
    },
  });
  const { text, artefacts } = await collector.end();
  const told = tell(result, withNotice(text, result), timeoutMs);
  return {
    ...told,
    artefacts,
    ...(result.left.length === 0 ? {} : { leftProcesses: result.left }),
  };
}

const NEW_SHELL = "the next command gets a new shell: working directory and variables are reset";
const SHELL_REPLACED = `[${NEW_SHELL}]`;
const CALL_KILLED = `[the command and the processes it started were killed]\n${SHELL_REPLACED}`;

/** A shell that ended by itself since the last call is not replaced in silence. */
function withNotice(output: string, { lostBefore, end }: ShellResult): string {
  if (lostBefore === undefined || (end.kind === "deaf" && !end.started)) return output;
  const notice = `[the shell had ended since the last command (${lostBefore}); this one ran in a new shell: working directory and variables were reset]`;
  return output === "" ? notice : `${output}\n${notice}`;
}

/** What happened, in words: exactly what did happen, also where killing failed. */
function tell({ end, left }: ShellResult, output: string, timeoutMs: number): ToolResult {
  const withOutput = (...lines: string[]) => [...(output === "" ? [] : [output]), ...lines].join("\n");
  const killed =
    left.length === 0
      ? CALL_KILLED
      : `[${left.length} process(es) could not be killed: ${left.map((each) => each.pid).join(", ")}]\n${SHELL_REPLACED}`;
  switch (end.kind) {
    case "exited":
      if (end.code === 0) return result(output, end);
      return { ...result(output === "" ? `exit ${end.code}` : output, end), isError: true };
    case "terminated": {
      const reason = end.reason === undefined ? "" : ` (${end.reason})`;
      const why =
        end.code === undefined
          ? [`[${end.reason}]`, SHELL_REPLACED]
          : [`[the shell exited with code ${end.code}${reason}; ${NEW_SHELL}]`];
      return { ...result(withOutput("bash: bash session terminated", ...why), end), isError: true };
    }
    case "deaf": {
      const text = withOutput("bash: bash session terminated", ...tellDeaf(end));
      return { ...result(text, end), isError: true, outcome: end.started ? "completed" : "failed" };
    }
    case "timed_out": {
      const text = withOutput(`bash: bash command timed out after ${timeoutMs}ms`, killed);
      return { ...result(text, end), isError: true, outcome: "timed_out" };
    }
    case "stalled": {
      const why = `bash: bash command stalled: for ${end.afterMs} ms it wrote nothing and its processes did no work`;
      return { ...result(withOutput(why, killed), end), isError: true, outcome: "stalled" };
    }
    case "cancelled": {
      if (!end.started) return errorResult("bash: bash command cancelled before it started", "cancelled");
      return {
        ...result(withOutput("bash: bash command cancelled", killed), end),
        isError: true,
        outcome: "cancelled",
      };
    }
  }
}

/** What a shell did that no longer executes commands; nothing here may sound like success. */
function tellDeaf({ started, reason }: ShellEnd & { kind: "deaf" }): string[] {
  if (reason === NO_BASH) return [`[${reason}; this command did not run]`];
  const why = reason === undefined ? [] : [`[${reason}]`];
  const cause = "set -n, set -r, a redefined or disabled builtin, a closed descriptor or a limit can be why";
  return started
    ? [
        ...why,
        `[this command ran, its exit status is unknown: after it the shell no longer executed commands; ${cause}]`,
        SHELL_REPLACED,
      ]
    : [
        ...why,
        `[the shell no longer executed commands and was replaced; ${cause}]`,
        "[this command did not run; call again: working directory and variables are reset]",
      ];
}

/** The output has been capped already; lines of ours come on top. */
function result(text: string, end: ShellEnd): ToolResult {
  const exit =
    end.kind === "exited"
      ? { code: end.code }
      : end.kind === "terminated"
        ? end.code === undefined
          ? undefined
          : { code: end.code }
        : end.kind === "deaf"
          ? undefined
          : { signal: "SIGKILL" };
  return {
    isError: false,
    outcome: "completed",
    content: [{ type: "text", text: text === "" ? "(no output)" : text }],
    artefacts: [],
    ...(exit === undefined ? {} : { exit }),
  };
}

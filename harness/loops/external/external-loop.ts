/**
 * The loop that is a program of its own, in any language: it reads lines of JSON and writes lines of JSON (docs/loops.md).
 * One program runs for each session that this harness holds, from its first step to the end of the lease at most.
 */
import type { Clock } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import type { Agent } from "../../../proto/gen/tendon/v1/agent_pb.js";
import { parseObject, stringOf } from "../../event-payload.ts";
import { KeptChildren } from "../kept-children.ts";
import type { Loop, LoopOutcome, LoopTurn } from "../loop.ts";
import { LoopProcess } from "../loop-process.ts";
import { ExternalChild } from "./external-child.ts";
import type { ProgramTable } from "./program-table.ts";
import { faultOf } from "./protocol.ts";

export interface ExternalLoopOptions {
  readonly programs: ProgramTable;
  /** What every program's environment holds: nothing secret. */
  readonly environment: Readonly<Record<string, string>>;
  /** Programs that run at a time. */
  readonly maxProcesses: number;
  readonly clock: Clock;
}

export function createExternalLoop(options: ExternalLoopOptions): Loop {
  const children = new KeptChildren<ExternalChild>(options.maxProcesses);
  return {
    name: "external",
    model: (agent) => agent.spec?.model?.id || `external:${programName(agent)}`,
    run: (turn, signal) => step(options, children, turn, signal),
  };
}

function programName(agent: Agent): string {
  return stringOf(parseObject(agent.spec?.loopSettings ?? "").program);
}

async function step(
  { programs, environment, clock }: ExternalLoopOptions,
  children: KeptChildren<ExternalChild>,
  turn: LoopTurn,
  signal: AbortSignal,
): Promise<LoopOutcome> {
  const name = programName(turn.agent);
  const program = programs.get(name);
  if (program === undefined) {
    const message =
      name === ""
        ? `An agent with the loop "external" needs loop_settings that name its program: {"program": "…"}.`
        : `This harness has no program "${name.slice(0, 64)}" for the loop "external".`;
    return faultOf("LOOP_NOT_CONFIGURED", message, { maxAttempts: 1 });
  }
  const start = async () => {
    const whole = { name, argv: program.argv, environment: { ...environment, ...program.environment } };
    const mcpServers = await turn.mcpServers();
    return new ExternalChild(LoopProcess.start(whole, clock, turn.log), mcpServers, clock);
  };
  const setting = { keeper: `external:${name}`, model: turn.agent.spec?.model?.id ?? "" };
  try {
    return await children.run(turn.held, signal, start, (child) => child.step(turn, setting));
  } catch (error) {
    if (signal.aborted) throw error;
    return faultOf("LOOP_NOT_STARTED", `The loop's program could not be started: ${messageOf(error)}.`);
  }
}

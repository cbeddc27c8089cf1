/**
 * The Claude Agent SDK as the loop. Its program runs beside the harness with all its own tools off; what its model calls
 * are the session's tools, and those go the way of all calls: recorded, confirmed, run once, answered from the log.
 *
 * C1 One request of its model is one step: the program waits in its hook from the model's answer to the next step, which
 *    begins when every call has its result. The hook lets a call pass that the log holds under its id, and no other.
 * C2 Its transcript is in the log and nowhere else. A program that ended, here or with another harness, is followed by one
 *    that is given the transcript and the results that the log has; what has a result is not run again.
 * C3 Where the running program cannot be told something in the middle of its turn, it is replaced in the same way.
 */
import { renameSync, symlinkSync } from "node:fs";
import { rm } from "node:fs/promises";
import type { Clock } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import type { Logger } from "../../../kit/log.ts";
import type { Agent } from "../../../proto/gen/tendon/v1/agent_pb.js";
import { KeptChildren } from "../kept-children.ts";
import type { Loop, LoopOutcome, LoopTurn } from "../loop.ts";
import { LoopProcess, makeScratch } from "../loop-process.ts";
import { noteContent } from "./content.ts";
import { Conversation } from "./conversation.ts";
import { type EnvironmentInput, sdkEnvironment } from "./environment.ts";
import { programFailure } from "./failures.ts";
import { PromptQueue } from "./prompt-queue.ts";
import { type AgentSdk, loadSdk, type Options, SdkMissing, type SpawnOptions } from "./sdk.ts";
import { namedTools, SERVER_NAME } from "./tool-names.ts";
import { type McpResult, ToolServer } from "./tool-server.ts";
import { continuation, DIRECTORY, type LogReading, readLog, uuidOf } from "./transcript.ts";
import { TranscriptStore } from "./transcript-store.ts";
import { Waiting } from "./waiting.ts";

export interface ClaudeCodeLoopOptions extends Pick<EnvironmentInput, "plain" | "model" | "proxy"> {
  /** For agents that name no model. */
  readonly defaultModel: string;
  /** Programs that run at a time: each takes some 200 MB of memory. */
  readonly maxProcesses: number;
  readonly clock: Clock;
  /** Rejects with SdkMissing where the SDK is not installed, which is found out when it is first needed. */
  readonly load?: () => Promise<AgentSdk>;
}

/** Longer than a program is kept waiting in it, in seconds. */
const HOOK_TIMEOUT_S = 600;

export function createClaudeCodeLoop(options: ClaudeCodeLoopOptions): Loop {
  const children = new KeptChildren<Conversation>(options.maxProcesses);
  return {
    name: "claude-code",
    model: (agent) => modelOf(agent, options),
    run: (turn, signal) => step(options, children, turn, signal),
  };
}

function modelOf(agent: Agent, { defaultModel }: ClaudeCodeLoopOptions): string {
  return agent.spec?.model?.id || defaultModel;
}

async function step(
  options: ClaudeCodeLoopOptions,
  children: KeptChildren<Conversation>,
  turn: LoopTurn,
  signal: AbortSignal,
): Promise<LoopOutcome> {
  const { load = loadSdk } = options;
  const reading = readLog(turn.history);
  const start = async () => startConversation(await load(), options, turn, reading);
  try {
    const isUsable = (child: Conversation) => child.canTake(reading);
    return await children.run(turn.held, signal, start, (child) => child.step(turn, reading), isUsable);
  } catch (error) {
    if (signal.aborted) throw error;
    if (error instanceof SdkMissing) {
      return programFailure("LOOP_NOT_INSTALLED", `${capital(error.message)}.`, { maxAttempts: 1 });
    }
    turn.log.error({ err: error }, "the agent SDK could not be started");
    return programFailure("LOOP_NOT_STARTED", "The agent SDK's program could not be started.");
  }
}

function startConversation(
  { query }: AgentSdk,
  options: ClaudeCodeLoopOptions,
  turn: LoopTurn,
  reading: LogReading,
): Conversation {
  const { clock } = options;
  const sessionId = uuidOf(turn.sessionId);
  const entries = reading.kept().map((entry) => ({ ...entry, sessionId }));
  const isNew = entries.length === 0;
  const unsaved = isNew ? [] : continuation(reading, sessionId, new Date(clock.nowMs()));
  const store = new TranscriptStore(entries, unsaved);
  const prompts = new PromptQueue();
  if (isNew) prompts.push(reading.said.flatMap(({ content }) => content));
  else if (unsaved.length === 0) prompts.push(noteContent("Go on."));
  const results = new Waiting<McpResult>();
  const tools = namedTools(turn.tools);
  const program = new Program(clock, turn.log);
  const session = isNew ? { sessionId } : { resume: sessionId };
  const running = query({
    prompt: prompts,
    options: {
      ...sdkOptions(options, turn, program),
      ...session,
      sessionStore: store,
      mcpServers: { [SERVER_NAME]: serverOf(new ToolServer(tools, (id) => results.take(id))) },
      hooks: { PreToolUse: [{ hooks: [gate(results)], timeout: HOOK_TIMEOUT_S, onFailure: "block" }] },
    },
  });
  const endProgram = () => program.end();
  return new Conversation({ query: running, store, prompts, results, tools, clock, endProgram });
}

function sdkOptions(options: ClaudeCodeLoopOptions, { agent }: LoopTurn, program: Program): Options {
  const { effort, thinkingBudgetTokens, maxOutputTokens = 0 } = agent.spec?.model ?? {};
  const budgetTokens = thinkingBudgetTokens ?? 0;
  return {
    model: modelOf(agent, options),
    systemPrompt: agent.spec?.system ?? "",
    cwd: DIRECTORY,
    env: sdkEnvironment({ ...options, scratch: program.scratch, maxOutputTokens }),
    spawnClaudeCodeProcess: (spawn) => program.spawn(spawn),
    // Everything of its own is off: tools, settings and servers of the machine, what the texts of users could ask for.
    tools: [],
    allowedTools: [`mcp__${SERVER_NAME}`],
    permissionMode: "dontAsk",
    settingSources: [],
    strictMcpConfig: true,
    // Else a turn that goes on by itself would begin before the session's tools are known.
    extraArgs: { "await-initialize": null },
    verbatimPrompts: true,
    includePartialMessages: true,
    sessionStoreFlush: "eager",
    ...(effort ? { effort: effort as NonNullable<Options["effort"]> } : {}),
    ...(budgetTokens > 0 ? { thinking: { type: "enabled" as const, budgetTokens } } : {}),
  };
}

function serverOf(server: ToolServer): NonNullable<Options["mcpServers"]>[string] {
  const config = { type: "sdk", name: SERVER_NAME, instance: server, alwaysLoad: true };
  return config as unknown as NonNullable<Options["mcpServers"]>[string];
}

/** A call passes once the log holds it under its id and has its result; what the log does not hold never does. */
function gate(results: Waiting<McpResult>) {
  return async (_: unknown, toolUseId: string | undefined) => {
    await results.take(toolUseId ?? "");
    const hookSpecificOutput = { hookEventName: "PreToolUse" as const, permissionDecision: "allow" as const };
    return { hookSpecificOutput };
  };
}

/** The SDK's process and the one directory that it may write to, which exists before it. */
class Program {
  readonly scratch = makeScratch();
  private readonly clock: Clock;
  private readonly log: Logger;
  private process: LoopProcess | undefined;
  private link: string | undefined;
  private ended = false;

  constructor(clock: Clock, log: Logger) {
    this.clock = clock;
    this.log = log;
  }

  spawn({ command, args, env }: SpawnOptions) {
    if (this.ended) throw new Error("the program is not wanted any more");
    const environment: Record<string, string> = {};
    for (const [name, value] of Object.entries(env)) if (value !== undefined) environment[name] = value;
    this.moveIn(environment.CLAUDE_CONFIG_DIR);
    const program = { name: "claude-code", argv: [command, ...args], environment };
    const leftover = this.link === undefined ? {} : { leftover: this.link };
    const whole = { ...program, ...leftover, directory: DIRECTORY, scratch: this.scratch };
    this.process = LoopProcess.start(whole, this.clock, this.log);
    return this.process.process as never;
  }

  /**
   * A restored transcript comes in a directory of the SDK's own, which nobody would remove if this harness died. So it goes
   * into the program's; the SDK tells what the program writes by the old name, which stays as a link.
   */
  private moveIn(given: string | undefined): void {
    const own = `${this.scratch}/.claude`;
    if (given === undefined || given === own) return;
    renameSync(given, own);
    symlinkSync(own, given);
    this.link = given;
  }

  async end(): Promise<void> {
    this.ended = true;
    await this.process?.end();
    if (this.link !== undefined) await rm(this.link, { force: true }).catch(() => {});
    await rm(this.scratch, { recursive: true, force: true }).catch((error) => {
      this.log.warn({ problem: messageOf(error) }, "a directory of the agent SDK could not be removed");
    });
  }
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

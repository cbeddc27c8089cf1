/** Hand agents for tests: as a service in this process, or as the program that a kill can hit. */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DRIVERS } from "../../hand-agent/drivers/registry.ts";
import { HandAgent, type HandAgentOptions } from "../../hand-agent/hand-agent.ts";
import { TOOL_DEFINITIONS } from "../../hand-agent/tools/registry.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { repository } from "./owner-process.ts";

export async function makeAgentDir(): Promise<{ path: string; remove(): Promise<void> }> {
  const path = await mkdtemp(join(tmpdir(), "tendon-hand-agent-"));
  return { path, remove: () => rm(path, { recursive: true, force: true }) };
}

export function agentInProcess(
  options: Pick<HandAgentOptions, "url" | "dataDir"> & Partial<HandAgentOptions>,
): HandAgent {
  const log = options.log ?? createLogger("hand-agent", "silent");
  return new HandAgent({
    joinToken: "jt_scripted",
    name: "test",
    labels: {},
    capacity: 8,
    proxy: {},
    build: "test",
    drivers: (dataDir) => [
      DRIVERS.process!({ dataDir, clock: systemClock, log, tools: TOOL_DEFINITIONS, process: {} }),
    ],
    clock: systemClock,
    log,
    ...options,
  });
}

export interface AgentProgram {
  readonly process: ChildProcess;
  /** Resolves with the exit code, or the name of the signal that ended it. */
  readonly ended: Promise<number | string>;
  stdout(): string;
  stderr(): string;
}

/**
 * Starts the program as a person would, with nothing in its environment but what is given: as it was built for this run,
 * or from another file that it was built into. `via` is a command that starts the one behind it, such as `ip netns exec NAME`.
 */
export function startAgentProgram(
  args: readonly string[],
  env: Record<string, string> = {},
  file = `${repository}/dist/hand-agent.mjs`,
  via: readonly string[] = [],
): AgentProgram {
  const [command, ...words] = [...via, process.execPath, file, ...args];
  const child = spawn(command!, words, {
    cwd: repository,
    stdio: ["ignore", "pipe", "pipe"],
    env: { PATH: process.env.PATH ?? "", ...env },
  });
  let stdout = "";
  let stderr = "";
  child.stdout.setEncoding("utf8").on("data", (text) => {
    stdout += text;
  });
  child.stderr.setEncoding("utf8").on("data", (text) => {
    stderr += text;
  });
  const ended = new Promise<number | string>((resolve) => {
    child.on("close", (code, signal) => resolve(code ?? signal ?? "unknown"));
  });
  return { process: child, ended, stdout: () => stdout, stderr: () => stderr };
}

/** The join token in a file, as launchers give it. */
export async function tokenFile(dir: string, token: string): Promise<string> {
  const path = join(dir, "join-token");
  await writeFile(path, `${token}\n`, { mode: 0o600 });
  return path;
}

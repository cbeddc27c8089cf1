/** One of the built programs as a process of its own, which ends with the test run however that ends. */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { systemClock } from "../../kit/clock.ts";

export type ProgramName = "server" | "harness" | "hand-agent" | "mcp-proxy";

export interface RunningProgram {
  readonly name: ProgramName;
  readonly pid: number;
  /** Resolves with the exit code, or the name of the signal that ended it. */
  readonly ended: Promise<number | string>;
  /** All that it logged. */
  log(): string;
  /** Sends the signal and waits until the program has ended. */
  end(signal: NodeJS.Signals): Promise<number | string>;
}

/** A program that has not stopped by then is killed, and the test fails. */
const STOP_WITHIN_MS = 40_000;
const MAX_LOG_CHARS = 4 * 1024 * 1024;

/**
 * Starts `dist/<name>.mjs` with these variables and no others but PATH. `within` is a command that replaces itself by the
 * one behind it, such as `ip netns exec NAME`.
 */
export function startProgram(
  name: ProgramName,
  environment: Readonly<Record<string, string>>,
  args: readonly string[] = [],
  within: readonly string[] = [],
): RunningProgram {
  const file = fileURLToPath(new URL(`../../dist/${name}.mjs`, import.meta.url));
  const [command = process.execPath, ...rest] = [...within, process.execPath, file, ...args];
  const child = spawn(command, rest, {
    // A process group of its own, as a supervisor would give it; the pipe at 3 tells it when this process is gone.
    detached: true,
    cwd: "/",
    stdio: ["ignore", "ignore", "pipe", "pipe"],
    env: { PATH: process.env.PATH, LANG: "C.UTF-8", TENDON_LIFELINE_FD: "3", ...environment },
  });
  let log = "";
  child.stderr!.setEncoding("utf8").on("data", (text: string) => {
    log = (log + text).slice(-MAX_LOG_CHARS);
  });
  const ended = new Promise<number | string>((resolve, reject) => {
    child.once("error", reject);
    // What it has said last is in the pipe by now: two turns of the loop later it has been read.
    child.once("exit", (code, signal) =>
      systemClock.soon(() => systemClock.soon(() => resolve(code ?? signal ?? "unknown"))),
    );
  });
  ended.catch(() => {}); // whoever waits for it is told
  return {
    name,
    pid: child.pid ?? -1,
    ended,
    log: () => log,
    end: (signal) => end(name, child, ended, signal),
  };
}

async function end(
  name: ProgramName,
  child: ChildProcess,
  ended: Promise<number | string>,
  signal: NodeJS.Signals,
): Promise<number | string> {
  if (child.exitCode === null && child.signalCode === null) child.kill(signal);
  let late = false;
  const cancel = systemClock.after(STOP_WITHIN_MS, () => {
    late = true;
    child.kill("SIGKILL");
  });
  const how = await ended;
  cancel();
  if (late) throw new Error(`${name} had not stopped ${STOP_WITHIN_MS} ms after ${signal}`);
  return how;
}

/** Whether a process of the program's group is left; not one that has ended, and that nobody has asked about yet. */
export function hasProcesses({ pid }: RunningProgram): boolean {
  try {
    process.kill(-pid, 0);
  } catch {
    return false;
  }
  if (!existsSync("/proc/self/stat")) return true;
  return readdirSync("/proc").some((name) => {
    if (!/^\d+$/.test(name)) return false;
    try {
      const stat = readFileSync(`/proc/${name}/stat`, "latin1");
      const [state, , group] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
      return group === String(pid) && state !== "Z" && state !== "X";
    } catch {
      return false; // gone meanwhile
    }
  });
}

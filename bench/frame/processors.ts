/**
 * Processors for what would run on a machine of its own. Affinities are inherited, so what these processes start later stays
 * with them. Linux only, with `taskset`.
 */
import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { cpus } from "node:os";
import { promisify } from "node:util";
import type { BenchContext } from "./bench.ts";

const run = promisify(execFile);
const OF_HANDS = /^(dockerd|containerd|containerd-shim.*|git|git-daemon)$/;

interface RunningProcess {
  readonly pid: number;
  readonly parent: number;
  readonly name: string;
  readonly command: string;
}

/** The half of the processors for brains, and the other for hands, as `taskset` wants them. */
const HALF = Math.max(1, Math.floor(cpus().length / 2));
const ALL = `0-${cpus().length - 1}`;
const FOR_BRAINS = HALF === 1 ? "0" : `0-${HALF - 1}`;
export const FOR_HANDS = `${HALF}-${cpus().length - 1}`;

/** Why it cannot be done here; undefined where it can. */
export function whyNotApart(): string | undefined {
  if (process.platform !== "linux") return "needs Linux";
  return cpus().length < 2 ? "needs two processors" : undefined;
}

/**
 * Keeps the Docker engine, hand agents and git, its server too, on one half of the processors, and this process with all else
 * that it started on the other, until the returned function is called, and no longer than the bench.
 */
export async function keepApart(context: BenchContext): Promise<() => Promise<void>> {
  const place = async (brains: string, hands: string) => {
    const all = runningProcesses();
    const isHands = ({ name, command }: RunningProcess) =>
      OF_HANDS.test(name) || command.includes("hand-agent.mjs");
    for (const { pid } of below(all, process.pid)) await pin(pid, brains);
    for (const { pid } of all.filter(isHands)) await pin(pid, hands);
  };
  await place(FOR_BRAINS, FOR_HANDS);
  const together = () => place(ALL, ALL);
  context.defer(together);
  return together;
}

/** With all its threads; a process that has ended meanwhile needs no place. */
async function pin(pid: number, processors: string): Promise<void> {
  await run("taskset", ["--all-tasks", "--cpu-list", "--pid", processors, `${pid}`]).catch((error) => {
    if (runningProcesses().some((one) => one.pid === pid)) throw error;
  });
}

/** The process and what descends from it. */
function below(all: readonly RunningProcess[], root: number): RunningProcess[] {
  const children = all.filter(({ parent }) => parent === root);
  return [...all.filter(({ pid }) => pid === root), ...children.flatMap(({ pid }) => below(all, pid))];
}

function runningProcesses(): RunningProcess[] {
  return readdirSync("/proc").flatMap((entry) => {
    if (!/^\d+$/.test(entry)) return [];
    try {
      const stat = readFileSync(`/proc/${entry}/stat`, "utf8");
      const end = stat.lastIndexOf(")");
      const parent = Number(stat.slice(end + 2).split(" ")[1]);
      const command = readFileSync(`/proc/${entry}/cmdline`, "utf8").replaceAll("\0", " ");
      return [{ pid: Number(entry), parent, name: stat.slice(stat.indexOf("(") + 1, end), command }];
    } catch {
      return [];
    }
  });
}

/**
 * Which processes belong to a hand, and to which of its calls (X4).
 *
 * A process belongs to a call if it inherited the call's variable (TENDON_CALL_ID, seen in /proc/PID/environ), or holds
 * the call's pipe as descriptor 60 (a subshell that was only forked shows the shell's old environment), or its parent
 * belongs to it. Detaching by setsid, nohup or a double fork changes none of the first two.
 */
import { execFile } from "node:child_process";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { promisify } from "node:util";
import type { Clock } from "../../kit/clock.ts";
import type { ProcessInfo } from "./driver.ts";

/** The descriptor that marks a call's processes. High, so that no program expects it to be something else. */
export const CALL_MARK_FD = 60;
/** utime, stime, cutime and cstime of /proc/PID/stat, counted from the state. */
const CPU_FIELDS = [11, 12, 13, 14];
/** The kernel counts for programs in hundredths of a second, on every machine that Node runs on. */
const TICK_MS = 10;
/** Between two looks at what is left. */
const KILL_POLL_MS = 10;

export interface TableOptions {
  readonly handId: string;
  /** How to tell the hand's processes from the host's others. */
  readonly scope: { kind: "tree"; launcherPid: number } | { kind: "uid"; uid: number } | { kind: "marked" };
  readonly clock: Clock;
}

interface Row {
  readonly pid: number;
  readonly ppid: number;
  readonly namespacePid: number;
  readonly command: string;
  readonly handId: string | undefined;
  /** Holds a pipe of one of the hand's calls. */
  readonly isMarked: boolean;
  /** Its own, and of its children that have ended; undefined where nobody says. */
  readonly cpuMs: number | undefined;
  callId: string | undefined;
}

export class ProcessTable {
  private readonly options: TableOptions;
  private readonly callOfPipe = new Map<string, string>();

  constructor(options: TableOptions) {
    this.options = options;
  }

  markPipe(key: string, callId: string): void {
    this.callOfPipe.set(key, callId);
  }

  unmarkPipe(key: string): void {
    this.callOfPipe.delete(key);
  }

  /** All living processes of the hand, without the sandbox's own. */
  async list(): Promise<ProcessInfo[]> {
    return (await this.rows()).filter(isOfCalls).map(toInfo);
  }

  /** `list` and the sandbox's own processes. */
  async listAll(): Promise<ProcessInfo[]> {
    return (await this.rows()).map(toInfo);
  }

  async ofCall(callId: string): Promise<ProcessInfo[]> {
    return (await this.rows()).filter((row) => row.callId === callId).map(toInfo);
  }

  async cpuMsOfCall(callId: string): Promise<number | undefined> {
    const used = (await this.rows()).filter((row) => row.callId === callId).map(({ cpuMs }) => cpuMs);
    return used.includes(undefined) ? undefined : used.reduce<number>((sum, ms) => sum + ms!, 0);
  }

  /** The host's process id of a process that the hand knows under `namespacePid`; undefined once it is gone. */
  async hostPid(namespacePid: number): Promise<number | undefined> {
    if (this.options.scope.kind !== "tree") return isAlive(namespacePid) ? namespacePid : undefined;
    return (await this.rows()).find((row) => row.namespacePid === namespacePid)?.pid;
  }

  /** SIGKILLs until nothing that `select` wants is left, or the time is over. */
  async kill(select: () => Promise<ProcessInfo[]>, withinMs: number): Promise<{ left: ProcessInfo[] }> {
    const { clock } = this.options;
    const deadline = clock.monotonicMs() + withinMs;
    for (let cleanLooks = 0; ; ) {
      const found = await select();
      if (found.length === 0) cleanLooks += 1;
      else cleanLooks = 0;
      // Two looks: a child forked while the first one was under way is seen by the second.
      if (cleanLooks === 2) return { left: [] };
      for (const { pid } of found) killHard(pid);
      if (found.length > 0 && clock.monotonicMs() >= deadline) return { left: found };
      if (found.length > 0) await clock.sleep(KILL_POLL_MS);
    }
  }

  private async rows(): Promise<Row[]> {
    const rows = process.platform === "linux" ? this.linuxRows() : await this.portableRows();
    const byPid = new Map(rows.map((row) => [row.pid, row]));
    for (const row of rows) row.callId ??= inheritedCall(row, byPid);
    return rows;
  }

  private linuxRows(): Row[] {
    const { scope, handId } = this.options;
    const rows: Row[] = [];
    for (const pid of scope.kind === "tree" ? descendants(scope.launcherPid) : allPids()) {
      if (scope.kind === "uid" && uidOf(pid) !== scope.uid) continue;
      const row = this.readRow(pid);
      if (row && (scope.kind !== "marked" || row.handId === handId || row.isMarked)) rows.push(row);
    }
    return rows;
  }

  private readRow(pid: number): Row | undefined {
    try {
      const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
      const open = stat.indexOf("(");
      const close = stat.lastIndexOf(")");
      const fields = stat.slice(close + 2).split(" ");
      const [state, ppid] = fields;
      if (state === "Z" || state === "X") return undefined;
      const env = readFileSync(`/proc/${pid}/environ`, "utf8");
      const marked = this.callOfMark(pid);
      return {
        pid,
        ppid: Number(ppid),
        namespacePid: namespacePidOf(pid),
        command: stat.slice(open + 1, close),
        handId: variable(env, "TENDON_HAND_ID"),
        isMarked: marked !== undefined,
        cpuMs: CPU_FIELDS.reduce((sum, field) => sum + Number(fields[field]) * TICK_MS, 0),
        callId: marked ?? variable(env, "TENDON_CALL_ID"),
      };
    } catch {
      return undefined; // gone meanwhile, or somebody else's
    }
  }

  private callOfMark(pid: number): string | undefined {
    try {
      const { dev, ino } = statSync(`/proc/${pid}/fd/${CALL_MARK_FD}`, { bigint: true });
      return this.callOfPipe.get(`${dev}:${ino}`);
    } catch {
      return undefined;
    }
  }

  /** Where there is no /proc, `ps` shows the environment of our own processes. */
  private async portableRows(): Promise<Row[]> {
    const run = promisify(execFile);
    const { stdout } = await run("ps", ["-axwwE", "-o", "pid=,ppid=,command="], { maxBuffer: 64 << 20 });
    return stdout.split("\n").flatMap((line) => {
      const [, pid, ppid, command = ""] = /^\s*(\d+)\s+(\d+)\s+(.*)$/.exec(line) ?? [];
      const handId = /\bTENDON_HAND_ID=(\S+)/.exec(command)?.[1];
      if (pid === undefined || handId !== this.options.handId) return [];
      const callId = /\bTENDON_CALL_ID=(\S+)/.exec(command)?.[1];
      const row: Row = {
        pid: Number(pid),
        ppid: Number(ppid),
        namespacePid: Number(pid),
        command: command.split(" ")[0] ?? "",
        handId,
        isMarked: false,
        cpuMs: undefined,
        callId,
      };
      return [row];
    });
  }
}

function toInfo({ pid, command, callId }: Row): ProcessInfo {
  return callId === undefined ? { pid, command } : { pid, command, callId };
}

function inheritedCall(row: Row, byPid: ReadonlyMap<number, Row>): string | undefined {
  let parent = byPid.get(row.ppid);
  for (let depth = 0; parent && depth < 1_000; depth++) {
    if (parent.callId !== undefined) return parent.callId;
    parent = byPid.get(parent.ppid);
  }
  return undefined;
}

/** False for the launcher, the first process, and its forks that wait for one process each. */
function isOfCalls(row: Row): boolean {
  return row.callId !== undefined || (row.handId !== undefined && row.namespacePid !== 1);
}

function variable(env: string, name: string): string | undefined {
  for (const entry of env.split("\0")) if (entry.startsWith(`${name}=`)) return entry.slice(name.length + 1);
  return undefined;
}

/** The pid one namespace below the agent's, or the agent's own view; deeper ones that a hand makes are its own affair. */
function namespacePidOf(pid: number): number {
  const pids = namespacePids(pid);
  ownDepth ??= namespacePids("self").length;
  return pids[ownDepth] ?? pids.at(-1) ?? -1;
}

let ownDepth: number | undefined;

function namespacePids(pid: number | "self"): number[] {
  const line = /^NSpid:\s+(.*)$/m.exec(readFileSync(`/proc/${pid}/status`, "latin1"))?.[1] ?? "";
  return line.split(/\s+/).map(Number);
}

function allPids(): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number);
}

function uidOf(pid: number): number | undefined {
  try {
    return statSync(`/proc/${pid}`).uid;
  } catch {
    return undefined;
  }
}

/** In a process namespace orphans fall to its first process, so that the tree below the launcher is complete. */
function descendants(root: number): number[] {
  const found: number[] = [];
  const open = [root];
  for (let pid = open.pop(); pid !== undefined; pid = open.pop()) {
    for (const child of childrenOf(pid)) {
      found.push(child);
      open.push(child);
    }
  }
  return found;
}

function childrenOf(pid: number): number[] {
  try {
    return readdirSync(`/proc/${pid}/task`).flatMap((task) =>
      readFileSync(`/proc/${pid}/task/${task}/children`, "latin1").split(" ").filter(Boolean).map(Number),
    );
  } catch {
    return [];
  }
}

/** SIGKILL to a process that may be gone. */
export function killHard(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // gone
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

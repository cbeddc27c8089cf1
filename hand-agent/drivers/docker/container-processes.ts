/**
 * Which processes of a container belong to the hand, and to which of its calls (X4), seen from inside. A process belongs
 * to a call if it inherited the call's variable, or holds the call's pipe as descriptor 60 (a subshell that was only forked
 * shows the shell's old environment), or its parent belongs to it. Detaching by setsid, nohup or a double fork changes
 * none of the first two.
 */
import type { Clock } from "../../../kit/clock.ts";
import { HandError, type ProcessInfo } from "../driver.ts";

/** Between two looks at what is left. */
const KILL_POLL_MS = 10;
/** Of the times in /proc, on every Linux that Docker runs on. */
const MS_PER_TICK = 10;
/** Of a line of /proc/PID/stat after the command: user and system time, and the same of children that have ended. */
const CPU_FIELDS = [11, 12, 13, 14] as const;
const OUR_VARIABLE = "TENDON_LANE";
const HAND_VARIABLE = "TENDON_HAND_ID";
const CALL_VARIABLE = "TENDON_CALL_ID";

interface Row {
  readonly pid: number;
  readonly ppid: number;
  readonly command: string;
  /** The first process, a lane, or what a lane runs for the agent. Programs of the hand are started without our variable. */
  readonly isOurs: boolean;
  readonly cpuMs: number;
  callId: string | undefined;
}

export interface ProcessesOptions {
  /** The text of `do_processes`. */
  readonly look: () => Promise<string>;
  readonly kill: (pids: readonly number[]) => Promise<void>;
  readonly callOfPipe: (path: string) => string | undefined;
  readonly clock: Clock;
}

export class ContainerProcesses {
  private readonly options: ProcessesOptions;

  constructor(options: ProcessesOptions) {
    this.options = options;
  }

  async list(callId?: string): Promise<ProcessInfo[]> {
    const rows = await this.rows();
    return rows.filter((row) => callId === undefined || row.callId === callId).map(toInfo);
  }

  /** See Hand.callCpuMs. */
  async cpuMs(callId: string): Promise<number> {
    const rows = (await this.rows()).filter((row) => row.callId === callId);
    return rows.reduce((sum, row) => sum + row.cpuMs, 0);
  }

  /** SIGKILLs until nothing of the call is left, or the time is over. */
  async kill(callId: string, withinMs: number): Promise<{ left: ProcessInfo[] }> {
    const { clock } = this.options;
    const deadline = clock.monotonicMs() + withinMs;
    for (let cleanLooks = 0; ; ) {
      const found = await this.list(callId);
      cleanLooks = found.length === 0 ? cleanLooks + 1 : 0;
      // Two looks: a child forked while the first one was under way is seen by the second.
      if (cleanLooks === 2) return { left: [] };
      if (found.length === 0) continue;
      await this.options.kill(found.map(({ pid }) => pid));
      if (clock.monotonicMs() >= deadline) return { left: found };
      await clock.sleep(KILL_POLL_MS);
    }
  }

  private async rows(): Promise<Row[]> {
    const rows = parseProcesses(await this.options.look(), this.options.callOfPipe);
    // The first process is always there: whoever could not even see that has looked at nothing.
    if (rows.length === 0) throw new HandError("the processes of the container cannot be listed");
    const byPid = new Map(rows.map((row) => [row.pid, row]));
    for (const row of rows) row.callId ??= inheritedCall(row, byPid);
    return rows.filter(({ callId, isOurs }) => callId !== undefined || !isOurs);
  }
}

/** What `head -v` prints of /proc/PID/stat and environ, and `ls -l` of /proc/PID/fd/60. Zombies are left out. */
export function parseProcesses(text: string, callOfPipe: (path: string) => string | undefined): Row[] {
  const sections = text.split(/^==> (?:\/proc\/(\d+)\/(stat|environ)|(fds)) <==\n/m);
  const stats = new Map<number, string>();
  const environments = new Map<number, string[]>();
  const marks = new Map<number, string>();
  for (let i = 1; i < sections.length; i += 4) {
    const [pid, kind, fds, body = ""] = sections.slice(i, i + 4);
    if (fds !== undefined) for (const [owner, path] of marksOf(body)) marks.set(owner, path);
    else if (kind === "stat") stats.set(Number(pid), body);
    else environments.set(Number(pid), body.split("\0"));
  }
  return [...stats].flatMap(([pid, stat]) => {
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    const [state = "", ppid] = fields;
    if (state === "Z" || state === "X" || state === "") return [];
    const env = environments.get(pid) ?? [];
    return {
      pid,
      ppid: Number(ppid),
      command: stat.slice(stat.indexOf("(") + 1, stat.lastIndexOf(")")),
      // What has no parent came in from outside: a lane, also before it has an environment.
      isOurs:
        ppid === "0" ||
        (variable(env, OUR_VARIABLE) !== undefined && variable(env, HAND_VARIABLE) === undefined),
      cpuMs: CPU_FIELDS.reduce((sum, at) => sum + Number(fields[at] ?? 0), 0) * MS_PER_TICK,
      callId: callOfPipe(marks.get(pid) ?? "") ?? variable(env, CALL_VARIABLE),
    };
  });
}

function* marksOf(listing: string): Generator<[number, string]> {
  for (const [, pid, path = ""] of listing.matchAll(/\/proc\/(\d+)\/fd\/60 -> (\S+)/g))
    yield [Number(pid), path];
}

function variable(env: readonly string[], name: string): string | undefined {
  return env.find((entry) => entry.startsWith(`${name}=`))?.slice(name.length + 1);
}

function inheritedCall(row: Row, byPid: ReadonlyMap<number, Row>): string | undefined {
  let parent = byPid.get(row.ppid);
  for (let depth = 0; parent && depth < 1_000; depth++) {
    if (parent.callId !== undefined) return parent.callId;
    parent = byPid.get(parent.ppid);
  }
  return undefined;
}

function toInfo({ pid, command, callId }: Row): ProcessInfo {
  return callId === undefined ? { pid, command } : { pid, command, callId };
}

/** What the machine itself says about processes, whatever the product believes. */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";

interface ProcessFacts {
  readonly pid: number;
  readonly parent: number;
  /** A letter of ps: R, S, D, T, Z and so on. */
  readonly state: string;
}

function processes(): ProcessFacts[] {
  return readdirSync("/proc").flatMap((name) => {
    if (!/^\d+$/.test(name)) return [];
    try {
      const stat = readFileSync(`/proc/${name}/stat`, "latin1");
      const [state = "", parent] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
      return [{ pid: Number(name), parent: Number(parent), state }];
    } catch {
      return []; // gone meanwhile
    }
  });
}

/** Processes below this one, however deep, in namespaces of their own too. */
export function descendantsOf(pid: number): ProcessFacts[] {
  const all = processes();
  const found: ProcessFacts[] = [];
  let parents = new Set([pid]);
  while (parents.size > 0) {
    const children = all.filter(({ parent }) => parents.has(parent));
    found.push(...children);
    parents = new Set(children.map((child) => child.pid));
  }
  return found;
}

/** State of a process; undefined when there is none. */
export function stateOf(pid: number): string | undefined {
  return processes().find((one) => one.pid === pid)?.state;
}

/** Processes whose arguments hold this word: give commands a number that nothing else on the machine has. */
export function processesWithArgument(word: string): number[] {
  return processes().flatMap(({ pid }) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "latin1").split("\0").includes(word) ? [pid] : [];
    } catch {
      return [];
    }
  });
}

export function openDescriptors(pid: number): number {
  return readdirSync(`/proc/${pid}/fd`).length;
}

/** Sockets on which the process listens for TCP, by /proc: none, for whoever only dials out. */
export function listeningSockets(pid: number): number {
  const listening = new Set(
    ["tcp", "tcp6"].flatMap((table) =>
      readFileSync(`/proc/${pid}/net/${table}`, "latin1")
        .split("\n")
        .slice(1)
        .map((line) => line.trim().split(/\s+/))
        .filter((columns) => columns[3] === "0A")
        .map((columns) => columns[9]),
    ),
  );
  return readdirSync(`/proc/${pid}/fd`).filter((fd) => {
    try {
      const inode = /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.[1];
      return inode !== undefined && listening.has(inode);
    } catch {
      return false;
    }
  }).length;
}

/** Resident memory in bytes; the peak since the process started with `peak`. */
export function residentBytes(pid: number, { peak = false } = {}): number {
  const status = readFileSync(`/proc/${pid}/status`, "latin1");
  return Number(new RegExp(`^${peak ? "VmHWM" : "VmRSS"}:\\s+(\\d+) kB`, "m").exec(status)?.[1] ?? 0) * 1024;
}

/** What processes the machine has, read from /proc: independent of what the product believes. */
import { readdirSync, readFileSync } from "node:fs";

/** Processes of the machine whose command line holds the text. */
export function commandsWith(text: string): string[] {
  return readdirSync("/proc").filter((name) => {
    try {
      return /^\d+$/.test(name) && readFileSync(`/proc/${name}/cmdline`, "utf8").includes(text);
    } catch {
      return false;
    }
  });
}

/** Processes that carry the mark of a hand of an `mcp-…` driver. */
export function markedProcesses(driver: string, handId: string): string[] {
  const mark = `TENDON_HAND_ID=${driver}/${handId}\0`;
  return readdirSync("/proc").filter((name) => {
    try {
      return /^\d+$/.test(name) && readFileSync(`/proc/${name}/environ`, "latin1").includes(mark);
    } catch {
      return false;
    }
  });
}

/** Zombies below the test's own process. */
export function zombiesBelow(): number {
  const rows = readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      try {
        const stat = readFileSync(`/proc/${name}/stat`, "latin1");
        const [state, ppid] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
        return [{ pid: Number(name), state, ppid: Number(ppid) }];
      } catch {
        return [];
      }
    });
  const parents = new Map(rows.map((row) => [row.pid, row.ppid]));
  const isBelow = (pid: number): boolean => {
    for (let at = parents.get(pid); at; at = parents.get(at)) if (at === process.pid) return true;
    return false;
  };
  return rows.filter((row) => row.state === "Z" && isBelow(row.pid)).length;
}

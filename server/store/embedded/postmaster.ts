/** The Postgres server process: found by its pid file, started, waited for, ended. A pid is believed only after asking what that process runs. */
import type { ChildProcess } from "node:child_process";
import { open, readdir, readFile, statfs, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Clock } from "../../../kit/clock.ts";
import { isAlive } from "./cluster.ts";
import { diskFull, EmbeddedPostgresError, fileProblem, processProblem } from "./embedded-postgres-error.ts";
import type { Placement } from "./placement.ts";
import { boundLog, readLogFrom, sizeOf } from "./postgres-log.ts";
import { commandLine, spawnAs } from "./run-as.ts";
import { postgresSettings } from "./settings.ts";

const POLL_MS = 5;

export interface Postmaster {
  pid: number;
  /** True when an earlier program started it. */
  adopted: boolean;
  /** Whether the process is still there. */
  alive(): Promise<boolean>;
  /** Where this start's output begins in the log. */
  logFromBytes: number;
}

interface PidFile {
  pid: number;
  socketDir: string;
  status: string;
}

async function readPidFile(cluster: string): Promise<PidFile | undefined> {
  const text = await readFile(join(cluster, "postmaster.pid"), "utf8").catch(() => "");
  const lines = text.split("\n");
  const pid = Number(lines[0]);
  if (!Number.isSafeInteger(pid) || pid <= 0) return undefined;
  return { pid, socketDir: lines[4] ?? "", status: (lines[7] ?? "").trim() };
}

/** `-D` is followed by `-c`, always: so the database of another data directory whose path is longer is not taken for this one. */
async function serves(pid: number, cluster: string): Promise<boolean> {
  return isAlive(pid) && (await commandLine(pid)).includes(` -D ${cluster} -c `);
}

/** The Postgres that runs on this cluster already, if any. Sees to it that a stale pid file does not stop a new one. */
export async function findPostmaster(cluster: string): Promise<Postmaster | undefined> {
  const found = await readPidFile(cluster);
  if (!found) return undefined;
  if (await serves(found.pid, cluster)) {
    return {
      pid: found.pid,
      adopted: true,
      logFromBytes: Number.MAX_SAFE_INTEGER,
      alive: () => serves(found.pid, cluster),
    };
  }
  // Postgres drops a pid file whose process is gone, after it has made sure that no worker of the old one still writes.
  // It gives up when the number has gone to another process; with its parent's number there instead it does the same check.
  if (isAlive(found.pid) && found.pid !== process.pid) {
    const path = join(cluster, "postmaster.pid");
    const text = await readFile(path, "utf8").catch(() => "");
    if (Number(text.split("\n")[0]) === found.pid) {
      await writeFile(path, text.replace(/^\d+/, String(process.pid)), { flag: "r+" });
    }
  }
  return undefined;
}

/**
 * Starts Postgres in a session of its own: a signal to our process group (Ctrl-C, a supervisor) does not reach it before we
 * have closed our connections. It outlives us if we are killed; the next start adopts it.
 */
export async function spawnPostmaster(placement: Placement, socketDir: string): Promise<Postmaster> {
  const { binaries, runAs, cluster, logPath } = placement;
  await boundLog(logPath).catch((error) => {
    throw fileProblem(error, logPath);
  });
  const logFromBytes = await sizeOf(logPath);
  const logFile = await open(logPath, "a", 0o600).catch((error) => {
    throw fileProblem(error, logPath);
  });
  let child: ChildProcess;
  try {
    const args = ["-D", cluster, ...postgresSettings(socketDir)];
    child = spawnAs(runAs, binaries.postgres, args, binaries.environment, {
      detached: true,
      stdio: ["ignore", logFile.fd, logFile.fd],
    });
  } finally {
    await logFile.close();
  }
  let running = true;
  child.on("exit", () => {
    running = false;
  });
  child.on("error", () => {
    running = false;
  });
  child.unref();
  return { pid: child.pid ?? 0, adopted: false, alive: async () => running, logFromBytes };
}

/** Waits until Postgres takes connections and returns its socket's folder, or undefined when it is gone instead. */
export async function untilReady(
  postmaster: Postmaster,
  placement: Placement,
  clock: Clock,
  withinMs: number,
): Promise<string | undefined> {
  const deadlineMs = clock.monotonicMs() + withinMs;
  for (;;) {
    const found = await readPidFile(placement.cluster);
    if (found?.pid === postmaster.pid && found.status === "ready") return found.socketDir;
    if (!(await postmaster.alive())) return undefined;
    if (clock.monotonicMs() >= deadlineMs) {
      throw new EmbeddedPostgresError(
        "failed",
        `Postgres (process ${postmaster.pid}) was not ready within ${withinMs / 1000} s: see ${placement.logPath}; if it hangs, end it with kill -QUIT ${postmaster.pid} and start again.`,
      );
    }
    await clock.sleep(POLL_MS);
  }
}

/** Why a start ended early: "again" when someone else's Postgres, or the rest of an old one, still has the cluster. */
export async function startFailure(
  postmaster: Postmaster,
  placement: Placement,
): Promise<"again" | EmbeddedPostgresError> {
  const said = await readLogFrom(placement.logPath, postmaster.logFromBytes);
  if (
    /lock file ".*" already exists|pre-existing shared memory block|is another postmaster|bogus data in lock file/.test(
      said,
    )
  ) {
    return "again";
  }
  if (said === "" && (await isDiskFull(placement.home))) return diskFull(placement.cluster);
  return processProblem(said, placement.cluster, placement.logPath);
}

async function isDiskFull(folder: string): Promise<boolean> {
  const { bavail, bsize } = await statfs(folder);
  return bavail * bsize < 64 * 1024;
}

/** Fast shutdown closes connections and writes a checkpoint; immediate leaves that to the next start's recovery. Nothing committed is lost either way. */
const STOP_STEPS = [
  { signal: "SIGINT", waitMs: 5_000 },
  { signal: "SIGQUIT", waitMs: 2_000 },
  { signal: "SIGKILL", waitMs: 1_000 },
] as const;

/** Ends Postgres within 8 s, whatever it does, and leaves no process of it. */
export async function stopPostmaster(postmaster: Postmaster, clock: Clock): Promise<void> {
  for (const { signal, waitMs } of STOP_STEPS) {
    if (!(await postmaster.alive())) return;
    const children = signal === "SIGKILL" ? await childrenOf(postmaster.pid) : [];
    sendSignal(postmaster.pid, signal);
    for (const pid of children) sendSignal(pid, signal);
    const deadlineMs = clock.monotonicMs() + waitMs;
    while ((await postmaster.alive()) && clock.monotonicMs() < deadlineMs) await clock.sleep(POLL_MS);
  }
}

function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {
    // It was gone already.
  }
}

/** Postgres' workers each lead a process group of their own, so they are found by their parent. */
async function childrenOf(parent: number): Promise<number[]> {
  const children: number[] = [];
  for (const name of await readdir("/proc").catch(() => [])) {
    if (!/^\d+$/.test(name)) continue;
    const text = await readFile(`/proc/${name}/stat`, "utf8").catch(() => "");
    // The name in parentheses may hold anything; the parent's pid is the second field after it.
    if (Number(text.slice(text.lastIndexOf(")") + 2).split(" ")[1]) === parent) children.push(Number(name));
  }
  return children;
}

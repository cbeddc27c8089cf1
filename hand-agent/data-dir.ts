/** The agent's own directory: only its user may look into it, and only one agent at a time works in it. */
import { randomBytes } from "node:crypto";
import { access, chmod, constants, mkdir, readdir, readFile, unlink } from "node:fs/promises";
import { join, resolve } from "node:path";
import type { Clock } from "../kit/clock.ts";
import { messageOf } from "../kit/errors.ts";
import { createPrivateFile } from "../kit/private-file.ts";
import { StartupError } from "../kit/program.ts";

export interface DataDir {
  readonly path: string;
  /** Lets another agent have it. */
  release(): Promise<void>;
}

/** A process that was killed is there until its memory is given back. */
const DYING_WITHIN_MS = 3_000;
const LOOK_AGAIN_MS = 50;

/**
 * Makes and claims the directory. Throws StartupError when it cannot be used, or another agent still uses it after
 * `dyingWithinMs`: the one before may have been killed a moment ago.
 */
export async function claimDataDir(
  dir: string,
  { clock, dyingWithinMs = DYING_WITHIN_MS }: { clock: Clock; dyingWithinMs?: number },
): Promise<DataDir> {
  const path = resolve(dir);
  try {
    await mkdir(path, { recursive: true, mode: 0o700 });
    await chmod(path, 0o711); // hands run below it under users of their own; they may pass, not look
    await access(path, constants.W_OK);
  } catch (error) {
    throw new StartupError(`cannot write to the data directory ${path}: ${messageOf(error)}`);
  }
  const lock = join(path, "agent.lock");
  const mine = JSON.stringify({
    pid: process.pid,
    nonce: randomBytes(8).toString("hex"),
    startedAt: await startOf(process.pid),
  });
  const deadline = clock.monotonicMs() + dyingWithinMs;
  for (let attempt = 0; attempt < 5; ) {
    await createPrivateFile(lock, mine);
    const holder = await readFile(lock, "utf8").catch(() => "");
    if (holder === mine) return { path, release: () => unlink(lock).catch(() => {}) };
    const pid = await livingHolder(holder);
    if (pid !== undefined && pid !== process.pid && clock.monotonicMs() < deadline) {
      await clock.sleep(LOOK_AGAIN_MS);
      continue;
    }
    if (pid !== undefined) {
      throw new StartupError(
        `another hand agent (process ${pid}) uses the data directory ${path}; give this one its own`,
      );
    }
    await unlink(lock).catch(() => {});
    attempt += 1;
  }
  throw new StartupError(`cannot claim the data directory ${path}`);
}

/** The process that wrote this lock, if it is still the same one. */
async function livingHolder(lock: string): Promise<number | undefined> {
  try {
    const { pid, startedAt } = JSON.parse(lock) as { pid: number; startedAt: string };
    process.kill(pid, 0);
    return (await startOf(pid)) === startedAt && !(await isDead(pid)) ? pid : undefined;
  } catch (error) {
    // Somebody else's process: it is alive, and not one that we may judge.
    return (error as NodeJS.ErrnoException).code === "EPERM"
      ? (JSON.parse(lock) as { pid: number }).pid
      : undefined;
  }
}

/** Ended, and only kept for its parent to hear of; no thread of it can do anything any more. */
async function isDead(pid: number): Promise<boolean> {
  const stat = await readFile(`/proc/${pid}/stat`, "latin1").catch(() => "");
  if (!/^[ZX]/.test(stat.slice(stat.lastIndexOf(")") + 2))) return false;
  return (await readdir(`/proc/${pid}/task`).catch(() => [])).length <= 1;
}

/** When the process started, in the kernel's ticks, so that a reused number is told apart; empty where there is no /proc. */
async function startOf(pid: number): Promise<string> {
  const stat = await readFile(`/proc/${pid}/stat`, "latin1").catch(() => "");
  return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19] ?? "";
}

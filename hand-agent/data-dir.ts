/** The agent's own directory: only its user may look into it, and only one agent at a time works in it. */
import { randomBytes } from "node:crypto";
import { access, chmod, constants, mkdir, readFile, unlink } from "node:fs/promises";
import { join, resolve } from "node:path";
import { messageOf } from "../kit/errors.ts";
import { createPrivateFile } from "../kit/private-file.ts";
import { StartupError } from "../kit/program.ts";

export interface DataDir {
  readonly path: string;
  /** Lets another agent have it. */
  release(): Promise<void>;
}

/** Makes and claims the directory. Throws StartupError when it cannot be used or another agent uses it. */
export async function claimDataDir(dir: string): Promise<DataDir> {
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
  for (let attempt = 0; attempt < 5; attempt++) {
    await createPrivateFile(lock, mine);
    const holder = await readFile(lock, "utf8").catch(() => "");
    if (holder === mine) return { path, release: () => unlink(lock).catch(() => {}) };
    const pid = await livingHolder(holder);
    if (pid !== undefined) {
      throw new StartupError(
        `another hand agent (process ${pid}) uses the data directory ${path}; give this one its own`,
      );
    }
    await unlink(lock).catch(() => {});
  }
  throw new StartupError(`cannot claim the data directory ${path}`);
}

/** The process that wrote this lock, if it is still the same one. */
async function livingHolder(lock: string): Promise<number | undefined> {
  try {
    const { pid, startedAt } = JSON.parse(lock) as { pid: number; startedAt: string };
    process.kill(pid, 0);
    return (await startOf(pid)) === startedAt ? pid : undefined;
  } catch (error) {
    // Somebody else's process: it is alive, and not one that we may judge.
    return (error as NodeJS.ErrnoException).code === "EPERM"
      ? (JSON.parse(lock) as { pid: number }).pid
      : undefined;
  }
}

/** When the process started, in the kernel's ticks, so that a reused number is told apart; empty where there is no /proc. */
async function startOf(pid: number): Promise<string> {
  const stat = await readFile(`/proc/${pid}/stat`, "latin1").catch(() => "");
  return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19] ?? "";
}

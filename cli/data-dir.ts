/** What an installation that was started here leaves in its data directory for those who use it. */
import { readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { readPrivateFile } from "../kit/private-file.ts";
import { StartupError } from "../kit/program.ts";

export const DEFAULT_DATA_DIR = ".tendon";

export interface DataDir {
  readonly path: string;
  /** Whether somebody named it, instead of leaving it to be the default. */
  readonly isNamed: boolean;
}

export function dataDirOf(named: string | undefined): DataDir {
  return { path: resolve(named ?? DEFAULT_DATA_DIR), isNamed: named !== undefined };
}

export const adminKeyFile = (dataDir: DataDir) => join(dataDir.path, "admin.key");

/** The key of the file, or undefined when there is none. Throws a StartupError when it cannot be used. */
export async function readAdminKey(dataDir: DataDir): Promise<string | undefined> {
  const path = adminKeyFile(dataDir);
  try {
    const key = (await readPrivateFile(path))?.trim();
    return key === "" ? undefined : key;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === "ENOTDIR") return undefined;
    throw new StartupError(`cannot use ${path}: ${message}`);
  }
}

/** What `tendon start` writes while it runs. */
export interface RunRecord {
  readonly pid: number;
  /** When that process started, in the kernel's ticks; tells a reused number apart. Empty where there is no /proc. */
  readonly startedAt: string;
  readonly url: string;
  /** The programs that it started. */
  readonly children: readonly { readonly name: string; readonly pid: number; readonly startedAt: string }[];
}

export const runRecordFile = (dataDir: DataDir) => join(dataDir.path, "start.json");

/** The record of the last `tendon start`, whether it still runs or not. */
export async function readRunRecord(dataDir: DataDir): Promise<RunRecord | undefined> {
  try {
    const record = JSON.parse(await readFile(runRecordFile(dataDir), "utf8")) as Partial<RunRecord>;
    if (typeof record.pid !== "number" || typeof record.url !== "string" || !URL.canParse(record.url))
      return undefined;
    return {
      pid: record.pid,
      startedAt: record.startedAt ?? "",
      url: record.url,
      children: record.children ?? [],
    };
  } catch {
    return undefined;
  }
}

/** Whether the process that is meant still runs. */
export async function isAlive({ pid, startedAt }: { pid: number; startedAt: string }): Promise<boolean> {
  try {
    process.kill(pid, 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EPERM") return false;
  }
  const { startedAt: now, state } = await processFacts(pid);
  return state !== "Z" && (startedAt === "" || now === "" || now === startedAt);
}

/** State letter and start time of a process; empty where there is no /proc or no such process. */
export async function processFacts(pid: number): Promise<{ state: string; startedAt: string }> {
  const stat = await readFile(`/proc/${pid}/stat`, "latin1").catch(() => "");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return { state: fields[0] ?? "", startedAt: fields[19] ?? "" };
}

/**
 * Where the process driver keeps a hand on disk: `<dataDir>/hands/<handId>/`. Files that the hand's uid could not reach
 * there are in a folder of the system (system-folder.ts); the link `elsewhere` in the hand's directory leads to them.
 */
import {
  chmod,
  chown,
  lstat,
  mkdir,
  readdir,
  readFile,
  readlink,
  rename,
  rm,
  symlink,
  writeFile,
} from "node:fs/promises";
import { join } from "node:path";
import type { MountSpec } from "../driver.ts";
import type { RestrictedNetwork } from "./hand-network.ts";
import type { IsolationMode } from "./isolation.ts";
import { checkPlace, tidyAbove } from "./system-folder.ts";

export interface HandDirs {
  /** The hand's record; no hand can read it. */
  readonly base: string;
  /** What the directories below are in: `base`, or a folder of the system. */
  readonly files: string;
  /** The workspace. */
  readonly work: string;
  /** Whole outputs of calls whose text was cut. */
  readonly outputs: string;
  /** Named pipes. */
  readonly run: string;
  /** The hand's /tmp. */
  readonly tmp: string;
  /** What the hand sees as /mnt, where it has mounts. */
  readonly mnt: string;
  /** Where a new root is built; empty outside of the sandbox. */
  readonly mountPoint: string;
  /** passwd and group with an entry for the hand's uid. */
  readonly etc: string;
}

/** What must outlive the agent for the hand to be resumed. */
export interface HandRecord {
  /** 2 where the network is less than the host's: a build that knows only 1 refuses the hand, and does not open it. */
  readonly version: 1 | 2;
  readonly handId: string;
  readonly mode: IsolationMode;
  /** The hand's own uid; undefined where it runs as the agent's user. */
  readonly uid?: number | undefined;
  readonly env: Readonly<Record<string, string>>;
  /** In version 2. */
  readonly network?: RestrictedNetwork | undefined;
  readonly mounts?: readonly MountSpec[] | undefined;
}

export async function findHandDirs(handsDir: string, handId: string): Promise<HandDirs> {
  const base = join(handsDir, handId);
  try {
    return handDirs(base, await readlink(join(base, ELSEWHERE)));
  } catch (error) {
    const { code = "" } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "ENOTDIR") return handDirs(base, base);
    throw error;
  }
}

/** Says in the data directory that the hand's files are in `files`: before they are, so that none are ever forgotten. */
export async function pointElsewhere({ base }: HandDirs, files: string): Promise<HandDirs> {
  await mkdir(base, { recursive: true, mode: 0o711 });
  await symlink(files, join(base, ELSEWHERE));
  return handDirs(base, files);
}

/** Nothing was made there after all. */
export async function forgetElsewhere({ base }: HandDirs): Promise<void> {
  await rm(join(base, ELSEWHERE), { force: true });
}

const ELSEWHERE = "elsewhere";

function handDirs(base: string, files: string): HandDirs {
  return {
    base,
    files,
    work: join(files, "work"),
    outputs: join(files, "outputs"),
    run: join(files, "run"),
    tmp: join(files, "tmp"),
    mnt: join(files, "mnt"),
    mountPoint: join(files, "root"),
    etc: join(files, "etc"),
  };
}

/** Makes what is missing and empties what only lived with the last sandbox. */
export async function prepareDirs(dirs: HandDirs, uid: number | undefined): Promise<void> {
  // Passable for the hand's uid, listable for nobody else.
  await mkdir(dirs.base, { recursive: true, mode: 0o711 });
  await rm(dirs.run, { recursive: true, force: true });
  for (const dir of [dirs.work, dirs.outputs, dirs.run]) {
    await mkdir(dir, { recursive: true, mode: 0o700 });
    if (uid !== undefined) await chown(dir, uid, uid);
  }
  await mkdir(dirs.tmp, { recursive: true });
  await chmod(dirs.tmp, 0o1777);
  await mkdir(dirs.mountPoint, { recursive: true, mode: 0o755 });
  if (uid !== undefined) await writeAccounts(dirs, uid);
}

/** The folder of pipes is the hand's own, which may have removed it or taken the rights from it. */
export async function mendRunDir({ run }: HandDirs, uid: number | undefined): Promise<void> {
  await mkdir(run, { recursive: true, mode: 0o700 });
  await chmod(run, 0o700);
  if (uid !== undefined) await chown(run, uid, uid);
}

/** Programs ask who they are (git, ssh, whoami): the hand's uid gets a name, without making a user on the host. */
async function writeAccounts(dirs: HandDirs, uid: number): Promise<void> {
  await mkdir(dirs.etc, { recursive: true, mode: 0o755 });
  const entry = {
    passwd: `hand:x:${uid}:${uid}:Tendon hand:${dirs.work}:/bin/bash\n`,
    group: `hand:x:${uid}:\n`,
  };
  for (const name of ["passwd", "group"] as const) {
    const host = await readFile(`/etc/${name}`, "utf8").catch(() => "");
    await writeFile(join(dirs.etc, name), host + entry[name], { mode: 0o644 });
  }
}

export async function readRecord(dirs: HandDirs): Promise<HandRecord | undefined> {
  try {
    return JSON.parse(await readFile(join(dirs.base, "hand.json"), "utf8")) as HandRecord;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

export async function writeRecord(dirs: HandDirs, record: HandRecord): Promise<void> {
  const path = join(dirs.base, "hand.json");
  await writeFile(`${path}.tmp`, JSON.stringify(record), { mode: 0o600 });
  await rename(`${path}.tmp`, path);
}

/** Removes a hand's files, also where it has taken the rights from its own directories. No process of it may live. */
export async function removeDirs(dirs: HandDirs): Promise<void> {
  if (dirs.files !== dirs.base) {
    if (await checkPlace(dirs.files)) await removeTree(dirs.files);
    await tidyAbove(dirs.files);
  }
  await removeTree(dirs.base);
}

async function removeTree(dir: string): Promise<void> {
  try {
    await rm(dir, { recursive: true, force: true });
  } catch {
    await unlock(dir);
    await rm(dir, { recursive: true, force: true });
  }
}

async function unlock(dir: string): Promise<void> {
  await chmod(dir, 0o700);
  for (const name of await readdir(dir)) {
    const path = join(dir, name);
    if ((await lstat(path)).isDirectory()) await unlock(path);
  }
}

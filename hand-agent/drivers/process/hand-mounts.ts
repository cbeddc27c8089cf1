/** Mounts of a process hand: directories of the agent's beside the workspace, bound below /mnt where the hand has a root of its own. */
import { chmod, chown, mkdir } from "node:fs/promises";
import { dirname } from "node:path";
import { ContainedFiles, type ContainedFilesOptions } from "../contained-files.ts";
import type { Root } from "../contained-path.ts";
import { HandError, type HandMounts, type MountFiles, type MountSpec } from "../driver.ts";
import type { HandDirs } from "./hand-dirs.ts";
import { hasPidNamespace, type IsolationMode } from "./isolation.ts";
import type { SandboxPlan } from "./sandbox-plan.ts";

const MNT = "/mnt";
const PATH = /^\/mnt(\/[a-z0-9][a-z0-9._-]{0,100}){1,4}$/;

/** Throws HandError for mounts that no hand can have. */
export function checkMounts(mounts: readonly MountSpec[]): void {
  for (const { path } of mounts) {
    if (!PATH.test(path)) throw new HandError(`"${path}" is no place for a mount`);
    const around = mounts.filter((other) => `${path}/`.startsWith(`${other.path}/`));
    if (around.length > 1) throw new HandError(`"${path}" lies in another mount`);
  }
}

/** Where the agent has what the hand sees below /mnt. */
function placeOf({ mnt }: HandDirs, path: string): string {
  return mnt + path.slice(MNT.length);
}

/** Makes what is missing. Only the writable mounts themselves are the hand's; what they are in is the agent's. */
export async function prepareMounts(
  dirs: HandDirs,
  mounts: readonly MountSpec[],
  uid: number | undefined,
): Promise<void> {
  for (const { path, readOnly } of mounts) {
    const place = placeOf(dirs, path);
    await mkdir(place, { recursive: true, mode: 0o755 });
    for (let above = dirname(place); above.startsWith(dirs.mnt); above = dirname(above))
      await chmod(above, 0o755);
    await chmod(place, 0o755);
    if (!readOnly && uid !== undefined) await chown(place, uid, uid);
  }
}

/** All of /mnt read-only, and the writable mounts in it once more. */
export function plannedMounts(dirs: HandDirs, mounts: readonly MountSpec[]): SandboxPlan["mounts"] {
  if (mounts.length === 0) return [];
  const writable = mounts.filter(({ readOnly }) => !readOnly);
  return [
    { from: dirs.mnt, to: MNT, readOnly: true },
    ...writable.map(({ path }) => ({ from: placeOf(dirs, path), to: path, readOnly: false })),
  ];
}

/** For the hand's own primitives: by both names where its processes see the host's directories. */
export function mountRoots(dirs: HandDirs, mounts: readonly MountSpec[], mode: IsolationMode): Root[] {
  return mounts.flatMap(({ path, readOnly }) => {
    const at = placeOf(dirs, path);
    const root = { path, at, readOnly };
    return hasPidNamespace(mode) ? [root] : [root, { ...root, path: at }];
  });
}

export function openMounts(
  dirs: HandDirs,
  mounts: readonly MountSpec[],
  { mode, owner }: { mode: IsolationMode; owner: ContainedFilesOptions["owner"] },
): HandMounts {
  const isBound = hasPidNamespace(mode);
  return {
    files: mountFiles(dirs, mounts, owner),
    // A uid of its own keeps a hand out of the agent's directories, too.
    areKept: isBound || owner !== undefined,
    seenAt: (path) => (isBound ? path : placeOf(dirs, path)),
  };
}

/** What the agent makes in a writable mount is the hand's. */
function mountFiles(
  dirs: HandDirs,
  mounts: readonly MountSpec[],
  owner: ContainedFilesOptions["owner"],
): MountFiles {
  const rootsOf = (wanted: boolean): Root[] =>
    mounts.flatMap(({ path, readOnly }) => (readOnly === wanted ? [{ path, at: placeOf(dirs, path) }] : []));
  const kept = new ContainedFiles({ roots: rootsOf(true), owner: undefined });
  const shared = new ContainedFiles({ roots: rootsOf(false), owner });
  const of = (path: string) =>
    mounts.some((mount) => mount.readOnly && `${path}/`.startsWith(`${mount.path}/`)) ? kept : shared;
  return {
    stat: (path) => of(path).stat(path),
    readFile: (path, options) => of(path).readFile(path, options),
    writeFile: (path, content, options) => of(path).writeFile(path, content, options),
    mkdir: (path) => of(path).mkdir(path),
    rename: (from, to) => of(from).rename(from, to),
    remove: (path) => of(path).remove(path),
    walk: (path, options) => of(path).walk(path, options),
    removeEmpty: (path) => of(path).removeEmpty(path),
    writeFrom: (path, offset, bytes, mode) => of(path).writeFrom(path, offset, bytes, mode),
  };
}

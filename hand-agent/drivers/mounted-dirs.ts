/** Mounts that are directories of the agent's machine, for drivers whose hands' files lie there: one folder holds what a hand sees as /mnt. */
import { chmod, chown, mkdir } from "node:fs/promises";
import { dirname } from "node:path";
import { ContainedFiles, type ContainedFilesOptions } from "./contained-files.ts";
import type { Root } from "./contained-path.ts";
import { HandError, type MountFiles, type MountSpec } from "./driver.ts";

export const MNT = "/mnt";
const PATH = /^\/mnt(\/[a-z0-9][a-z0-9._-]{0,100}){1,4}$/;

/** Throws HandError for mounts that no hand can have. */
export function checkMounts(mounts: readonly MountSpec[]): void {
  for (const { path } of mounts) {
    if (!PATH.test(path)) throw new HandError(`"${path}" is no place for a mount`);
    const around = mounts.filter((other) => `${path}/`.startsWith(`${other.path}/`));
    if (around.some((other) => other.path === path && other !== around[0]))
      throw new HandError(`"${path}" is mounted twice`);
    if (around.some((other) => other.path !== path && !other.readOnly))
      throw new HandError(`"${path}" lies in a mount that processes may change`);
  }
}

/** Where the agent has what the hand sees at `path`; `mnt` is its folder for /mnt. */
export function placeOf(mnt: string, path: string): string {
  return mnt + path.slice(MNT.length);
}

/**
 * Makes what is missing, and gives the paths of what it made. Only the writable mounts themselves are the hand's; what
 * they are in is the agent's.
 */
export async function prepareMounts(
  mnt: string,
  mounts: readonly MountSpec[],
  uid: number | undefined,
): Promise<string[]> {
  const made: string[] = [];
  for (const { path, readOnly } of mounts) {
    const place = placeOf(mnt, path);
    if ((await mkdir(place, { recursive: true, mode: 0o755 })) !== undefined) made.push(path);
    for (let above = dirname(place); above.startsWith(mnt); above = dirname(above)) await chmod(above, 0o755);
    await chmod(place, 0o755);
    if (!readOnly && uid !== undefined) await chown(place, uid, uid);
  }
  return made;
}

/** For the hand's own primitives. */
export function mountRoots(mnt: string, mounts: readonly MountSpec[]): Root[] {
  return mounts.map(({ path, readOnly }) => ({ path, at: placeOf(mnt, path), readOnly }));
}

/** The agent's own way. What it makes in a writable mount is the hand's. */
export function mountFiles(
  mnt: string,
  mounts: readonly MountSpec[],
  owner: ContainedFilesOptions["owner"],
): MountFiles {
  const rootsOf = (wanted: boolean): Root[] =>
    mounts.flatMap(({ path, readOnly }) => (readOnly === wanted ? [{ path, at: placeOf(mnt, path) }] : []));
  const kept = new ContainedFiles({ roots: rootsOf(true), owner: undefined });
  const shared = new ContainedFiles({ roots: rootsOf(false), owner });
  // The innermost mount says what holds.
  const byLength = mounts.toSorted((one, other) => other.path.length - one.path.length);
  const of = (path: string) =>
    byLength.find((mount) => `${path}/`.startsWith(`${mount.path}/`))?.readOnly ? kept : shared;
  return {
    stat: (path) => of(path).stat(path),
    readFile: (path, options) => of(path).readFile(path, options),
    writeFile: (path, content, options) => of(path).writeFile(path, content, options),
    mkdir: (path) => of(path).mkdir(path),
    rename: (from, to) => of(from).rename(from, to),
    remove: (path) => of(path).remove(path),
    setMode: (path, mode) => of(path).setMode(path, mode),
    walk: (path, options) => of(path).walk(path, options),
    removeEmpty: (path) => of(path).removeEmpty(path),
    writeFrom: (path, offset, bytes, mode) => of(path).writeFrom(path, offset, bytes, mode),
  };
}

/** Mounts of a process hand: bound below /mnt where the hand has a root of its own. */
import type { ContainedFilesOptions } from "../contained-files.ts";
import type { Root } from "../contained-path.ts";
import type { HandMounts, MountSpec } from "../driver.ts";
import { MNT, mountFiles, mountRoots, placeOf } from "../mounted-dirs.ts";
import type { HandDirs } from "./hand-dirs.ts";
import { hasPidNamespace, type IsolationMode } from "./isolation.ts";
import type { SandboxPlan } from "./sandbox-plan.ts";

/** All of /mnt read-only, and the writable mounts in it once more. */
export function plannedMounts({ mnt }: HandDirs, mounts: readonly MountSpec[]): SandboxPlan["mounts"] {
  if (mounts.length === 0) return [];
  const writable = mounts.filter(({ readOnly }) => !readOnly);
  return [
    { from: mnt, to: MNT, readOnly: true },
    ...writable.map(({ path }) => ({ from: placeOf(mnt, path), to: path, readOnly: false })),
  ];
}

/** For the hand's own primitives: by both names where its processes see the host's directories. */
export function rootsOfMounts({ mnt }: HandDirs, mounts: readonly MountSpec[], mode: IsolationMode): Root[] {
  const roots = mountRoots(mnt, mounts);
  return hasPidNamespace(mode) ? roots : [...roots, ...roots.map((root) => ({ ...root, path: root.at }))];
}

export function openMounts(
  { mnt }: HandDirs,
  mounts: readonly MountSpec[],
  {
    mode,
    owner,
    made,
  }: { mode: IsolationMode; owner: ContainedFilesOptions["owner"]; made: readonly string[] },
): HandMounts {
  const isBound = hasPidNamespace(mode);
  return {
    files: mountFiles(mnt, mounts, owner),
    made,
    // A uid of its own keeps a hand out of the agent's directories, too.
    areKept: isBound || owner !== undefined,
    seenAt: (path) => (isBound ? path : placeOf(mnt, path)),
  };
}

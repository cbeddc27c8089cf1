/**
 * What a docker hand sees as /mnt: a volume of its unit that the agent fills from outside, where it reaches the engine's
 * files. The hand's user owns the writable mounts in it and nothing else, and has no right to go past that.
 */
import { messageOf } from "../../../kit/errors.ts";
import { ContainedFiles } from "../contained-files.ts";
import {
  FileError,
  type FileStat,
  HandError,
  type HandMounts,
  type MountSpec,
  type WalkEntry,
  type WalkOptions,
} from "../driver.ts";
import type { HandFiles } from "../forwarded-files.ts";
import { MNT, mountFiles, mountRoots, prepareMounts } from "../mounted-dirs.ts";
import { mountsVolumeOf, uidOf } from "./container-plan.ts";
import type { Engine } from "./engine.ts";
import { mountpointOf } from "./workspace-volumes.ts";

/** Of a hand's container, which came with the volume. Undefined where the engine's files are out of reach and all are optional; else rejects then with HandError where the engine's files are out of reach. */
export async function openMountsVolume(
  engine: Engine,
  unit: string,
  mounts: readonly MountSpec[],
): Promise<MountedVolume | undefined> {
  const dir = mountpointOf(await engine.rootDir(), mountsVolumeOf(unit));
  const uid = uidOf(unit);
  try {
    const made = await prepareMounts(dir, mounts, uid);
    return { dir, mounts, uid, made };
  } catch (error) {
    if (mounts.every(({ optional }) => optional === true)) return undefined;
    throw new HandError(
      `memory stores, files and the session's log need a hand agent that reaches the files of its engine: ${messageOf(error)}`,
    );
  }
}

export interface MountedVolume {
  readonly dir: string;
  readonly mounts: readonly MountSpec[];
  readonly uid: number;
  readonly made: readonly string[];
}

export function mountsOf({ dir, mounts, uid, made }: MountedVolume): HandMounts {
  const files = mountFiles(dir, mounts, { uid, gid: uid });
  return { files, areKept: true, made, seenAt: (path) => path };
}

/** The hand's files, those of mounts by the agent itself. */
export class FilesWithMounts implements HandFiles {
  private readonly inside: HandFiles;
  private readonly mounted: HandFiles;

  constructor(inside: HandFiles, { dir, mounts, uid }: MountedVolume) {
    this.inside = inside;
    this.mounted = new ContainedFiles({ roots: mountRoots(dir, mounts), owner: { uid, gid: uid } });
  }

  stat(path: string): Promise<FileStat> {
    return this.of(path).stat(path);
  }
  readFile(path: string, options?: { offset?: number; signal?: AbortSignal }): AsyncIterable<Uint8Array> {
    return this.of(path).readFile(path, options);
  }
  writeFile(
    path: string,
    content: Uint8Array | AsyncIterable<Uint8Array>,
    options?: { mode?: number; signal?: AbortSignal },
  ): Promise<{ bytes: number }> {
    return this.of(path).writeFile(path, content, options);
  }
  mkdir(path: string): Promise<void> {
    return this.of(path).mkdir(path);
  }
  async rename(from: string, to: string): Promise<void> {
    if (this.of(from) !== this.of(to)) throw new FileError("failed", to, "it is on another volume");
    await this.of(from).rename(from, to);
  }
  remove(path: string): Promise<void> {
    return this.of(path).remove(path);
  }
  readLink(path: string): Promise<string> {
    return this.of(path).readLink(path);
  }
  makeLink(path: string, target: string): Promise<void> {
    return this.of(path).makeLink(path, target);
  }
  setMode(path: string, mode: number): Promise<void> {
    return this.of(path).setMode(path, mode);
  }
  walk(path: string, options?: WalkOptions): AsyncIterable<WalkEntry> {
    return this.of(path).walk(path, options);
  }

  private of(path: string): HandFiles {
    return path === MNT || path.startsWith(`${MNT}/`) ? this.mounted : this.inside;
  }
}

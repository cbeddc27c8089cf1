/** A unit's volumes: where the files of a hand live, whatever becomes of its containers. */
import { chown, mkdir } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "../../../kit/errors.ts";
import { HandError } from "../driver.ts";
import {
  type ContainerRecipe,
  DEFAULT_WORKDIR,
  HAND_DIR,
  mountsVolumeOf,
  OUTPUTS_DIR,
  uidOf,
  volumesOf,
} from "./container-plan.ts";
import { tarOfDirectories } from "./directory-tar.ts";
import type { Engine } from "./engine.ts";

/** What could not be owned from here, and is put there through a container. */
export interface UnmadeDirectories {
  readonly target: string;
  readonly tar: Buffer;
}

const DIR_MODE = 0o700;

/** Where an engine on this machine keeps the files of a volume of its own driver. */
export function mountpointOf(engineDir: string, name: string): string {
  return join(engineDir, "volumes", name, "_data");
}

/**
 * Makes the directories that the hand owns in new volumes, which came with their container. Where the engine's files are
 * out of reach (another machine, an agent without root), gives what is left to do, or rejects with HandError.
 */
export async function makeDirectories(
  engineDir: string,
  unit: string,
  workdir: string,
): Promise<UnmadeDirectories[]> {
  const uid = uidOf(unit);
  const unmade: UnmadeDirectories[] = [];
  for (const { name, target } of volumesOf(unit, workdir)) {
    const dirs = directoriesOf(target, workdir);
    if (await makeHere(mountpointOf(engineDir, name), dirs, uid)) continue;
    // An archive gives owners to what lies in a volume, not to its root.
    if (target !== HAND_DIR) {
      throw new HandError(
        `container.workdir must lie below ${HAND_DIR} here: this hand agent cannot reach the files of its engine`,
      );
    }
    unmade.push({ target, tar: tarOfDirectories(dirs, { uid, mode: DIR_MODE }) });
  }
  return unmade;
}

/** Whether all of the unit's volumes are there. */
export async function haveVolumes(
  engine: Engine,
  unit: string,
  recipe: Pick<ContainerRecipe, "workdir" | "mounts">,
): Promise<boolean> {
  for (const name of namesOf(unit, recipe)) {
    const found = await engine.find("look at the volume", (docker) => docker.getVolume(name).inspect());
    if (found === undefined) return false;
  }
  return true;
}

export async function removeVolumes(
  engine: Engine,
  unit: string,
  recipe: Pick<ContainerRecipe, "workdir" | "mounts">,
): Promise<void> {
  for (const name of namesOf(unit, recipe)) {
    await engine.find("remove the volume", (docker) => docker.getVolume(name).remove({ force: true }));
  }
}

function namesOf(unit: string, { workdir, mounts }: Pick<ContainerRecipe, "workdir" | "mounts">): string[] {
  const names = volumesOf(unit, workdir).map(({ name }) => name);
  return mounts === undefined ? names : [...names, mountsVolumeOf(unit)];
}

/** Relative to the volume; "." is its root, which the hand owns only where that is its working directory. */
function directoriesOf(target: string, workdir: string): string[] {
  if (target !== HAND_DIR) return ["."];
  const dirs = [DEFAULT_WORKDIR, OUTPUTS_DIR].map((path) => path.slice(HAND_DIR.length + 1));
  const below = workdir.startsWith(`${HAND_DIR}/`) ? workdir.slice(HAND_DIR.length + 1).split("/") : [];
  for (const [i] of below.entries()) dirs.push(below.slice(0, i + 1).join("/"));
  return [...new Set(dirs)];
}

/** The volume is new and its name is random: what lies here under that name is this engine's. */
async function makeHere(mountpoint: string, dirs: readonly string[], uid: number): Promise<boolean> {
  try {
    for (const dir of dirs) {
      const path = join(mountpoint, dir);
      if (dir !== ".") await mkdir(path, { mode: DIR_MODE });
      await chown(path, uid, uid);
    }
    return true;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "EACCES" || code === "EPERM" || code === "EEXIST") return false;
    throw new HandError(`could not make the hand's directories: ${messageOf(error)}`);
  }
}

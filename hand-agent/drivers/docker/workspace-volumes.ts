/** A unit's volumes: where the files of a hand live, whatever becomes of its containers. */
import { chown, mkdir } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "../../../kit/errors.ts";
import { HandError } from "../driver.ts";
import { DEFAULT_WORKDIR, HAND_DIR, OUTPUTS_DIR, uidOf, volumesOf } from "./container-plan.ts";
import { tarOfDirectories } from "./directory-tar.ts";
import type { Engine } from "./engine.ts";

/** What could not be owned from here, and is put there through a container. */
export interface UnmadeDirectories {
  readonly target: string;
  readonly tar: Buffer;
}

const DIR_MODE = 0o700;

/** Makes them with the directories that the hand owns; where the engine's files are out of reach, gives what is left to do. */
export async function makeVolumes(
  engine: Engine,
  unit: string,
  workdir: string,
  labels: Readonly<Record<string, string>>,
): Promise<UnmadeDirectories[]> {
  const uid = uidOf(unit);
  const unmade: UnmadeDirectories[] = [];
  for (const { name, target } of volumesOf(unit, workdir)) {
    const { Mountpoint: at } = await engine.ask("make a volume", async (docker) => {
      await docker.createVolume({ Name: name, Labels: { ...labels } });
      return docker.getVolume(name).inspect();
    });
    const dirs = directoriesOf(target, workdir);
    if (!(await makeHere(at, dirs, uid)))
      unmade.push({ target, tar: tarOfDirectories(dirs, { uid, mode: DIR_MODE }) });
  }
  return unmade;
}

/** Whether all of the unit's volumes are there. */
export async function haveVolumes(engine: Engine, unit: string, workdir: string): Promise<boolean> {
  for (const { name } of volumesOf(unit, workdir)) {
    const found = await engine.find("look at the volume", (docker) => docker.getVolume(name).inspect());
    if (found === undefined) return false;
  }
  return true;
}

export async function removeVolumes(engine: Engine, unit: string, workdir: string): Promise<void> {
  for (const { name } of volumesOf(unit, workdir)) {
    await engine.find("remove the volume", (docker) => docker.getVolume(name).remove({ force: true }));
  }
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

/**
 * A folder of the machine for the files of hands that have a uid of their own and cannot pass the way to the data
 * directory, e.g. below a home with mode 0700. Layout: `<root>/<hash of the data directory>/<handId>/`. All of it is
 * root's, so no other user can put anything in its place, and hands may pass it but not list it. Which hands live here
 * is written in the data directory (hand-dirs.ts); what is empty is removed with its last hand.
 */
import { createHash } from "node:crypto";
import { chmod, lstat, mkdir, realpath, rmdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { HandError } from "../driver.ts";

/** The first that every user can reach is taken. */
export const SYSTEM_ROOTS: readonly string[] = [
  "/var/lib/tendon-hands",
  join(tmpdir(), "tendon-hands"),
  "/tmp/tendon-hands",
];

/** Another hand's removal may take an empty folder away between two steps. */
const MAX_ATTEMPTS = 10;
const PASS_ONLY = 0o711;

/** Where this hand's files could be, best first; nothing is made. */
export async function systemPlaces(
  roots: readonly string[],
  dataDir: string,
  handId: string,
): Promise<string[]> {
  const name = createHash("sha256").update(resolve(dataDir)).digest("hex").slice(0, 16);
  const places: string[] = [];
  for (const root of roots) {
    // Real, because the same path must lead there inside the hand.
    const parent = await realpath(dirname(root)).catch(() => undefined);
    if (parent === undefined) continue;
    const place = join(parent, root.slice(dirname(root).length), name, handId);
    if (!places.includes(place)) places.push(place);
  }
  return places;
}

/** The root of a place, e.g. /var/lib/tendon-hands. */
export function systemRootOf(place: string): string {
  return dirname(dirname(place));
}

/** Makes the hand's folder and what is missing above it. Throws HandError where that is impossible or not safe. */
export async function makePlace(place: string): Promise<void> {
  const root = systemRootOf(place);
  await checkWay(dirname(root));
  for (let attempt = 1; ; attempt++) {
    try {
      for (const dir of [root, dirname(place), place]) await makeOurs(dir);
      return;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== "ENOENT" || attempt === MAX_ATTEMPTS) {
        await tidyAbove(place);
        throw error instanceof HandError ? error : new HandError(`cannot make ${place}: ${code}`);
      }
    }
  }
}

/** Before the files of a hand are used again or removed: false when they are gone. Throws HandError where they are not ours. */
export async function checkPlace(place: string): Promise<boolean> {
  try {
    await checkWay(dirname(systemRootOf(place)));
    for (const dir of [systemRootOf(place), dirname(place), place]) await checkOurs(dir);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return false;
    throw error;
  }
}

/** After the hand's own folder is gone: takes away what is empty above it. */
export async function tidyAbove(place: string): Promise<void> {
  for (const dir of [dirname(place), systemRootOf(place)]) {
    await checkOurs(dir)
      .then(() => rmdir(dir))
      .catch(() => {}); // other hands live here, it is gone, or it is somebody else's
  }
}

async function makeOurs(dir: string): Promise<void> {
  try {
    await mkdir(dir, { mode: 0o700 });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
  }
  await checkOurs(dir);
  await chmod(dir, PASS_ONLY); // mkdir's mode depends on the umask
}

async function checkOurs(dir: string): Promise<void> {
  const stat = await lstat(dir);
  if (stat.isDirectory() && stat.uid === process.getuid?.() && (stat.mode & 0o022) === 0) return;
  throw new HandError(`${dir} is not a folder that only the hand agent's user can change; remove it`);
}

/** Every folder on the way must let all users pass, and none of them replace what lies in it. */
async function checkWay(dir: string): Promise<void> {
  for (let at = dir; ; at = dirname(at)) {
    const { uid, mode } = await lstat(at);
    const isSticky = (mode & 0o1000) !== 0;
    if ((mode & 0o001) === 0) throw new HandError(`other users cannot pass ${at}`);
    if (uid !== 0 || ((mode & 0o022) !== 0 && !isSticky))
      throw new HandError(`other users can replace what lies in ${at}`);
    if (at === dirname(at)) return;
  }
}

import type { HandMounts } from "../drivers/driver.ts";

/**
 * Directories on the way to a file are made for the agent alone. Where the file is the agent's, as what a hand may only
 * read is, the hand's processes are to find it all the same. `top` is there and can be passed already.
 */
export async function makeWayPassable(files: HandMounts["files"], top: string, path: string): Promise<void> {
  for (let at = path.lastIndexOf("/"); at > top.length; at = path.lastIndexOf("/", at - 1))
    await files.setMode(path.slice(0, at), 0o755);
}

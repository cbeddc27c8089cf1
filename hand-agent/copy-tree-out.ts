/** Packs a directory of a hand, or one file, into an archive while it is read. */
import { posix } from "node:path";
import type { TarEntry } from "../kit/tar/tar-entry.ts";
import { TAR_END, tarHeader, tarPadding } from "../kit/tar/write-tar.ts";
import { FileError, type FileStat, type Hand } from "./drivers/driver.ts";

const MAX_DEPTH = 256;

/** Devices, sockets and pipes are left out, and so is what goes away meanwhile. */
export async function* packTree(hand: Hand, path: string, signal: AbortSignal): AsyncGenerator<Uint8Array> {
  const top = await hand.stat(path);
  if (top.type === "other") throw new FileError("not_a_file", path, "is no file and no directory");
  if (top.type === "file") {
    yield* packFile(hand, path, posix.basename(top.path), top, signal);
    yield TAR_END;
    return;
  }
  yield tarHeader(entryOf(".", "directory", top));
  for await (const { path: at, type } of hand.walk(path, { maxDepth: MAX_DEPTH, signal })) {
    const name = at.slice(top.path.length + 1);
    if (type === "symlink") yield* packLink(hand, at, name);
    else if (type === "directory" || type === "file") {
      const stat = await ifThere(hand.stat(at));
      // A link in its place by now is not followed: it would bring what was not asked for.
      if (stat === undefined || stat.type !== type || stat.path !== at) continue;
      if (type === "directory") yield tarHeader(entryOf(name, "directory", stat));
      else yield* packFile(hand, at, name, stat, signal);
    }
  }
  yield TAR_END;
}

/** A file that grows meanwhile is cut where it ended; one that shrinks is an error, as its length was said already. */
async function* packFile(
  hand: Hand,
  path: string,
  name: string,
  stat: FileStat,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array> {
  yield tarHeader({ ...entryOf(name, "file", stat), size: stat.size });
  let left = stat.size;
  if (left > 0) {
    for await (const chunk of hand.readFile(path, { signal })) {
      const piece = chunk.subarray(0, left);
      left -= piece.length;
      yield piece;
      if (left === 0) break;
    }
  }
  if (left > 0) throw new FileError("failed", path, "became shorter while it was copied; copy it again");
  yield tarPadding(stat.size);
}

async function* packLink(hand: Hand, path: string, name: string): AsyncGenerator<Uint8Array> {
  if (hand.readLink === undefined) return;
  const linkTarget = await ifThere(hand.readLink(path));
  if (linkTarget === undefined) return;
  yield tarHeader({ name, type: "symlink", size: 0, mode: 0o777, mtimeMs: 0, linkTarget });
}

function entryOf(name: string, type: TarEntry["type"], { mode, mtimeMs }: FileStat): TarEntry {
  return { name, type, size: 0, mode: mode & 0o777, mtimeMs, linkTarget: "" };
}

async function ifThere<T>(found: Promise<T>): Promise<T | undefined> {
  try {
    return await found;
  } catch (error) {
    if (error instanceof FileError && error.code === "not_found") return undefined;
    throw error;
  }
}

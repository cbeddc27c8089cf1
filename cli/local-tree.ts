/** Folders of this machine as archives and back. What comes from a hand is not trusted: nothing of it leads out of its folder. */
import { createWriteStream } from "node:fs";
import { chmod, lstat, mkdir, mkdtemp, open, readdir, readlink, rename, rm, symlink } from "node:fs/promises";
import { basename, dirname, join, resolve, sep } from "node:path";
import { pipeline } from "node:stream/promises";
import { readTar } from "../kit/tar/read-tar.ts";
import { partsOfTarName, TarError, told } from "../kit/tar/tar-entry.ts";
import { TAR_END, tarHeader, tarPadding } from "../kit/tar/write-tar.ts";

const CHUNK_BYTES = 256 * 1024;

/** Files, directories and links below `path`, which stands in the archive as "."; sockets and devices are left out. */
export async function* packFolder(path: string): AsyncGenerator<Uint8Array> {
  yield* packEntry(path, ".");
  yield TAR_END;
}

async function* packEntry(path: string, name: string): AsyncGenerator<Uint8Array> {
  const stat = await lstat(path);
  const facts = { name, size: 0, mode: stat.mode & 0o777, mtimeMs: stat.mtimeMs, linkTarget: "" };
  if (stat.isSymbolicLink()) {
    yield tarHeader({ ...facts, type: "symlink", linkTarget: await readlink(path) });
  } else if (stat.isDirectory()) {
    yield tarHeader({ ...facts, type: "directory" });
    for (const child of (await readdir(path)).sort()) {
      yield* packEntry(join(path, child), name === "." ? child : `${name}/${child}`);
    }
  } else if (stat.isFile()) {
    yield tarHeader({ ...facts, type: "file", size: stat.size });
    let left = stat.size;
    for await (const chunk of fileChunks(path)) {
      const piece = chunk.subarray(0, left);
      left -= piece.length;
      yield piece;
    }
    if (left > 0) throw new Error(`${path} became shorter while it was read`);
    yield tarPadding(stat.size);
  }
}

export async function* fileChunks(path: string): AsyncGenerator<Uint8Array> {
  const file = await open(path, "r");
  try {
    for (;;) {
      const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(CHUNK_BYTES), 0, CHUNK_BYTES, null);
      if (bytesRead === 0) return;
      yield buffer.subarray(0, bytesRead);
    }
  } finally {
    await file.close();
  }
}

/**
 * Unpacks what CopyOut gives beside `target` and puts it into place once all of it has come: a tree, or a single file.
 * What is there already is refused before a byte is asked for (`assertFree`). Gives what it was. Links that lead out of
 * the tree are not made; `onLeftOut` hears of each.
 */
export async function unpackTo(
  target: string,
  bytes: AsyncIterable<Uint8Array>,
  onLeftOut: (why: string) => void,
): Promise<"file" | "directory"> {
  const folder = dirname(resolve(target));
  await mkdir(folder, { recursive: true });
  const staging = await mkdtemp(join(folder, `.${basename(target)}-`));
  try {
    const content = join(staging, "content");
    let kind: "file" | "directory" = "file";
    const links: [path: string, target: string][] = [];
    const modes: [path: string, mode: number][] = [];
    for await (const { entry, content: file } of readTar(bytes)) {
      const parts = partsOfTarName(entry.name);
      if (parts.length === 0) {
        kind = "directory";
        await mkdir(content);
        modes.push([content, entry.mode]);
        continue;
      }
      const at = kind === "file" ? content : join(content, ...parts);
      if (entry.type === "directory") {
        await mkdir(at, { recursive: true });
        modes.push([at, entry.mode]);
      } else if (entry.type === "symlink") links.push([at, entry.linkTarget]);
      else if (entry.type === "file") {
        await pipeline(file, createWriteStream(at, { flags: "wx", mode: entry.mode | 0o200 }));
        await chmod(at, entry.mode);
      } else throw new TarError(`${told(entry.name)} is a hard link`);
    }
    // Last, so that nothing is ever written through one.
    for (const [at, linkTarget] of links) {
      const whyNot = outward(content, at, linkTarget);
      if (whyNot === undefined) await symlink(linkTarget, at);
      else if (kind === "directory") onLeftOut(whyNot);
      else throw new TarError(whyNot);
    }
    for (const [at, mode] of modes.reverse()) await chmod(at, mode);
    await rename(content, target);
    return kind;
  } finally {
    await rm(staging, { recursive: true, force: true });
  }
}

/** In words, when the link would lead out of the folder. */
function outward(root: string, at: string, target: string): string | undefined {
  const leadsTo = resolve(dirname(at), target);
  if (leadsTo === root || leadsTo.startsWith(root + sep)) return undefined;
  return `the link ${told(at.slice(root.length + 1))} leads out of the folder, to ${told(target)}`;
}

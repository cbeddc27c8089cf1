/**
 * Unpacks an archive into a directory of a hand. Everything is unpacked aside first, below the same root; only when all
 * of it has come is it put into place, so that a copy that breaks off has changed nothing. All of it goes through the
 * hand's own primitives: what they cannot reach, no archive can.
 */
import { join } from "node:path";
import type { Logger } from "../kit/log.ts";
import { readTar, type TarItem } from "../kit/tar/read-tar.ts";
import { partsOfTarName, TarError, told } from "../kit/tar/tar-entry.ts";
import { FileError, type Hand, type WalkEntry } from "./drivers/driver.ts";

const STAGING_PREFIX = ".tendon-copy-";
/** Beyond them an archive is refused: the agent remembers its links. */
const MAX_LINKS = 100_000;
const MAX_DEPTH = 256;

export interface TreeCopy {
  readonly hand: Hand;
  /** Absolute path of the directory that the archive is unpacked into. */
  readonly path: string;
  /** Of this copy alone; letters, digits, `_` and `-`. */
  readonly id: string;
  /** Ids of copies that run now. */
  readonly running: ReadonlySet<string>;
  readonly signal: AbortSignal;
  readonly log: Logger;
}

/** `arrived` resolves when all bytes have come whole, or rejects; nothing is put into place before. */
export async function copyTreeIn(
  copy: TreeCopy,
  bytes: AsyncIterable<Uint8Array>,
  arrived: () => void,
): Promise<void> {
  const { hand, path, id } = copy;
  const root = hand.roots.find((each) => path === each || path.startsWith(`${each}/`));
  if (root === undefined)
    throw new FileError("outside", path, "the path leads outside the hand's directories");
  await assertDirectoryOrNothing(hand, path);
  await removeLeftovers(copy, root);
  const staging = join(root, `${STAGING_PREFIX}${id}`);
  await hand.mkdir(staging);
  try {
    await new Unpacking(copy, staging).run(bytes);
    arrived();
    await checkPlaces(copy, staging);
    await putIntoPlace(copy, staging);
  } catch (error) {
    throw inCallersWords(error, staging, path);
  } finally {
    await removeTree(copy, staging);
  }
}

/** Who asked for the copy knows nothing of where it was unpacked first. */
function inCallersWords(error: unknown, staging: string, path: string): unknown {
  if (!(error instanceof FileError) || !error.path.startsWith(staging)) return error;
  const { code, message, cause } = error;
  return new FileError(code, join(path, error.path.slice(staging.length)), message, { cause });
}

class Unpacking {
  private readonly copy: TreeCopy;
  private readonly staging: string;
  private readonly links = new Set<string>();

  constructor(copy: TreeCopy, staging: string) {
    this.copy = copy;
    this.staging = staging;
  }

  async run(bytes: AsyncIterable<Uint8Array>): Promise<void> {
    for await (const item of readTar(bytes)) {
      this.copy.signal.throwIfAborted();
      const parts = partsOfTarName(item.entry.name);
      if (parts.length > MAX_DEPTH) throw new TarError(`${told(item.entry.name)} is too deep`);
      // Writing through a link of the archive would reach places that the copy was not asked for.
      for (let depth = 1; depth < parts.length; depth += 1) {
        if (this.links.has(parts.slice(0, depth).join("/")))
          throw new TarError(`${told(item.entry.name)} lies behind a symbolic link of the archive`);
      }
      await this.unpack(item, parts.join("/"));
    }
  }

  private async unpack({ entry, content }: TarItem, name: string): Promise<void> {
    const { hand, signal } = this.copy;
    const at = join(this.staging, name);
    if (this.links.delete(name)) await hand.remove(at);
    switch (entry.type) {
      case "directory":
        await hand.mkdir(at);
        // What is unpacked into it later has to get in.
        await hand.setMode?.(at, entry.mode | 0o700);
        return;
      case "file":
        if (name === "") throw new TarError("the archive's directory is a file");
        await hand.writeFile(at, content, { mode: entry.mode, signal });
        return;
      case "symlink":
        if (hand.makeLink === undefined)
          throw new TarError(`${told(name)}: this hand's driver makes no links`);
        if (name === "" || entry.linkTarget === "" || entry.linkTarget.includes("\0"))
          throw new TarError(`the link ${told(name)} cannot be made`);
        if (this.links.size >= MAX_LINKS) throw new TarError(`the archive has more than ${MAX_LINKS} links`);
        await hand.remove(at);
        await hand.makeLink(at, entry.linkTarget);
        this.links.add(name);
        return;
      case "hardlink": {
        const source = join(this.staging, partsOfTarName(entry.linkTarget).join("/"));
        const { mode } = await hand.stat(source).catch((error) => {
          throw new TarError(`${told(name)} is the same as ${told(entry.linkTarget)}, which has not come`, {
            cause: error,
          });
        });
        await hand.writeFile(at, hand.readFile(source, { signal }), { mode, signal });
      }
    }
  }
}

/** What cannot be put into place is found before anything is. */
async function checkPlaces({ hand, path, signal }: TreeCopy, staging: string): Promise<void> {
  for await (const entry of hand.walk(staging, { maxDepth: MAX_DEPTH, signal })) {
    const place = placeOf(entry, staging, path);
    if (entry.type === "directory") await assertDirectoryOrNothing(hand, place);
    else await assertNoDirectory(hand, place, entry.type === "symlink");
  }
}

async function putIntoPlace({ hand, path, signal }: TreeCopy, staging: string): Promise<void> {
  await hand.mkdir(path);
  for await (const entry of hand.walk(staging, { maxDepth: MAX_DEPTH, signal })) {
    const place = placeOf(entry, staging, path);
    if (entry.type === "directory") {
      await hand.mkdir(place);
      await hand.setMode?.(place, (await hand.stat(entry.path)).mode);
    } else await hand.rename(entry.path, place);
  }
}

function placeOf(entry: WalkEntry, staging: string, path: string): string {
  return join(path, entry.path.slice(staging.length + 1));
}

async function assertDirectoryOrNothing(hand: Hand, path: string): Promise<void> {
  const stat = await statOrNothing(hand, path);
  if (stat !== undefined && stat.type !== "directory")
    throw new FileError("not_a_directory", path, "is there and is no directory");
}

async function assertNoDirectory(hand: Hand, path: string, isLink: boolean): Promise<void> {
  // What a link leads to is not replaced, the link is; where it leads does not matter.
  const stat = await statOrNothing(hand, path).catch((error) => {
    if (error instanceof FileError && error.code === "outside") return undefined;
    throw error;
  });
  if (stat?.type !== "directory" || (await isLinkAt(hand, path))) return;
  throw new FileError(
    "is_a_directory",
    path,
    `is a directory, and ${isLink ? "a link" : "a file"} in the archive`,
  );
}

async function isLinkAt(hand: Hand, path: string): Promise<boolean> {
  return (
    hand.readLink?.(path).then(
      () => true,
      () => false,
    ) ?? false
  );
}

async function statOrNothing(hand: Hand, path: string) {
  return hand.stat(path).catch((error) => {
    if (error instanceof FileError && error.code === "not_found") return undefined;
    throw error;
  });
}

/** Of copies that an agent was killed in. */
async function removeLeftovers(copy: TreeCopy, root: string): Promise<void> {
  for await (const { path, type } of copy.hand.walk(root, { maxDepth: 1, signal: copy.signal })) {
    const name = path.slice(root.length + 1);
    if (type !== "directory" || !name.startsWith(STAGING_PREFIX)) continue;
    if (!copy.running.has(name.slice(STAGING_PREFIX.length))) await removeTree(copy, path);
  }
}

/** By a process of the hand: it may remove what is its own, and nothing else. */
async function removeTree({ hand, log }: TreeCopy, path: string): Promise<void> {
  try {
    const child = await hand.exec({ argv: ["rm", "-rf", "--", path] });
    child.stdout.abandon();
    child.stderr.abandon();
    const { code } = await child.exit;
    if (code !== 0) log.warn({ hand: hand.id, code }, "what a copy had unpacked could not be removed");
  } catch (error) {
    log.warn({ hand: hand.id, err: error }, "what a copy had unpacked could not be removed");
  }
}

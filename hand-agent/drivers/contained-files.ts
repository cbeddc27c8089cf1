/** File primitives that the agent does itself, on directories of its machine: contained by `locate`, owned by the hand's uid. */
import { randomBytes } from "node:crypto";
import { constants } from "node:fs";
import {
  type FileHandle,
  lchown,
  lstat,
  mkdir,
  open,
  readdir,
  readlink,
  rename,
  rmdir,
  symlink,
  unlink,
} from "node:fs/promises";
import { join } from "node:path";
import {
  asFileError,
  Dir,
  type LocateOptions,
  locate,
  type Place,
  type Root,
  readOnly,
} from "./contained-path.ts";
import { FileError, type FileStat, type WalkEntry, type WalkOptions } from "./driver.ts";

const CHUNK_BYTES = 64 * 1024;
const DEFAULT_MAX_DEPTH = 40;

export interface ContainedFilesOptions {
  readonly roots: readonly Root[];
  /** Who owns what is made here; undefined: the agent itself. */
  readonly owner: { readonly uid: number; readonly gid: number } | undefined;
}

export class ContainedFiles {
  private readonly options: ContainedFilesOptions;

  constructor(options: ContainedFilesOptions) {
    this.options = options;
  }

  stat(path: string): Promise<FileStat> {
    return this.at(path, {}, async ({ dir, name, path: real }) => {
      const stat = await lstat(dir.entry(name));
      // A link here was put in place after the path had been resolved.
      if (stat.isSymbolicLink()) throw new FileError("not_found", path, "changed meanwhile");
      return {
        path: real,
        type: stat.isFile() ? "file" : stat.isDirectory() ? "directory" : "other",
        size: stat.size,
        mtimeMs: stat.mtimeMs,
        mode: stat.mode & 0o7777,
      };
    });
  }

  async *readFile(
    path: string,
    { offset = 0, signal }: { offset?: number; signal?: AbortSignal } = {},
  ): AsyncGenerator<Uint8Array> {
    const handle = await this.at(path, {}, ({ dir, name }) => openRegular(dir.entry(name), path));
    try {
      for (let position = offset; ; ) {
        signal?.throwIfAborted();
        const { bytesRead, buffer } = await handle.read(
          Buffer.allocUnsafe(CHUNK_BYTES),
          0,
          CHUNK_BYTES,
          position,
        );
        if (bytesRead === 0) return;
        position += bytesRead;
        yield buffer.subarray(0, bytesRead);
      }
    } catch (error) {
      throw asFileError(error, path);
    } finally {
      await handle.close();
    }
  }

  writeFile(
    path: string,
    content: Uint8Array | AsyncIterable<Uint8Array>,
    { mode = 0o600, signal }: { mode?: number; signal?: AbortSignal } = {},
  ): Promise<{ bytes: number }> {
    return this.change(path, { makeParents: (created) => this.own(created) }, async ({ dir, name }) => {
      const finalMode = (await modeToKeep(dir.entry(name), path)) ?? mode;
      const temporary = dir.entry(`.tendon-${randomBytes(8).toString("hex")}.tmp`);
      const handle = await open(temporary, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, 0o600);
      try {
        const bytes = await writeAll(handle, content, signal);
        if (this.options.owner) await handle.chown(this.options.owner.uid, this.options.owner.gid);
        await handle.chmod(finalMode & 0o777);
        await handle.close();
        await rename(temporary, dir.entry(name));
        return { bytes };
      } catch (error) {
        await handle.close().catch(() => {});
        await unlink(temporary).catch(() => {});
        throw error;
      }
    });
  }

  mkdir(path: string): Promise<void> {
    return this.change(path, { makeParents: (created) => this.own(created) }, async ({ dir, name }) => {
      if (name === ".") return;
      try {
        await mkdir(dir.entry(name), { mode: 0o700 });
      } catch (error) {
        const isThere = (error as NodeJS.ErrnoException).code === "EEXIST";
        if (isThere && (await lstat(dir.entry(name))).isDirectory()) return;
        throw isThere ? new FileError("not_a_directory", path, "not a directory") : error;
      }
      await this.own(dir.entry(name));
    });
  }

  rename(from: string, to: string): Promise<void> {
    return this.change(from, { keepLastLink: true }, (source) =>
      this.change(to, { keepLastLink: true }, (target) =>
        rename(source.dir.entry(source.name), target.dir.entry(target.name)),
      ),
    );
  }

  remove(path: string): Promise<void> {
    return this.change(path, { keepLastLink: true }, async ({ dir, name }) => {
      try {
        await unlink(dir.entry(name));
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
      }
    });
  }

  /** Removes a directory if nothing is in it. False when there is no such directory, something in it, or it is a root. */
  removeEmpty(path: string): Promise<boolean> {
    return this.change(path, { keepLastLink: true }, async ({ dir, name }) => {
      try {
        await rmdir(dir.entry(name));
        return true;
      } catch (error) {
        const { code = "" } = error as NodeJS.ErrnoException;
        if (["ENOENT", "ENOTEMPTY", "EEXIST", "ENOTDIR", "EBUSY", "EINVAL"].includes(code)) return false;
        throw error;
      }
    });
  }

  /** Has the file, made if missing, end with these bytes from `offset` on; programs that have it open see it. */
  writeFrom(path: string, offset: number, bytes: Uint8Array, mode: number): Promise<void> {
    return this.change(path, { makeParents: (created) => this.own(created) }, async ({ dir, name }) => {
      const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_NOFOLLOW | constants.O_NONBLOCK;
      const handle = await open(dir.entry(name), flags, mode);
      try {
        await handle.truncate(offset);
        for (let done = 0; done < bytes.byteLength; ) {
          const { bytesWritten } = await handle.write(bytes, done, bytes.byteLength - done, offset + done);
          done += bytesWritten;
        }
      } finally {
        await handle.close();
      }
    });
  }

  readLink(path: string): Promise<string> {
    return this.at(path, { keepLastLink: true }, async ({ dir, name }) => {
      try {
        return await readlink(dir.entry(name));
      } catch (error) {
        const isNoLink = (error as NodeJS.ErrnoException).code === "EINVAL";
        throw isNoLink ? new FileError("not_found", path, "not a symbolic link") : error;
      }
    });
  }

  makeLink(path: string, target: string): Promise<void> {
    const makeParents = (created: string) => this.own(created);
    return this.change(path, { keepLastLink: true, makeParents }, async ({ dir, name }) => {
      await symlink(target, dir.entry(name));
      const { owner } = this.options;
      if (owner) await lchown(dir.entry(name), owner.uid, owner.gid);
    });
  }

  setMode(path: string, mode: number): Promise<void> {
    return this.change(path, {}, async ({ dir, name }) => {
      const handle = await open(
        dir.entry(name),
        constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK,
      );
      try {
        await handle.chmod(mode & 0o777);
      } finally {
        await handle.close();
      }
    });
  }

  async *walk(path: string, options: WalkOptions = {}): AsyncGenerator<WalkEntry> {
    const top = await this.at(path, {}, async ({ dir, name, path: real }) => Dir.open(dir.entry(name), real));
    yield* walkDir(top, 1, options);
  }

  private change<T>(path: string, options: LocateOptions, use: (place: Place) => Promise<T>): Promise<T> {
    return this.at(path, options, async (place) => {
      if (place.readOnly) throw readOnly(path);
      return use(place);
    });
  }

  private async at<T>(path: string, options: LocateOptions, use: (place: Place) => Promise<T>): Promise<T> {
    const place = await locate(this.options.roots, path, options);
    try {
      return await use(place);
    } catch (error) {
      throw asFileError(error, path);
    } finally {
      await place.dir.close();
    }
  }

  /** Gives what the agent has just made to the hand. By handle, so that nothing put in its place is given away. */
  private async own(at: string): Promise<void> {
    const { owner } = this.options;
    if (!owner) return;
    const handle = await open(at, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    try {
      await handle.chown(owner.uid, owner.gid);
    } finally {
      await handle.close();
    }
  }
}

async function* walkDir(dir: Dir, depth: number, options: WalkOptions): AsyncGenerator<WalkEntry> {
  try {
    const entries = await readdir(dir.entry("."), { withFileTypes: true }).catch(() => []);
    for (const entry of entries) {
      options.signal?.throwIfAborted();
      if (options.skip?.has(entry.name)) continue;
      const path = join(dir.path, entry.name);
      const isDirectory = entry.isDirectory();
      yield { path, type: typeOf(entry) };
      if (!isDirectory || depth >= (options.maxDepth ?? DEFAULT_MAX_DEPTH)) continue;
      const child = await Dir.open(dir.entry(entry.name), path).catch(() => undefined);
      if (child) yield* walkDir(child, depth + 1, options);
    }
  } finally {
    await dir.close();
  }
}

function typeOf(entry: {
  isFile(): boolean;
  isDirectory(): boolean;
  isSymbolicLink(): boolean;
}): WalkEntry["type"] {
  if (entry.isFile()) return "file";
  if (entry.isDirectory()) return "directory";
  return entry.isSymbolicLink() ? "symlink" : "other";
}

/** Opens without waiting (a named pipe would) and without following a link. */
async function openRegular(at: string, path: string): Promise<FileHandle> {
  const handle = await open(at, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOFOLLOW);
  const stat = await handle.stat();
  if (stat.isFile()) return handle;
  await handle.close();
  throw stat.isDirectory()
    ? new FileError("is_a_directory", path, "is a directory")
    : new FileError("not_a_file", path, "not a regular file");
}

async function modeToKeep(at: string, path: string): Promise<number | undefined> {
  try {
    const stat = await lstat(at);
    if (stat.isDirectory()) throw new FileError("is_a_directory", path, "is a directory");
    if (!stat.isFile()) throw new FileError("not_a_file", path, "not a regular file");
    return stat.mode;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

async function writeAll(
  handle: FileHandle,
  content: Uint8Array | AsyncIterable<Uint8Array>,
  signal: AbortSignal | undefined,
): Promise<number> {
  let bytes = 0;
  const chunks = content instanceof Uint8Array ? [content] : content;
  for await (const chunk of chunks) {
    signal?.throwIfAborted();
    for (let done = 0; done < chunk.byteLength; ) {
      const { bytesWritten } = await handle.write(chunk, done, chunk.byteLength - done, null);
      done += bytesWritten;
    }
    bytes += chunk.byteLength;
  }
  return bytes;
}

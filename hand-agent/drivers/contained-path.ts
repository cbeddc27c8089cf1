/**
 * Finds a file below the hand's roots without ever following a link out of them, also while a process of the hand
 * swaps directories for links. Every step opens one component of the path below an open directory and follows no link
 * by itself; links are read and walked by the same rules. On Linux `/proc/self/fd/N/name` is what openat(N, name) is
 * elsewhere; without /proc the steps go by path, which is as safe as a hand that has no isolation can be.
 */
import { constants } from "node:fs";
import { type FileHandle, lstat, mkdir, open, readlink } from "node:fs/promises";
import { isAbsolute, join, resolve, sep } from "node:path";
import { FileError, type FileErrorCode } from "./driver.ts";

const MAX_LINKS = 40;
// Not in node's constants, the same on all Linux architectures that Node runs on.
const O_PATH = 0o10000000;
const IS_LINUX = process.platform === "linux";

/** An open directory of the hand. */
export class Dir {
  readonly path: string;
  private readonly handle: FileHandle | undefined;

  private constructor(path: string, handle: FileHandle | undefined) {
    this.path = path;
    this.handle = handle;
  }

  /** `at` is where to open it, `path` its name in the hand. A link is refused with ENOTDIR or ELOOP. */
  static async open(at: string, path: string): Promise<Dir> {
    if (IS_LINUX) {
      return new Dir(path, await open(at, O_PATH | constants.O_DIRECTORY | constants.O_NOFOLLOW));
    }
    if (!(await lstat(at)).isDirectory())
      throw Object.assign(new Error("not a directory"), { code: "ENOTDIR" });
    return new Dir(path, undefined);
  }

  /** Where the agent reaches `name` in this directory. */
  entry(name: string): string {
    return this.handle ? `/proc/self/fd/${this.handle.fd}/${name}` : join(this.path, name);
  }

  async close(): Promise<void> {
    await this.handle?.close();
  }
}

/** A directory that paths may lead to. */
export interface Root {
  /** As it is named in the hand. */
  readonly path: string;
  /** Where the agent finds it. */
  readonly at: string;
  /** Nothing below it may be changed through the hand. */
  readonly readOnly?: boolean;
}

/** A name in an open directory: the end of a path, with all links before it resolved. Close it after use. */
export interface Place {
  readonly dir: Dir;
  /** "." for a root itself. */
  readonly name: string;
  readonly path: string;
  readonly readOnly: boolean;
}

export interface LocateOptions {
  /** Make missing directories on the way, owned by whom `own` makes it. */
  readonly makeParents?: (createdPath: string) => Promise<void>;
  /** Leave a link at the end alone instead of following it. */
  readonly keepLastLink?: boolean;
}

export async function locate(
  roots: readonly Root[],
  path: string,
  options: LocateOptions = {},
): Promise<Place> {
  const walk = new Walk(roots, path, options);
  try {
    return await walk.run();
  } catch (error) {
    throw asFileError(error, path);
  } finally {
    await walk.close();
  }
}

class Walk {
  private readonly roots: readonly Root[];
  private readonly asked: string;
  private readonly options: LocateOptions;
  private stack: Dir[] = [];
  private todo: string[] = [];
  private links = 0;
  private readOnly = false;

  constructor(roots: readonly Root[], asked: string, options: LocateOptions) {
    this.roots = roots;
    this.asked = asked;
    this.options = options;
  }

  async run(): Promise<Place> {
    await this.startAt(this.asked);
    for (;;) {
      const name = this.todo.shift();
      if (name === undefined) return this.keep(".");
      if (name === "..") await this.up();
      else if (await this.step(name)) return this.keep(name);
    }
  }

  async close(): Promise<void> {
    await Promise.all(this.stack.map((dir) => dir.close()));
  }

  private get top(): Dir {
    const dir = this.stack.at(-1);
    if (!dir) throw this.outside();
    return dir;
  }

  /** True when `name` is the end of the path. */
  private async step(name: string): Promise<boolean> {
    const dir = this.top;
    const isLast = this.todo.length === 0;
    if (isLast && this.options.keepLastLink) return true;
    const target = await linkTarget(dir.entry(name));
    if (target !== undefined) {
      await this.follow(target);
      return false;
    }
    if (isLast) return true;
    const path = join(dir.path, name);
    try {
      this.stack.push(await Dir.open(dir.entry(name), path));
    } catch (error) {
      if (codeOf(error) !== "ENOENT" || !this.options.makeParents) throw error;
      if (this.readOnly) throw readOnly(this.asked);
      await mkdir(dir.entry(name), { mode: 0o700 });
      await this.options.makeParents(dir.entry(name));
      this.stack.push(await Dir.open(dir.entry(name), path));
    }
    return false;
  }

  private async follow(target: string): Promise<void> {
    this.links += 1;
    if (this.links > MAX_LINKS) throw new FileError("too_many_links", this.asked, "too many symbolic links");
    const rest = this.todo;
    if (isAbsolute(target)) await this.startAt(target);
    else this.todo = components(target);
    this.todo.push(...rest);
  }

  private async startAt(path: string): Promise<void> {
    const absolute = resolve(path);
    // One root may lie in another: the innermost says what holds.
    const [root] = this.roots
      .filter(({ path }) => absolute === path || absolute.startsWith(path + sep))
      .sort((one, other) => other.path.length - one.path.length);
    if (root === undefined) throw this.outside();
    await this.close();
    this.stack = [await Dir.open(root.at, root.path)];
    this.readOnly = root.readOnly === true;
    this.todo = components(absolute.slice(root.path.length));
  }

  private async up(): Promise<void> {
    const dir = this.stack.pop();
    await dir?.close();
    if (this.stack.length === 0) throw this.outside();
  }

  /** Hands the directory over to the caller. */
  private keep(name: string): Place {
    const dir = this.top;
    this.stack.pop();
    const path = name === "." ? dir.path : join(dir.path, name);
    return { dir, name, path, readOnly: this.readOnly };
  }

  private outside(): FileError {
    return new FileError("outside", this.asked, "the path leads outside the hand's directories");
  }
}

export function readOnly(path: string): FileError {
  return new FileError("permission", path, "it is read-only");
}

function components(path: string): string[] {
  return path.split(sep).filter((part) => part !== "" && part !== ".");
}

async function linkTarget(at: string): Promise<string | undefined> {
  try {
    return await readlink(at);
  } catch (error) {
    const code = codeOf(error);
    if (code === "EINVAL" || code === "ENOENT") return undefined;
    throw error;
  }
}

function codeOf(error: unknown): string {
  return (error as NodeJS.ErrnoException)?.code ?? "";
}

const CODES: Readonly<Record<string, FileErrorCode>> = {
  ENOENT: "not_found",
  ENOTDIR: "not_a_directory",
  EISDIR: "is_a_directory",
  ENXIO: "not_a_file",
  EACCES: "permission",
  EPERM: "permission",
  EROFS: "permission",
  ELOOP: "too_many_links",
  ENOSPC: "no_space",
  EDQUOT: "no_space",
};

/** Any failure of the file system in the driver's words; the agent's own paths stay inside. */
export function asFileError(error: unknown, path: string): Error {
  if (error instanceof FileError) return error;
  if (error instanceof Error && error.name === "AbortError") return error;
  const code = codeOf(error);
  return new FileError(CODES[code] ?? "failed", path, code || "the file system refused", { cause: error });
}

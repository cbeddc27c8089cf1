/** The file primitives of a docker hand: done inside, by lanes, as the hand's own user. See `lane-script.ts`. */
import { randomBytes } from "node:crypto";
import { posix } from "node:path";
import { FileError, type FileErrorCode, type FileStat, type WalkEntry, type WalkOptions } from "../driver.ts";
import { ContainerPipe } from "./container-pipe.ts";
import { type Lane, laneLost } from "./lane.ts";
import type { LanePool } from "./lane-pool.ts";
import { CANCELLED_END, FILE_ENDS, quote } from "./lane-script.ts";

const CHUNK_BYTES = 64 * 1024;
const PART_BYTES = 256 * 1024;
const DEFAULT_MAX_DEPTH = 40;
const LEAST_END = 10;
const NOT_FOUND_END = 10;
/** In the words of hands that are processes. */
const OUTSIDE = "the path leads outside the hand's directories";
const TEXTS: Partial<Record<FileErrorCode, string>> = {
  not_found: "there is no such file or directory",
  outside: OUTSIDE,
  not_a_directory: "not a directory",
  is_a_directory: "is a directory",
  not_a_file: "not a regular file",
  permission: "permission denied",
  too_many_links: "too many symbolic links",
  no_space: "there is no space left",
};
const FILE_TYPES: Readonly<Record<number, FileStat["type"]>> = { 32768: "file", 16384: "directory" };
/** How often `find` was told to print a path says what it is. */
const WALK_TYPES = ["file", "directory", "symlink", "other"] as const;

export class ContainerFiles {
  private readonly pool: () => Promise<LanePool>;

  /** Gives the lanes of the container as it is now. */
  constructor(pool: () => Promise<LanePool>) {
    this.pool = pool;
  }

  async stat(path: string): Promise<FileStat> {
    const text = await this.operate(path, `do_stat ${quote(path)}`);
    const [facts = "", ...real] = text.split("\n");
    const [mode = "0", size, mtime] = facts.split(" ");
    const bits = Number.parseInt(mode, 16);
    if ((bits & 0xf000) === 0xa000) throw new FileError("not_found", path, "changed meanwhile");
    return {
      path: real.join("\n"),
      type: FILE_TYPES[bits & 0xf000] ?? "other",
      size: Number(size),
      mtimeMs: Number(mtime) * 1000,
      mode: bits & 0o7777,
    };
  }

  async *readFile(
    path: string,
    { offset = 0, signal }: { offset?: number; signal?: AbortSignal } = {},
  ): AsyncGenerator<Uint8Array> {
    check(path);
    for await (const chunk of this.stream(path, `do_read ${quote(path)} ${offset + 1}`, signal)) {
      for (let at = 0; at < chunk.length; at += CHUNK_BYTES) yield chunk.subarray(at, at + CHUNK_BYTES);
    }
  }

  async writeFile(
    path: string,
    content: Uint8Array | AsyncIterable<Uint8Array>,
    { mode = 0o600, signal }: { mode?: number; signal?: AbortSignal } = {},
  ): Promise<{ bytes: number }> {
    check(path);
    const pool = await this.pool();
    const lane = await pool.take();
    const temporary = `.tendon-${randomBytes(8).toString("hex")}.tmp`;
    const script = `do_write ${quote(path)} ${(mode & 0o777).toString(8)} ${temporary}`;
    const operation = new WriteOperation(lane, path, `( ${script} ); say z $?`);
    try {
      if (await operation.isReady) await operation.send(content, signal);
      const bytes = await operation.end();
      pool.giveBack(lane);
      return { bytes };
    } catch (error) {
      if (operation.isOver) pool.giveBack(lane);
      else pool.drop(lane);
      throw error;
    }
  }

  async mkdir(path: string): Promise<void> {
    await this.operate(path, `do_mkdir ${quote(trimmed(path))}`);
  }

  async rename(from: string, to: string): Promise<void> {
    check(to);
    await this.operate(from, `do_rename ${quote(trimmed(from))} ${quote(trimmed(to))}`);
  }

  async remove(path: string): Promise<void> {
    await this.operate(path, `do_remove ${quote(trimmed(path))}`);
  }

  async readLink(path: string): Promise<string> {
    const text = await this.operate(path, `do_readlink ${quote(trimmed(path))}`);
    return text.replace(/\n$/, "");
  }

  async makeLink(path: string, target: string): Promise<void> {
    check(path);
    if (target === "" || target.includes("\0")) throw new FileError("failed", path, "not a link's target");
    await this.operate(path, `do_link ${quote(trimmed(path))} ${quote(target)}`);
  }

  async setMode(path: string, mode: number): Promise<void> {
    await this.operate(path, `do_chmod ${quote(path)} ${(mode & 0o777).toString(8)}`);
  }

  async *walk(path: string, options: WalkOptions = {}): AsyncGenerator<WalkEntry> {
    check(path);
    const depth = `-maxdepth ${options.maxDepth ?? DEFAULT_MAX_DEPTH}`;
    const names = [...(options.skip ?? [])].map((name) => `-name ${quote(literal(name))}`).join(" -o ");
    const skip = names === "" ? "" : `\\( ${names} \\) -prune -o`;
    const script = `do_walk ${quote(path)} ${depth} ${skip}`;
    let top: string | undefined;
    let last = "";
    let times = 0;
    const entry = (): WalkEntry => ({
      path: posix.join(top ?? "/", last),
      type: WALK_TYPES[times - 1] ?? "other",
    });
    for await (const name of entriesOf(this.stream(path, script, options.signal))) {
      if (top === undefined) top = name;
      else if (name === last) times += 1;
      else {
        if (times > 0) yield entry();
        last = name;
        times = 1;
      }
    }
    if (times > 0) yield entry();
  }

  /** A short operation; the path is for its complaint. */
  private async operate(path: string, script: string): Promise<string> {
    check(path);
    const pool = await this.pool();
    const lane = await pool.take();
    try {
      const { code, text } = await lane.run(`( ${script} )`);
      pool.giveBack(lane);
      throwIfFailed(path, code, text);
      return text;
    } catch (error) {
      if (!(error instanceof FileError)) pool.drop(lane);
      throw error;
    }
  }

  /** An operation whose output, from its mark `d` on, is what is wanted. */
  private async *stream(
    path: string,
    script: string,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<Buffer> {
    signal?.throwIfAborted();
    const pool = await this.pool();
    const lane = await pool.take();
    const pipe = new ContainerPipe({
      path: "",
      onFull: () => lane.pause(),
      onDrained: () => lane.resume(),
      finish: async () => ({ held: false }),
    });
    let code: number | undefined;
    let isData = false;
    let complaint = "";
    const over = () => pipe.end();
    signal?.addEventListener("abort", over, { once: true });
    lane.use({
      onData: (output, chunk) => {
        if (output === "stderr") return;
        if (isData) pipe.push(chunk);
        else complaint += chunk.toString();
      },
      onMark: (_, _token, [word, value]) => {
        if (word === "d") isData = true;
        if (word !== "z") return;
        code = Number(value);
        over();
      },
      onEnd: over,
    });
    lane.line(`( ${script} ); say z $?`);
    try {
      for await (const chunk of pipe.chunks) {
        signal?.throwIfAborted();
        yield chunk as Buffer;
      }
      signal?.throwIfAborted();
      if (code === undefined) throw laneLost();
      // A shell's own status: what it was about to open had gone.
      throwIfFailed(path, code < LEAST_END && !isData ? NOT_FOUND_END : code, complaint);
    } finally {
      signal?.removeEventListener("abort", over);
      // A reader that wants no more leaves the lane in the middle of it.
      if (code === undefined) pool.drop(lane);
      else pool.giveBack(lane);
    }
  }
}

/** The sending side of one `do_write`. */
class WriteOperation {
  isOver = false;
  /** Whether parts are wanted; false when it has failed already. */
  readonly isReady: Promise<boolean>;
  private readonly lane: Lane;
  private readonly path: string;
  private readonly over: Promise<{ code: number; text: string }>;
  private bytes = 0;

  constructor(lane: Lane, path: string, script: string) {
    this.lane = lane;
    this.path = path;
    let ready: (isReady: boolean) => void = () => {};
    this.isReady = new Promise((resolve) => {
      ready = resolve;
    });
    let text = "";
    this.over = new Promise((resolve, reject) => {
      lane.use({
        onData: (output, chunk) => {
          if (output === "stdout") text = (text + chunk.toString()).slice(0, 1_000);
        },
        onMark: (_, _token, [word, code]) => {
          if (word === "w") ready(true);
          if (word !== "z") return;
          this.isOver = true;
          ready(false);
          resolve({ code: Number(code), text });
        },
        onEnd: () => {
          ready(false);
          reject(laneLost());
        },
      });
    });
    this.over.catch(() => {});
    lane.line(script);
  }

  /** Sends all of it, or says inside that it will not come. */
  async send(
    content: Uint8Array | AsyncIterable<Uint8Array>,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    try {
      for await (const part of partsOf(content)) {
        signal?.throwIfAborted();
        await this.lane.write(Buffer.concat([Buffer.from(`${part.byteLength}\n`), part]));
        this.bytes += part.byteLength;
      }
      signal?.throwIfAborted();
      await this.lane.write("0\n");
    } catch (error) {
      if (this.lane.isOpen) {
        await this.lane.write("-1\n");
        await this.over;
      }
      throw error;
    }
  }

  async end(): Promise<number> {
    const { code, text } = await this.over;
    throwIfFailed(this.path, code, text);
    return this.bytes;
  }
}

/** Each part costs a process inside, so small pieces are sent together. */
async function* partsOf(content: Uint8Array | AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let gathered: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of content instanceof Uint8Array ? [content] : content) {
    for (let at = 0; at < chunk.byteLength; ) {
      const piece = chunk.subarray(at, at + PART_BYTES - bytes);
      at += piece.byteLength;
      bytes += piece.byteLength;
      gathered.push(piece);
      if (bytes < PART_BYTES) continue;
      yield Buffer.concat(gathered);
      gathered = [];
      bytes = 0;
    }
  }
  if (bytes > 0) yield Buffer.concat(gathered);
}

function throwIfFailed(path: string, code: number, text: string): void {
  if (code === 0) return;
  const known: FileErrorCode | undefined = FILE_ENDS[code];
  if (known !== undefined) throw new FileError(known, path, TEXTS[known] ?? known);
  const why = code === CANCELLED_END ? "cancelled" : text.trim().slice(-1_000) || `it ended with ${code}`;
  throw new FileError("failed", path, why);
}

/** Throws FileError for what no path may be. */
function check(path: string): void {
  if (path.includes("\0")) throw new FileError("failed", path, "a path cannot hold a NUL character");
  if (!posix.isAbsolute(path)) throw new FileError("outside", path, OUTSIDE);
}

function trimmed(path: string): string {
  return path.replace(/(?<=.)\/+$/, "");
}

/** For `find -name`, which takes patterns. */
function literal(name: string): string {
  return name.replaceAll(/[*?[\\]/g, "\\$&");
}

async function* entriesOf(chunks: AsyncIterable<Buffer>): AsyncGenerator<string> {
  let rest: Buffer = Buffer.alloc(0);
  for await (const chunk of chunks) {
    const bytes = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    let done = 0;
    for (let end = bytes.indexOf(0); end >= 0; end = bytes.indexOf(0, done)) {
      yield bytes.toString("utf8", done, end);
      done = end + 1;
    }
    rest = bytes.subarray(done);
  }
}

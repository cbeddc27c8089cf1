/** What stands in a store's directory of a hand now. */
import { createHash } from "node:crypto";
import type { HandMounts } from "../drivers/driver.ts";

/** A memory's text. Larger files are told by their size alone. */
export const MAX_FILE_BYTES = 102_400;
/** Twice what a store may hold. */
const MAX_FILES = 4_000;
/** One more than a memory's path may have parts, so that what is too deep is seen and refused. */
const MAX_DEPTH = 21;
/** Times of files are as coarse as this, and clocks of engines differ a little. */
const TIME_GRAIN_MS = 2_000;

export type ScannedFile =
  | { readonly kind: "text"; readonly sha256: string; readonly size: number; readonly mtimeMs: number }
  /** It cannot be a memory; `why` is also what tells one such file from the next. */
  | { readonly kind: "other"; readonly why: string };

export interface Scan {
  /** By path within the store, from `/`. */
  readonly files: ReadonlyMap<string, ScannedFile>;
  /** Whether that is all. */
  readonly isWhole: boolean;
}

interface Known {
  readonly size: number;
  readonly mtimeMs: number;
  readonly sha256: string;
  /** When it was read; what was changed so shortly before may have been changed again since. */
  readonly atMs: number;
}

export class MemoryScanner {
  private readonly mounts: HandMounts;
  private readonly root: string;
  private readonly nowMs: () => number;
  private known = new Map<string, Known>();

  constructor(mounts: HandMounts, root: string, nowMs: () => number) {
    this.mounts = mounts;
    this.root = root;
    this.nowMs = nowMs;
  }

  isOf(mounts: HandMounts): boolean {
    return this.mounts === mounts;
  }

  async scan(signal: AbortSignal): Promise<Scan> {
    const files = new Map<string, ScannedFile>();
    const known = new Map<string, Known>();
    let isWhole = true;
    for await (const { path, type } of this.mounts.files.walk(this.root, { maxDepth: MAX_DEPTH, signal })) {
      const name = path.slice(this.root.length);
      // Half-written ones of the agent itself.
      if (type === "directory" || /\/\.tendon-[0-9a-f]+\.tmp$/.test(name)) continue;
      if (files.size >= MAX_FILES) {
        isWhole = false;
        break;
      }
      const found =
        type === "file"
          ? await this.look(path, signal)
          : { kind: "other" as const, why: "it is no regular file" };
      if (found === undefined) continue;
      files.set(name, "atMs" in found ? { kind: "text", ...found } : found);
      if ("atMs" in found) known.set(name, found);
    }
    this.known = known;
    return { files, isWhole };
  }

  /** Undefined when it is gone. */
  private async look(
    path: string,
    signal: AbortSignal,
  ): Promise<Known | (ScannedFile & { kind: "other" }) | undefined> {
    const { files } = this.mounts;
    const atMs = this.nowMs();
    const stat = await files.stat(path).catch(() => undefined);
    if (stat === undefined) return undefined;
    const { size, mtimeMs } = stat;
    if (size > MAX_FILE_BYTES)
      return { kind: "other", why: `it has ${size} bytes, and a memory at most ${MAX_FILE_BYTES}` };
    const before = this.known.get(path.slice(this.root.length));
    const isSame =
      before?.size === size && before.mtimeMs === mtimeMs && before.atMs - mtimeMs > TIME_GRAIN_MS;
    if (isSame) return before;
    const hash = createHash("sha256");
    try {
      for await (const chunk of files.readFile(path, { signal })) hash.update(chunk);
    } catch {
      signal.throwIfAborted();
      return undefined;
    }
    return { size, mtimeMs, sha256: hash.digest("hex"), atMs };
  }
}

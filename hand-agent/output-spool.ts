/**
 * The output of one execution, kept so that whoever comes back gets bytes k.. exactly (X2).
 *
 * O1 What is kept is always one gapless run of bytes, `firstOffset` to `endOffset`.
 * O2 At most `memoryBytes` and one chunk are in memory; the rest is in files, which are deleted with the spool.
 * O3 Above `maxBytes`, or when all spools together are over their budget, a connected reader that is behind holds the
 *    writer back (X5); with nobody reading, the oldest bytes go.
 * O4 A disk that fails costs the oldest bytes, never the execution.
 */
import { type FileHandle, open, rm } from "node:fs/promises";
import type { Logger } from "../kit/log.ts";

/** Shared by all spools of an agent. */
export interface SpoolBudget {
  usedBytes: number;
  readonly maxBytes: number;
}

export interface OutputSpoolOptions {
  /** Beginning of the names of its files. */
  path: string;
  budget: SpoolBudget;
  log: Logger;
  memoryBytes?: number;
  segmentBytes?: number;
  maxBytes?: number;
}

export interface OutputPiece {
  offset: number;
  data: Uint8Array;
}

interface Segment {
  path: string;
  file: FileHandle;
  start: number;
  length: number;
}

const DEFAULT_MEMORY_BYTES = 256 * 1024;
const DEFAULT_SEGMENT_BYTES = 64 * 1024 * 1024;
const DEFAULT_MAX_BYTES = 1024 ** 3;

export class OutputSpool {
  private readonly options: OutputSpoolOptions;
  private readonly memoryBytes: number;
  private readonly segmentBytes: number;
  private readonly maxBytes: number;
  private segments: Segment[] = [];
  private segmentsMade = 0;
  /** Chunks that are not in a file, in order; the first starts at `memoryStart`. */
  private chunks: Uint8Array[] = [];
  private memoryStart = 0;
  private end = 0;
  private ended = false;
  private discarded = false;
  private diskFailed = false;
  /** Where the connected reader is, while there is one. */
  private readerOffset: number | undefined;
  private turn: Promise<void> = Promise.resolve();
  private waiting: (() => void)[] = [];

  constructor(options: OutputSpoolOptions) {
    this.options = options;
    this.memoryBytes = options.memoryBytes ?? DEFAULT_MEMORY_BYTES;
    this.segmentBytes = options.segmentBytes ?? DEFAULT_SEGMENT_BYTES;
    this.maxBytes = options.maxBytes ?? DEFAULT_MAX_BYTES;
  }

  get firstOffset(): number {
    return this.segments[0]?.start ?? this.memoryStart;
  }

  get endOffset(): number {
    return this.end;
  }

  /** Resolves when more may come. Never rejects; bytes after `finish` or `discard` are dropped. */
  append(chunk: Uint8Array): Promise<void> | undefined {
    if (this.ended || this.discarded || chunk.byteLength === 0) return undefined;
    this.chunks.push(Buffer.from(chunk));
    this.end += chunk.byteLength;
    this.wake();
    if (this.end - this.memoryStart <= this.memoryBytes) return undefined;
    this.turn = this.turn.then(() => this.spill());
    return this.turn;
  }

  /** No more output comes. */
  finish(): void {
    this.ended = true;
    this.wake();
  }

  /** A reader is there and wants bytes from `offset`; it calls again as it goes on. `undefined`: it has left. */
  readerAt(offset: number | undefined): void {
    this.readerOffset = offset;
    this.wake();
  }

  /** At most `maxBytes` bytes from `offset` on, or from the first that is kept; undefined at the end. */
  async read(offset: number, maxBytes: number, signal: AbortSignal): Promise<OutputPiece | undefined> {
    for (;;) {
      signal.throwIfAborted();
      const from = Math.max(offset, this.firstOffset);
      if (from < this.end) {
        const data =
          from < this.memoryStart ? await this.readFile(from, maxBytes) : this.readMemory(from, maxBytes);
        if (data !== undefined) return { offset: from, data };
      } else if (this.ended || this.discarded) return undefined;
      else await this.change(signal);
    }
  }

  /** Removes everything. May be called twice. */
  async discard(): Promise<void> {
    this.discarded = true;
    this.ended = true;
    this.readerOffset = undefined;
    this.chunks = [];
    this.memoryStart = this.end;
    this.wake();
    await this.turn;
    while (this.segments.length > 0) await this.dropOldest();
  }

  private readMemory(from: number, maxBytes: number): Uint8Array {
    const parts: Uint8Array[] = [];
    let room = maxBytes;
    let start = this.memoryStart;
    for (const chunk of this.chunks) {
      const skip = Math.max(0, from - start);
      start += chunk.byteLength;
      if (skip >= chunk.byteLength) continue;
      const part = chunk.subarray(skip, skip + room);
      parts.push(part);
      room -= part.byteLength;
      if (room === 0) break;
    }
    return parts.length === 1 ? parts[0]! : Buffer.concat(parts);
  }

  /** Undefined when the bytes went away meanwhile. */
  private async readFile(from: number, maxBytes: number): Promise<Uint8Array | undefined> {
    const segment = this.segments.find(({ start, length }) => from >= start && from < start + length);
    if (segment === undefined) return undefined;
    const length = Math.min(maxBytes, segment.start + segment.length - from);
    const buffer = Buffer.allocUnsafe(length);
    try {
      const { bytesRead } = await segment.file.read(buffer, 0, length, from - segment.start);
      if (bytesRead > 0) return buffer.subarray(0, bytesRead);
      throw new Error("the file is shorter than what was written");
    } catch (error) {
      // O4: everything up to the end of this file counts as gone, unless it had been dropped anyway.
      if (this.segments.includes(segment)) {
        this.options.log.error({ err: error }, "kept output cannot be read back");
        while (this.segments.includes(segment)) await this.dropOldest();
      }
      return undefined;
    }
  }

  /** Moves what is in memory to a file. */
  private async spill(): Promise<void> {
    if (this.discarded || this.end - this.memoryStart <= this.memoryBytes) return;
    const batch = this.chunks.slice();
    const bytes = batch.reduce((sum, chunk) => sum + chunk.byteLength, 0);
    if (!this.diskFailed) await this.write(batch, bytes);
    if (this.discarded) return;
    if (this.diskFailed) while (this.segments.length > 0) await this.dropOldest();
    this.chunks.splice(0, batch.length);
    this.memoryStart += bytes;
    await this.trim();
  }

  private async write(batch: Uint8Array[], bytes: number): Promise<void> {
    try {
      const segment = await this.writableSegment();
      const { bytesWritten } = await segment.file.writev(batch, segment.length);
      if (bytesWritten !== bytes) throw new Error("the disk took only a part");
      segment.length += bytes;
      this.options.budget.usedBytes += bytes;
    } catch (error) {
      this.options.log.error({ err: error }, "output cannot be kept on disk; only its end stays");
      this.diskFailed = true;
    }
  }

  private async writableSegment(): Promise<Segment> {
    const last = this.segments.at(-1);
    if (last !== undefined && last.length < this.segmentBytes) return last;
    const path = `${this.options.path}.${this.segmentsMade++}`;
    const segment = { path, file: await open(path, "wx+", 0o600), start: this.memoryStart, length: 0 };
    this.segments.push(segment);
    return segment;
  }

  /** O3. */
  private async trim(): Promise<void> {
    const { budget } = this.options;
    for (let oldest = this.segments[0]; oldest !== undefined; oldest = this.segments[0]) {
      const own = this.memoryStart - oldest.start;
      if (this.discarded || (own <= this.maxBytes && budget.usedBytes <= budget.maxBytes)) return;
      const behind = this.readerOffset !== undefined && this.readerOffset < oldest.start + oldest.length;
      if (behind) await this.change();
      else await this.dropOldest();
    }
  }

  private async dropOldest(): Promise<void> {
    const segment = this.segments.shift();
    if (segment === undefined) return;
    this.options.budget.usedBytes -= segment.length;
    await segment.file.close().catch(() => {});
    await rm(segment.path, { force: true }).catch(() => {});
  }

  /** Resolves at the next change of anything; rejects when the signal aborts. */
  private change(signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const abort = () => reject(signal?.reason);
      signal?.addEventListener("abort", abort, { once: true });
      this.waiting.push(() => {
        signal?.removeEventListener("abort", abort);
        resolve();
      });
    });
  }

  private wake(): void {
    const waiting = this.waiting;
    this.waiting = [];
    for (const resolve of waiting) resolve();
  }
}

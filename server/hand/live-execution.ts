/**
 * A running execution in this replica's memory: the newest output, and who reads it.
 *
 * X5: at most `RING_BYTES` and one piece of output are kept. A reader that has not taken the oldest bytes holds the execution's own
 * stream up, no other; after `readerStallMs` without progress it is cut loose and may ask again from where it was. So
 * a result waits for a slow reader that long at most, and then for nobody.
 */
import type { Clock } from "../../kit/clock.ts";
import { TendonError } from "../../kit/errors.ts";
import type { ExecutionResult } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { ExecutionRecord } from "../store/executions.ts";
import type { OutputPreviews } from "./output-previews.ts";

export const RING_BYTES = 1024 * 1024;
const MAX_PIECE_BYTES = 64 * 1024;
/** Readers that start further back than the ring may have the agent send again so often. */
const MAX_REWINDS = 100;

export interface OutputPiece {
  readonly offset: number;
  readonly data: Uint8Array;
}

interface Reader {
  cursor: number;
  wake: () => void;
  /** Why it may not read on; undefined while it may. */
  cut: "too slow" | TendonError | undefined;
  /** Since when it holds the execution up, and where. */
  stall: { readonly cursor: number; readonly sinceMs: number } | undefined;
}

/** A stream of the execution's output, from its agent or from the replica that has it; only the newest counts. */
export interface AgentStream {
  /** Where the agent shall start. */
  readonly resumeOffset: number;
  /** Aborts when another stream of the execution took over, or the agent has to send again from further back. */
  readonly signal: AbortSignal;
}

export type StreamSource = "agent" | "peer";

export class LiveExecution {
  readonly execution: ExecutionRecord;
  /** Another replica is expected to bring the rest of the output before the result. */
  awaitsFeed = false;
  private readonly clock: Clock;
  private readonly readerStallMs: number;
  private readonly previews: OutputPreviews | undefined;
  private chunks: OutputPiece[] = [];
  /** Offset of the first byte that is kept, and the one after the last. */
  private base = 0;
  private end = 0;
  private readonly readers = new Set<Reader>();
  private progressed: (() => void)[] = [];
  private stream:
    | { readonly controller: AbortController; readonly firstOffset: number; readonly from: StreamSource }
    | undefined;
  private progressMs = Number.NEGATIVE_INFINITY;
  private rewinds = 0;
  private finished: ExecutionResult | undefined;
  private resolveDone!: (result: ExecutionResult) => void;
  /** The result, once it is stored. */
  readonly done: Promise<ExecutionResult> = new Promise((resolve) => {
    this.resolveDone = resolve;
  });

  constructor(options: {
    execution: ExecutionRecord;
    clock: Clock;
    readerStallMs: number;
    previews: OutputPreviews | undefined;
  }) {
    this.execution = options.execution;
    this.clock = options.clock;
    this.readerStallMs = options.readerStallMs;
    this.previews = options.previews;
  }

  get result(): ExecutionResult | undefined {
    return this.finished;
  }

  /** Its agent talks to this replica about it. */
  get isStreaming(): boolean {
    return this.stream?.from === "agent";
  }

  /** Another replica passes it on, and its output moved less than `withinMs` ago. */
  isFed(withinMs: number): boolean {
    return this.stream?.from === "peer" && this.clock.monotonicMs() - this.progressMs < withinMs;
  }

  /** Offset of the byte that comes next. */
  get nextOffset(): number {
    return this.end;
  }

  get hasReaders(): boolean {
    return this.readers.size > 0;
  }

  get isIdle(): boolean {
    return this.stream === undefined && this.readers.size === 0;
  }

  get bufferedBytes(): number {
    return this.end - this.base;
  }

  /** The agent, or a replica in its place, opened a stream and has the output from `firstOffset` on. */
  openStream(firstOffset: number, from: StreamSource = "agent"): AgentStream {
    this.stream?.controller.abort(
      new TendonError("UNAVAILABLE", "another stream of this execution took over"),
    );
    const controller = new AbortController();
    this.stream = { controller, firstOffset, from };
    this.progressMs = this.clock.monotonicMs();
    const resumeOffset = Math.max(this.end, firstOffset);
    if (resumeOffset !== this.end) this.emptyRing(resumeOffset);
    return { resumeOffset, signal: controller.signal };
  }

  closeStream(stream: AgentStream): void {
    if (this.stream?.controller.signal === stream.signal) this.stream = undefined;
  }

  /** Takes output; resolves when the next may come. Throws the stream's reason when it does not count any more. */
  async accept(stream: AgentStream, offset: number, data: Uint8Array): Promise<void> {
    if (offset > this.end) {
      const gap = `output: expected offset ${this.end}, got ${offset}`;
      throw new TendonError("INVALID_FIELD", gap, { field: "output.offset" });
    }
    const fresh = data.subarray(this.end - offset);
    if (fresh.length === 0) return;
    await this.waitForReaders(fresh.length, stream.signal);
    stream.signal.throwIfAborted();
    this.progressMs = this.clock.monotonicMs();
    // What a replica passes on, that replica has shown to the watchers, here too.
    if (this.isStreaming) this.previews?.push(this.end, fresh);
    this.chunks.push({ offset: this.end, data: fresh });
    this.end += fresh.length;
    this.dropBefore(this.end - RING_BYTES);
    for (const reader of this.readers) reader.wake();
  }

  /** The result is stored. What is kept is still read. */
  finish(result: ExecutionResult): void {
    if (this.finished !== undefined) return;
    this.finished = result;
    this.previews?.finish();
    this.resolveDone(result);
    for (const reader of this.readers) reader.wake();
    this.notifyProgress();
  }

  /** Ends all who read now; the execution goes on. */
  sendAway(error: TendonError): void {
    for (const reader of this.readers) {
      reader.cut = error;
      reader.wake();
    }
  }

  /**
   * Output from an offset on until the end; pieces of at most 64 KiB. Offsets jump forward over what nobody has any
   * more. UNAVAILABLE when the reader was too slow: it may ask again from its offset.
   */
  async *read(fromOffset: number, signal: AbortSignal): AsyncGenerator<OutputPiece, void, undefined> {
    const reader: Reader = { cursor: fromOffset, wake: () => {}, cut: undefined, stall: undefined };
    this.readers.add(reader);
    const onAbort = () => reader.wake();
    signal.addEventListener("abort", onAbort, { once: true });
    try {
      this.rewindTo(fromOffset);
      for (;;) {
        signal.throwIfAborted();
        if (reader.cut !== undefined) throw reader.cut === "too slow" ? tooSlow(reader.cursor) : reader.cut;
        const piece = this.pieceAt(reader.cursor);
        if (piece !== undefined) {
          yield piece;
          reader.cursor = piece.offset + piece.data.length;
          this.notifyProgress();
        } else if (this.finished !== undefined) {
          return;
        } else {
          await new Promise<void>((resolve) => {
            reader.wake = resolve;
          });
        }
      }
    } finally {
      signal.removeEventListener("abort", onAbort);
      this.readers.delete(reader);
      this.notifyProgress();
    }
  }

  private pieceAt(cursor: number): OutputPiece | undefined {
    const from = Math.max(cursor, this.base);
    const chunk = this.chunks.find(({ offset, data }) => from < offset + data.length);
    if (chunk === undefined || cursor >= this.end) return undefined;
    const start = from - chunk.offset;
    return { offset: from, data: chunk.data.subarray(start, start + MAX_PIECE_BYTES) };
  }

  /**
   * The agent keeps its output until the result is stored: it is made to send again what the ring has lost (X2). Those
   * who read further on wait until it comes by there.
   */
  private rewindTo(offset: number): void {
    if (this.finished !== undefined || offset >= this.base || this.rewinds >= MAX_REWINDS) return;
    const { stream } = this;
    if (stream !== undefined && stream.firstOffset >= this.base) return;
    this.rewinds += 1;
    this.emptyRing(offset);
    this.stream = undefined;
    stream?.controller.abort(
      new TendonError("UNAVAILABLE", "a reader needs earlier output; open the stream again"),
    );
  }

  private emptyRing(offset: number): void {
    this.chunks = [];
    this.base = offset;
    this.end = offset;
  }

  /** Whole chunks alone are dropped: what a reader is in the middle of stays. */
  private dropBefore(offset: number): void {
    for (let oldest = this.chunks[0]; oldest !== undefined; oldest = this.chunks[0]) {
      const end = oldest.offset + oldest.data.length;
      if (end > offset) return;
      this.chunks.shift();
      this.base = end;
    }
  }

  /** Until the ring has room for so many bytes, or those in the way have stood still for too long. */
  private async waitForReaders(bytes: number, signal: AbortSignal): Promise<void> {
    for (;;) {
      const oldest = this.end + bytes - RING_BYTES;
      const behind = [...this.readers].filter(
        (reader) => !reader.cut && reader.cursor < oldest && reader.cursor >= this.base,
      );
      if (behind.length === 0 || signal.aborted || this.finished !== undefined) return;
      const now = this.clock.monotonicMs();
      let waitMs = this.readerStallMs;
      for (const reader of behind) {
        if (reader.stall?.cursor !== reader.cursor) reader.stall = { cursor: reader.cursor, sinceMs: now };
        const leftMs = reader.stall.sinceMs + this.readerStallMs - now;
        if (leftMs <= 0) this.cutLoose(reader);
        else waitMs = Math.min(waitMs, leftMs);
      }
      await this.progressWithin(waitMs, signal);
    }
  }

  private cutLoose(reader: Reader): void {
    reader.cut = "too slow";
    reader.wake();
  }

  private progressWithin(waitMs: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const end = () => {
        stop();
        signal.removeEventListener("abort", end);
        resolve();
      };
      const stop = this.clock.after(waitMs, end);
      signal.addEventListener("abort", end, { once: true });
      this.progressed.push(end);
    });
  }

  private notifyProgress(): void {
    const progressed = this.progressed;
    this.progressed = [];
    for (const tell of progressed) tell();
  }
}

function tooSlow(offset: number): TendonError {
  return new TendonError(
    "UNAVAILABLE",
    `the output was read too slowly; ask again with from_offset ${offset} for the rest and the result`,
    { from_offset: String(offset) },
  );
}

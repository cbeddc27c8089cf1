/** Passes a running execution's output on to watchers, lossy and bounded (L5). */
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Clock } from "../../kit/clock.ts";
import type { PreviewOutputSchema } from "../../proto/gen/tendon/v1/event_pb.js";

export const PREVIEWS_PER_SECOND = 10;
export const PREVIEW_BYTES_PER_SECOND = 64 * 1024;
const WINDOW_MS = 1_000;

export type PublishOutput = (output: MessageInitShape<typeof PreviewOutputSchema>) => void;

export class OutputPreviews {
  private readonly toolUseId: string;
  private readonly clock: Clock;
  private readonly publish: PublishOutput;
  private chunks: Uint8Array[] = [];
  private pendingBytes = 0;
  /** Offset of the first pending byte. */
  private offset = 0;
  /** Offset after everything that was taken or skipped. */
  private end = 0;
  private windowStartMs = Number.NEGATIVE_INFINITY;
  private windowBytes = 0;
  private lastSentMs = Number.NEGATIVE_INFINITY;
  private stopTimer: (() => void) | undefined;

  constructor(toolUseId: string, clock: Clock, publish: PublishOutput) {
    this.toolUseId = toolUseId;
    this.clock = clock;
    this.publish = publish;
  }

  /** Output that comes again after a reconnect is not shown again. Never waits. */
  push(offset: number, data: Uint8Array): void {
    const fresh = data.subarray(Math.max(0, this.end - offset));
    if (fresh.length === 0) return;
    this.end = offset + data.length;
    const room = this.room() - this.pendingBytes;
    if (room <= 0) return;
    if (this.pendingBytes === 0) this.offset = this.end - fresh.length;
    // After a skip, pending bytes would not be one piece with these.
    else if (this.offset + this.pendingBytes !== this.end - fresh.length) return;
    const kept = fresh.subarray(0, room);
    this.chunks.push(Uint8Array.from(kept));
    this.pendingBytes += kept.length;
    this.schedule();
  }

  /** Shows what is pending; nothing is shown afterwards. */
  finish(): void {
    this.stopTimer?.();
    this.stopTimer = undefined;
    this.flush(true);
    this.end = Number.POSITIVE_INFINITY;
  }

  private room(): number {
    const now = this.clock.monotonicMs();
    if (now - this.windowStartMs >= WINDOW_MS) {
      this.windowStartMs = now;
      this.windowBytes = 0;
    }
    return PREVIEW_BYTES_PER_SECOND - this.windowBytes;
  }

  private schedule(): void {
    if (this.stopTimer !== undefined) return;
    const waitMs = this.lastSentMs + WINDOW_MS / PREVIEWS_PER_SECOND - this.clock.monotonicMs();
    if (waitMs <= 0) {
      this.flush(false);
      return;
    }
    this.stopTimer = this.clock.after(waitMs, () => {
      this.stopTimer = undefined;
      this.flush(false);
    });
  }

  private flush(last: boolean): void {
    if (this.pendingBytes === 0) return;
    const bytes = Buffer.concat(this.chunks);
    const start = characterStart(bytes);
    const stop = last ? bytes.length : completeLength(bytes);
    const rest = bytes.subarray(Math.max(start, stop));
    const text = bytes.toString("utf8", start, Math.max(start, stop));
    const offset = this.offset + start;
    this.chunks = rest.length === 0 ? [] : [rest];
    this.pendingBytes = rest.length;
    this.offset += bytes.length - rest.length;
    if (text === "") return;
    this.lastSentMs = this.clock.monotonicMs();
    this.windowBytes += bytes.length - rest.length;
    this.publish({ toolUseId: this.toolUseId, offset: BigInt(offset), text });
  }
}

/** How many bytes at the beginning continue a character whose start was skipped. */
function characterStart(bytes: Uint8Array): number {
  let index = 0;
  while (index < 3 && index < bytes.length && (bytes[index]! & 0xc0) === 0x80) index += 1;
  return index;
}

/** Length without a character at the end whose last bytes have not come yet. */
function completeLength(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back += 1) {
    const byte = bytes[bytes.length - back]!;
    if ((byte & 0xc0) === 0x80) continue;
    const needs = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return needs > back ? bytes.length - back : bytes.length;
  }
  return bytes.length;
}

/** Gathers what is forming in a session and shows it at most 20 times a second: lossy by contract (L5), and bounded. */
import { create } from "@bufbuild/protobuf";
import type { Clock } from "../kit/clock.ts";
import { type Preview, PreviewSchema } from "../proto/gen/tendon/v1/event_pb.js";
import type { LoopPreview } from "./loops/loop.ts";

const FLUSH_EVERY_MS = 50;
const MAX_PREVIEWS = 256;
/** Text beyond this within one flush is dropped; the event that ends the preview holds all of it. */
const MAX_CHARS = 64 * 1024;
/** Blocks that form, of which it is known how much of them was there; the oldest is forgotten. */
const MAX_BLOCKS = 64;

type PlacedPreview = Exclude<LoopPreview, { kind: "text" }> | PlacedText;
/** `offset`: where it stands in its block, whatever of that was dropped. */
type PlacedText = Extract<LoopPreview, { kind: "text" }> & { readonly offset: number };

export class PreviewFeed {
  private readonly clock: Clock;
  private readonly send: (previews: Preview[]) => void;
  private pending: PlacedPreview[] = [];
  private readonly lengths = new Map<string, number>();
  private chars = 0;
  private lastFlushMs = Number.NEGATIVE_INFINITY;
  private cancelFlush: (() => void) | undefined;

  constructor(clock: Clock, send: (previews: Preview[]) => void) {
    this.clock = clock;
    this.send = send;
  }

  /** The first preview after a pause goes out at once. */
  add(preview: LoopPreview): void {
    this.keep(preview.kind === "text" ? this.placed(preview) : preview);
    if (this.cancelFlush !== undefined) return;
    const waitMs = this.lastFlushMs + FLUSH_EVERY_MS - this.clock.monotonicMs();
    if (waitMs <= 0) this.flush();
    else this.cancelFlush = this.clock.after(waitMs, () => this.flush());
  }

  /** Shows what is left; nothing of it may come after the events that end it. */
  flush(): void {
    this.cancelFlush?.();
    this.cancelFlush = undefined;
    if (this.pending.length === 0) return;
    this.lastFlushMs = this.clock.monotonicMs();
    const previews = this.pending.map(wirePreview);
    this.pending = [];
    this.chars = 0;
    this.send(previews);
  }

  private placed(preview: Extract<LoopPreview, { kind: "text" }>): PlacedText {
    const block = `${preview.eventId} ${preview.index}`;
    const offset = this.lengths.get(block) ?? 0;
    this.lengths.delete(block);
    this.lengths.set(block, offset + preview.text.length);
    if (this.lengths.size > MAX_BLOCKS) this.lengths.delete(this.lengths.keys().next().value!);
    return { ...preview, offset };
  }

  private keep(preview: PlacedPreview): void {
    const last = this.pending.at(-1);
    if (preview.kind === "text") {
      if (this.chars + preview.text.length > MAX_CHARS) return;
      this.chars += preview.text.length;
      if (last?.kind === "text" && continues(preview, last)) {
        this.pending[this.pending.length - 1] = { ...last, text: last.text + preview.text };
        return;
      }
    }
    if (this.pending.length < MAX_PREVIEWS) this.pending.push(preview);
  }
}

function continues(preview: PlacedText, last: PlacedText): boolean {
  const isSame = last.eventId === preview.eventId && last.index === preview.index;
  return isSame && last.offset + last.text.length === preview.offset;
}

function wirePreview(preview: PlacedPreview): Preview {
  const { eventId } = preview;
  if (preview.kind === "start") {
    const value = { $typeName: "tendon.v1.PreviewStart" as const, eventId, type: preview.type };
    return create(PreviewSchema, { kind: { case: "start", value } });
  }
  const { index, text, offset } = preview;
  const value = { $typeName: "tendon.v1.PreviewText" as const, eventId, index, text, offset: BigInt(offset) };
  return create(PreviewSchema, { kind: { case: "text", value } });
}

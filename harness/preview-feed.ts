/** Gathers what is forming in a session and shows it at most 20 times a second: lossy by contract (L5), and bounded. */
import { create } from "@bufbuild/protobuf";
import type { Clock } from "../kit/clock.ts";
import { type Preview, PreviewSchema } from "../proto/gen/tendon/v1/event_pb.js";
import type { LoopPreview } from "./loops/loop.ts";

const FLUSH_EVERY_MS = 50;
const MAX_PREVIEWS = 256;
/** Text beyond this within one flush is dropped; the event that ends the preview holds all of it. */
const MAX_CHARS = 64 * 1024;

export class PreviewFeed {
  private readonly clock: Clock;
  private readonly send: (previews: Preview[]) => void;
  private pending: LoopPreview[] = [];
  private chars = 0;
  private lastFlushMs = Number.NEGATIVE_INFINITY;
  private cancelFlush: (() => void) | undefined;

  constructor(clock: Clock, send: (previews: Preview[]) => void) {
    this.clock = clock;
    this.send = send;
  }

  /** The first preview after a pause goes out at once. */
  add(preview: LoopPreview): void {
    this.keep(preview);
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

  private keep(preview: LoopPreview): void {
    const last = this.pending.at(-1);
    if (preview.kind === "text") {
      if (this.chars + preview.text.length > MAX_CHARS) return;
      this.chars += preview.text.length;
      if (last?.kind === "text" && last.eventId === preview.eventId && last.index === preview.index) {
        this.pending[this.pending.length - 1] = { ...last, text: last.text + preview.text };
        return;
      }
    }
    if (this.pending.length < MAX_PREVIEWS) this.pending.push(preview);
  }
}

function wirePreview(preview: LoopPreview): Preview {
  const { eventId } = preview;
  if (preview.kind === "start") {
    const value = { $typeName: "tendon.v1.PreviewStart" as const, eventId, type: preview.type };
    return create(PreviewSchema, { kind: { case: "start", value } });
  }
  const { index, text } = preview;
  const value = { $typeName: "tendon.v1.PreviewText" as const, eventId, index, text };
  return create(PreviewSchema, { kind: { case: "text", value } });
}

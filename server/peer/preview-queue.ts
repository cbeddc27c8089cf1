/** Previews on their way to one replica: coalesced, bounded, and dropped when they cannot be sent (L5). */
import { create } from "@bufbuild/protobuf";
import type { Clock } from "../../kit/clock.ts";
import { type Preview, PreviewSchema, PreviewTextSchema } from "../../proto/gen/tendon/v1/event_pb.js";

export type SendPreviews = (sessionId: string, previews: readonly Preview[]) => Promise<void>;

/** What comes within this time goes together. */
const COALESCE_MS = 20;
/** A replica that did not take previews is left alone for so long. */
const REST_MS = 1_000;
const MAX_SESSIONS = 1_000;
const MAX_PREVIEWS = 256;
const MAX_CHARS = 64 * 1024;
const MAX_CHARS_IN_ALL = 1024 * 1024;
/** Sessions whose previews are under way at a time; of each session only one request is. */
const AT_ONCE = 16;

interface Pending {
  readonly previews: Preview[];
  chars: number;
}

export class PreviewQueue {
  private readonly clock: Clock;
  private readonly send: SendPreviews;
  private readonly pending = new Map<string, Pending>();
  private chars = 0;
  private state: "idle" | "busy" | "resting" | "stopped" = "idle";

  constructor(clock: Clock, send: SendPreviews) {
    this.clock = clock;
    this.send = send;
  }

  /** Never blocks. */
  push(sessionId: string, previews: readonly Preview[]): void {
    if (this.state === "resting" || this.state === "stopped") return;
    const known = this.pending.get(sessionId);
    if (known === undefined && this.pending.size >= MAX_SESSIONS) return;
    const pending = known ?? { previews: [], chars: 0 };
    for (const preview of previews) if (!this.add(pending, preview)) break;
    if (pending.previews.length > 0) this.pending.set(sessionId, pending);
    if (this.state === "idle" && this.pending.size > 0) {
      this.state = "busy";
      this.clock.after(COALESCE_MS, () => void this.run());
    }
  }

  stop(): void {
    this.state = "stopped";
    this.clear();
  }

  private add(pending: Pending, preview: Preview): boolean {
    const chars =
      "text" in (preview.kind.value ?? {}) ? (preview.kind.value as { text: string }).text.length : 0;
    if (pending.chars + chars > MAX_CHARS || this.chars + chars > MAX_CHARS_IN_ALL) return false;
    const merged = joined(pending.previews.at(-1), preview);
    if (merged !== undefined) pending.previews[pending.previews.length - 1] = merged;
    else if (pending.previews.length >= MAX_PREVIEWS) return false;
    else pending.previews.push(preview);
    pending.chars += chars;
    this.chars += chars;
    return true;
  }

  private async run(): Promise<void> {
    try {
      while (this.pending.size > 0) {
        const batch = [...this.pending].slice(0, AT_ONCE);
        for (const [sessionId, { chars }] of batch) {
          this.pending.delete(sessionId);
          this.chars -= chars;
        }
        await Promise.all(batch.map(([sessionId, { previews }]) => this.send(sessionId, previews)));
      }
      if (this.state === "busy") this.state = "idle";
    } catch {
      // Lossy by contract: what is pending would be late anyway.
      this.clear();
      if (this.state !== "busy") return;
      this.state = "resting";
      this.clock.after(REST_MS, () => {
        if (this.state === "resting") this.state = "idle";
      });
    }
  }

  private clear(): void {
    this.pending.clear();
    this.chars = 0;
  }
}

/** Text that continues the text before it, as one preview; others saw the old one, so a new one is made. */
function joined(before: Preview | undefined, { kind }: Preview): Preview | undefined {
  if (before?.kind.case !== "text" || kind.case !== "text") return undefined;
  const { eventId, index, text, offset } = before.kind.value;
  if (eventId !== kind.value.eventId || index !== kind.value.index) return undefined;
  const isNext = offset === undefined || kind.value.offset === offset + BigInt(text.length);
  if (!isNext) return undefined;
  const joint = { eventId, index, text: text + kind.value.text, ...(offset !== undefined && { offset }) };
  const value = create(PreviewTextSchema, joint);
  return create(PreviewSchema, { kind: { case: "text", value } });
}

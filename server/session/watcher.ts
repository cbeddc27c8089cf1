/** One watcher of a session, as the hub knows it: how far the log is, and previews that wait to be taken. */
import type { Preview } from "../../proto/gen/tendon/v1/event_pb.js";

/** A watcher that does not take its previews loses what comes on top; they are lossy by contract. */
const MAX_PREVIEWS = 256;
const MAX_PREVIEW_CHARS = 64 * 1024;

export class Watcher {
  readonly sessionId: string;
  readonly wantsPreviews: boolean;
  /** The newest position that the hub knows of; 0 before it knows any. */
  head = 0;
  /** Of the newest signed checkpoint that the hub knows of; 0 for none. */
  checkpointPosition = 0;
  /** The session takes no more events, or is not there any more. */
  ended: "archived" | "deleted" | undefined;
  draining = false;
  private previews: Preview[] = [];
  private previewChars = 0;
  private wake: (() => void) | undefined;
  private woken = false;

  constructor(sessionId: string, wantsPreviews: boolean) {
    this.sessionId = sessionId;
    this.wantsPreviews = wantsPreviews;
  }

  advance(head: number): void {
    if (head <= this.head) return;
    this.head = head;
    this.notify();
  }

  checkpointed(position: number): void {
    if (position <= this.checkpointPosition) return;
    this.checkpointPosition = position;
    this.notify();
  }

  end(how: "archived" | "deleted"): void {
    if (this.ended === "deleted" || this.ended === how) return;
    this.ended = how;
    this.notify();
  }

  drain(): void {
    this.draining = true;
    this.notify();
  }

  offer(previews: readonly Preview[]): void {
    if (!this.wantsPreviews) return;
    for (const preview of previews) {
      const chars = charsOf(preview);
      if (this.previews.length >= MAX_PREVIEWS || this.previewChars + chars > MAX_PREVIEW_CHARS) break;
      this.previews.push(preview);
      this.previewChars += chars;
    }
    this.notify();
  }

  takePreviews(): Preview[] {
    const taken = this.previews;
    this.previews = [];
    this.previewChars = 0;
    return taken;
  }

  /** Resolves when something changed, or `notify` was called, since the last wait. */
  async wait(): Promise<void> {
    if (!this.woken) {
      await new Promise<void>((resolve) => {
        this.wake = resolve;
      });
      this.wake = undefined;
    }
    this.woken = false;
  }

  /** Has its reader look again. */
  notify(): void {
    this.woken = true;
    this.wake?.();
  }
}

function charsOf({ kind }: Preview): number {
  return kind.case === "text" || kind.case === "output" ? kind.value.text.length : 0;
}

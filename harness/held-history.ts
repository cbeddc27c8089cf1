/**
 * The events of a held session that matter to a model, and the room that they take.
 *
 * K1 The array is the same for the whole life of a session's view, and grows at its end alone.
 * K2 What the loop shows in no request any more, by a decision in the log, is let go of: see `Loop.spent`.
 * K3 A history that has more than a harness may hold is let go of as a whole, and stays so.
 */
import type { Event } from "../proto/gen/tendon/v1/event_pb.js";
import type { HistoryShare } from "./history-room.ts";
import { bytesOf } from "./history-room-rules.ts";
import { hollowEvent } from "./hollow-event.ts";
import type { Loop } from "./loops/loop.ts";

/** Below it nothing is worth letting go of. */
const LARGE_BYTES = 64 * 1024;

export class HeldHistory {
  readonly events: Event[] = [];
  /** K3. */
  isTooLarge = false;
  private readonly share: Pick<HistoryShare, "holds">;
  private readonly spent: Loop["spent"];
  private bytes = 0;
  /** A decision about the context that nothing was let go of for. */
  private isChanged = false;

  constructor(share: Pick<HistoryShare, "holds">, spent: Loop["spent"]) {
    this.share = share;
    this.spent = spent;
  }

  add(event: Event): void {
    if (this.isTooLarge) return;
    this.events.push(event);
    this.count(this.bytes + bytesOf(event));
    if (this.isTooLarge) return;
    if (event.type === "brain.context_changed") this.isChanged = true;
    if (event.type === "span.model_request_end" && this.isChanged) this.letGo();
  }

  drop(): void {
    this.isTooLarge = true;
    this.events.length = 0;
    this.bytes = 0;
    this.share.holds(0);
  }

  private count(bytes: number): void {
    this.bytes = bytes;
    if (!this.share.holds(bytes)) this.drop();
  }

  private letGo(): void {
    const spent = this.spent?.(this.events);
    if (spent === undefined) return;
    this.isChanged = false;
    let bytes = this.bytes;
    for (const [i, event] of this.events.entries()) {
      if (!spent.has(event.id) || bytesOf(event) <= LARGE_BYTES) continue;
      const hollow = hollowEvent(event);
      bytes += bytesOf(hollow) - bytesOf(event);
      this.events[i] = hollow;
    }
    this.count(bytes);
  }
}

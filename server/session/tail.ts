/** The newest events of a watched session, so that many watchers of one append cost no query each. */
import type { EventRecord } from "../store/events.ts";

const MAX_EVENTS = 64;
const MAX_CHARS = 64 * 1024;

/** A run of events without a gap; what does not follow on begins a new one. */
export class Tail {
  private events: EventRecord[] = [];
  private chars = 0;

  add(added: readonly EventRecord[]): void {
    for (const event of added) {
      const last = this.events.at(-1);
      if (last && event.position <= last.position) continue;
      if (last && event.position > last.position + 1) this.clear();
      const chars = event.payload?.length ?? Number.POSITIVE_INFINITY;
      if (chars > MAX_CHARS) {
        this.clear();
        continue;
      }
      // Watchers see no internal: keeping it would only cost memory.
      this.events.push({ ...event, internal: undefined });
      this.chars += chars;
      while (this.events.length > MAX_EVENTS || this.chars > MAX_CHARS) {
        this.chars -= this.events.shift()?.payload?.length ?? 0;
      }
    }
  }

  /** Every event after the position, or undefined when some of them are not here. */
  after(position: number): EventRecord[] | undefined {
    const first = this.events[0];
    if (!first || position + 1 < first.position) return undefined;
    return this.events.slice(position + 1 - first.position);
  }

  private clear(): void {
    this.events = [];
    this.chars = 0;
  }
}

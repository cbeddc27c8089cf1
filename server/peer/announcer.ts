/** Tells one replica which sessions have watchers here that want previews: changes at once, and that it still holds. */
import type { Clock } from "../../kit/clock.ts";
import { ANNOUNCE_EVERY_MS, type Announcement, MAX_WATCHED } from "./interests.ts";

/** Resolves with true when the other side wants to hear everything from scratch. */
export type SendAnnouncement = (announcement: Omit<Announcement, "replicaId">) => Promise<boolean>;

/** Changes that come within this time go together. */
const COALESCE_MS = 10;
const AGAIN_AFTER_MS = 1_000;
const MAX_AT_ONCE = 1_000;

export class Announcer {
  private readonly clock: Clock;
  private readonly all: () => string[];
  private readonly send: SendAnnouncement;
  private readonly changes = new Map<string, boolean>();
  private fromScratch = true;
  private sending = false;
  private again = false;
  private stopped = false;
  private stopWaiting = () => {};

  constructor(options: { clock: Clock; all: () => string[]; send: SendAnnouncement }) {
    this.clock = options.clock;
    this.all = options.all;
    this.send = options.send;
    this.in(0);
  }

  changed(sessionId: string, isWatched: boolean): void {
    if (this.fromScratch) return;
    this.changes.set(sessionId, isWatched);
    if (this.sending) this.again = true;
    else if (this.changes.size === 1) this.in(COALESCE_MS);
  }

  stop(): void {
    this.stopped = true;
    this.stopWaiting();
  }

  private in(delayMs: number): void {
    this.stopWaiting();
    if (!this.stopped) this.stopWaiting = this.clock.after(delayMs, () => void this.run());
  }

  private async run(): Promise<void> {
    this.sending = true;
    this.again = false;
    let nextMs = ANNOUNCE_EVERY_MS;
    try {
      for (const announcement of this.take()) {
        if (!(await this.send(announcement))) continue;
        this.fromScratch = true;
        nextMs = 0;
        break;
      }
      if (this.again) nextMs = Math.min(nextMs, COALESCE_MS);
    } catch {
      // Nobody knows what arrived.
      this.fromScratch = true;
      nextMs = AGAIN_AFTER_MS;
    }
    this.sending = false;
    this.in(nextMs);
  }

  private take(): Omit<Announcement, "replicaId">[] {
    const { fromScratch } = this;
    const changes = fromScratch
      ? this.all()
          .slice(0, MAX_WATCHED)
          .map((sessionId): [string, boolean] => [sessionId, true])
      : [...this.changes];
    this.changes.clear();
    this.fromScratch = false;
    const announcements = [];
    for (let start = 0; start === 0 || start < changes.length; start += MAX_AT_ONCE) {
      const part = changes.slice(start, start + MAX_AT_ONCE);
      const named = (isWatched: boolean) => part.filter(([, is]) => is === isWatched).map(([id]) => id);
      announcements.push({
        fromScratch: fromScratch && start === 0,
        watched: named(true),
        unwatched: named(false),
      });
    }
    return announcements;
  }
}

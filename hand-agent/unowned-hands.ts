/** Which hands may be destroyed because nobody owns them: only those named twice, a period apart (H1). */
import type { Clock } from "../kit/clock.ts";

/** Namings closer together than this count as one. */
export const REAPER_PERIOD_MS = 30_000;
/** A naming is forgotten after this; the next one counts as the first. */
const NAMING_LASTS_MS = 3_600_000;

export class UnownedHandMarks {
  private readonly clock: Clock;
  private readonly periodMs: number;
  private readonly namedAtMs = new Map<string, number>();

  constructor(clock: Clock, periodMs: number = REAPER_PERIOD_MS) {
    this.clock = clock;
    this.periodMs = periodMs;
  }

  /** Notes who was named now, and says which may be destroyed. A hand that is not named again starts over. */
  named(handIds: readonly string[]): string[] {
    const nowMs = this.clock.monotonicMs();
    const due: string[] = [];
    for (const handId of handIds) {
      const firstMs = this.namedAtMs.get(handId);
      if (firstMs === undefined || nowMs - firstMs > NAMING_LASTS_MS) this.namedAtMs.set(handId, nowMs);
      else if (nowMs - firstMs >= this.periodMs) due.push(handId);
    }
    const named = new Set(handIds);
    for (const handId of [...this.namedAtMs.keys()]) if (!named.has(handId)) this.namedAtMs.delete(handId);
    return due;
  }

  /** The hand was used: somebody owns it. */
  used(handId: string): void {
    this.namedAtMs.delete(handId);
  }
}

/** The system's clock, whose regular rounds a test can hold: what happens meanwhile, nobody came upon by looking once more. */
import { type Clock, systemClock } from "../../kit/clock.ts";

export class RoundsClock implements Clock {
  /** While it is true, what is done every so often is left out. */
  isHeld = false;
  nowMs = systemClock.nowMs;
  monotonicMs = systemClock.monotonicMs;
  sleep = systemClock.sleep;
  after = systemClock.after;
  soon = systemClock.soon;

  every(periodMs: number, run: () => void): () => void {
    return systemClock.every(periodMs, () => {
      if (!this.isHeld) run();
    });
  }
}

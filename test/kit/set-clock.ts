/** The system's timers, and a time of day that a test sets: it stands still in between. */
import { type Clock, systemClock } from "../../kit/clock.ts";

export class SetClock implements Clock {
  atMs: number;
  monotonicMs = systemClock.monotonicMs;
  sleep = systemClock.sleep;
  after = systemClock.after;
  every = systemClock.every;
  soon = systemClock.soon;
  nowMs = () => this.atMs;

  constructor(at: string) {
    this.atMs = Date.parse(at);
  }
}

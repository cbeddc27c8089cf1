/**
 * Times of a schedule: the instants at which the clock on the wall shows what the expression says. The library says which wall
 * times these are, asked as if there were only UTC; here they become instants of the zone. (Its own rule for zones moves fixed
 * times out of the hour that is left out, and counts one that comes twice once.)
 */
import { Cron } from "croner";
import { type WallClock, wallClockOf } from "./wall-clock.ts";

const FIELDS = 5;
const MINUTE_MS = 60_000;
const DAY_MS = 86_400_000;
/** Every pattern that occurs at all does so within 8 years (29 February), or 28 (a 29 February on a certain weekday). */
const MAX_STEPS = 1_000;

export class CronTimes {
  private readonly cron: Cron;
  private readonly clock: WallClock;

  private constructor(cron: Cron, clock: WallClock) {
    this.cron = cron;
    this.clock = clock;
  }

  /** What is wrong with it, in words that follow its name, or its times. */
  static parse(
    expression: string,
    timeZone: string,
  ): CronTimes | { readonly field: string; readonly problem: string } {
    const clock = wallClockOf(timeZone);
    if (clock === undefined) {
      const problem = `"${timeZone}" is no name of a time zone, such as Europe/Berlin or UTC`;
      return { field: "time_zone", problem };
    }
    const cron = parseExpression(expression);
    if (typeof cron === "string") return { field: "expression", problem: cron };
    return new CronTimes(cron, clock);
  }

  /** The first time after this one; undefined when there is none. */
  next(afterMs: number): number | undefined {
    let fromMs = Math.floor(afterMs) + 1;
    for (let step = 0; step < MAX_STEPS; step++) {
      const aheadMs = this.clock.aheadMs(fromMs);
      const wall = this.nextOnWall(fromMs + aheadMs);
      if (wall === undefined) return undefined;
      const candidate = wall - aheadMs;
      const change = this.clock.changeWithin(fromMs, Math.min(candidate, fromMs + DAY_MS));
      if (change !== undefined) {
        fromMs = change;
        continue;
      }
      if (candidate <= fromMs + DAY_MS) return candidate;
      // No clock is more than a day off, so nothing comes long before the candidate, whatever changes until then.
      fromMs = Math.max(fromMs + DAY_MS, candidate - 2 * DAY_MS);
    }
    return undefined;
  }

  /** At most `count` times after this one. */
  upcoming(afterMs: number, count: number): number[] {
    const times: number[] = [];
    for (let at: number | undefined = this.next(afterMs); at !== undefined; at = this.next(at)) {
      times.push(at);
      if (times.length >= count) break;
    }
    return times;
  }

  /** The last time up to `untilMs`, given one that is not later. */
  last(knownMs: number, untilMs: number): number {
    let last = knownMs;
    let beyond = untilMs;
    while (beyond - last > MINUTE_MS) {
      const middle = last + (beyond - last) / 2;
      const found = this.next(middle);
      if (found !== undefined && found <= untilMs) last = found;
      else beyond = middle;
    }
    const found = this.next(last);
    return found !== undefined && found <= untilMs ? found : last;
  }

  /** The first wall time from this one on. */
  private nextOnWall(wallMs: number): number | undefined {
    return this.cron.nextRun(new Date(wallMs - 1))?.getTime();
  }
}

/** A text says what is wrong. */
function parseExpression(expression: string): Cron | string {
  const fields = expression.trim().split(/\s+/);
  if (fields.length !== FIELDS)
    return "must have 5 fields: minute, hour, day of month, month, day of week; shortcuts such as @daily are none";
  const strange = fields.find((field) => !/^[\d*,/-]+$/.test(field));
  if (strange !== undefined)
    return `"${strange}" may hold numbers, *, lists, ranges and steps; L, W, #, ? and names are not known here`;
  let cron: Cron;
  try {
    cron = new Cron(fields.join(" "), { mode: "5-part", timezone: "UTC" });
  } catch (error) {
    const why = error instanceof Error ? error.message.replace(/^CronPattern: */, "") : "";
    return `is no cron expression: ${why.slice(0, 200)}`;
  }
  return cron.nextRun(new Date(0)) === null ? "names a day that never comes" : cron;
}

/** What the clock on the wall of a time zone shows, by the IANA data of the runtime (pure). */

/** Of one zone; making one costs more than asking it. */
const FORMATS = new Map<string, Intl.DateTimeFormat>();
const MAX_FORMATS = 500;

const SECOND_MS = 1_000;

export interface WallClock {
  /** How far the wall's time, taken for UTC, is ahead of UTC at this instant. */
  aheadMs(atMs: number): number;
  /**
   * The first instant after `fromMs` and up to `toMs` from which on the clock is otherwise ahead; undefined when it is
   * alike at both ends. There must not be two changes in between.
   */
  changeWithin(fromMs: number, toMs: number): number | undefined;
}

/** Undefined when no zone of the IANA database has this name. */
export function wallClockOf(timeZone: string): WallClock | undefined {
  const format = formatOf(timeZone);
  if (format === undefined) return undefined;
  const aheadMs = (atMs: number) => {
    const wholeMs = Math.floor(atMs / SECOND_MS) * SECOND_MS;
    return wallMs(format, wholeMs) - wholeMs;
  };
  return {
    aheadMs,
    changeWithin(fromMs, toMs) {
      const before = aheadMs(fromMs);
      if (aheadMs(toMs) === before) return undefined;
      let same = Math.floor(fromMs / SECOND_MS);
      let other = Math.ceil(toMs / SECOND_MS);
      while (other - same > 1) {
        const middle = Math.floor((same + other) / 2);
        if (aheadMs(middle * SECOND_MS) === before) same = middle;
        else other = middle;
      }
      return other * SECOND_MS;
    },
  };
}

function formatOf(timeZone: string): Intl.DateTimeFormat | undefined {
  const known = FORMATS.get(timeZone);
  if (known !== undefined) return known;
  // The runtime also takes offsets such as +01:00, which are no names.
  if (!/^[A-Za-z][\w+/-]*$/.test(timeZone)) return undefined;
  try {
    const numeric = "numeric";
    const parts = { year: numeric, month: numeric, day: numeric, hour: numeric, minute: numeric } as const;
    const made = new Intl.DateTimeFormat("en-US", { timeZone, hourCycle: "h23", second: numeric, ...parts });
    if (FORMATS.size >= MAX_FORMATS) FORMATS.clear();
    FORMATS.set(timeZone, made);
    return made;
  } catch {
    return undefined;
  }
}

function wallMs(format: Intl.DateTimeFormat, atMs: number): number {
  const said: Record<string, number> = {};
  for (const { type, value } of format.formatToParts(atMs)) said[type] = Number(value);
  const { year, month, day, hour, minute, second } = said as Record<"year" | "month" | "day", number> &
    Record<"hour" | "minute" | "second", number>;
  return Date.UTC(year, month - 1, day, hour, minute, second);
}

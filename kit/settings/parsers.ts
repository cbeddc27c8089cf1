/** Turns a setting's text into its value. A parser throws an Error that says what the value must be, without repeating it. */

export type Parser<T> = (text: string) => T;

export function text({ maxChars = 4096 }: { maxChars?: number } = {}): Parser<string> {
  return (value) => {
    if (value.length > maxChars) throw new Error(`must be at most ${maxChars} characters`);
    return value;
  };
}

export function integer({ min, max }: { min: number; max: number }): Parser<number> {
  return (value) => {
    const number = Number(value);
    if (!/^-?\d+$/.test(value.trim()) || !(number >= min && number <= max)) {
      throw new Error(`must be a whole number from ${min} to ${max}`);
    }
    return number;
  };
}

/** A TCP port to listen on; 0 takes a free one. */
export function port(): Parser<number> {
  return integer({ min: 0, max: 65_535 });
}

export function flag(): Parser<boolean> {
  return (value) => {
    const word = value.trim().toLowerCase();
    if (["1", "true", "yes", "on"].includes(word)) return true;
    if (["0", "false", "no", "off"].includes(word)) return false;
    throw new Error("must be true or false");
  };
}

export function oneOf<const T extends string>(words: readonly T[]): Parser<T> {
  return (value) => {
    const found = words.find((word) => word === value.trim());
    if (found === undefined) throw new Error(`must be one of ${words.join(", ")}`);
    return found;
  };
}

const UNIT_MS: Record<string, number> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** A duration such as "500ms", "30s", "15m", "24h" or "7d"; its value is in milliseconds. */
export function duration({ minMs, maxMs }: { minMs: number; maxMs: number }): Parser<number> {
  return (value) => {
    const match = /^(\d+)(ms|s|m|h|d)$/.exec(value.trim());
    const ms = match === null ? Number.NaN : Number(match[1]) * UNIT_MS[match[2]!]!;
    if (!(ms >= minMs && ms <= maxMs)) {
      throw new Error(
        `must be a duration from ${durationText(minMs)} to ${durationText(maxMs)}, such as 30s or 24h`,
      );
    }
    return ms;
  };
}

/** Milliseconds in the largest unit that says them exactly. */
export function durationText(ms: number): string {
  for (const unit of ["d", "h", "m", "s"]) {
    if (ms > 0 && ms % UNIT_MS[unit]! === 0) return `${ms / UNIT_MS[unit]!}${unit}`;
  }
  return `${ms}ms`;
}

/** An absolute URL with one of these schemes, as it was written. */
export function url(schemes: readonly string[]): Parser<string> {
  return (value) => {
    const parsed = URL.canParse(value) ? new URL(value) : undefined;
    if (parsed === undefined || !schemes.includes(parsed.protocol.slice(0, -1))) {
      throw new Error(
        `must be a URL that begins with ${schemes.map((scheme) => `${scheme}://`).join(" or ")}`,
      );
    }
    return value;
  };
}

/** Values separated by commas; empty ones are left out. */
export function list<T>(item: Parser<T>): Parser<T[]> {
  return (value) =>
    value
      .split(",")
      .map((part) => part.trim())
      .filter((part) => part !== "")
      .map(item);
}

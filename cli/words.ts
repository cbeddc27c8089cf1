/** Values of the contract in words for people, and back. */
import type { DescEnum } from "@bufbuild/protobuf";
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { timestampDate, timestampFromMs } from "@bufbuild/protobuf/wkt";
import { InvalidArgumentError } from "commander";
import { systemClock } from "../kit/clock.ts";
import { duration } from "../kit/settings/parsers.ts";

/** "SESSION_STATUS_IDLE" → "idle"; nothing for a value that is not set. */
export function enumWord(schema: DescEnum, value: number): string {
  if (value === 0) return "";
  const name = schema.value[value]?.name ?? String(value);
  return name.slice(prefixOf(schema).length).toLowerCase();
}

/** All words of an enum but the one for "not set". */
export function enumWords(schema: DescEnum): string[] {
  return schema.values.filter(({ number }) => number !== 0).map(({ number }) => enumWord(schema, number));
}

/** The value for a word; for commander, so it throws what commander shows. */
export function parseEnum<T extends number>(schema: DescEnum): (word: string) => T {
  return (word) => {
    const found = schema.values.find(
      ({ number }) => number !== 0 && enumWord(schema, number) === word.toLowerCase(),
    );
    if (found === undefined)
      throw new InvalidArgumentError(`It must be one of ${enumWords(schema).join(", ")}.`);
    return found.number as T;
  };
}

function prefixOf(schema: DescEnum): string {
  return schema.values[0]!.name.replace(/UNSPECIFIED$/, "");
}

/** "2026-01-31 09:30:05Z", in UTC; nothing for a time that is not set. */
export function timeText(time: Timestamp | undefined): string {
  if (time === undefined) return "";
  return `${timestampDate(time).toISOString().slice(0, 19).replace("T", " ")}Z`;
}

export function timestampIn(delayMs: number, nowMs: number): Timestamp {
  return timestampFromMs(nowMs + delayMs);
}

export function pairsText(pairs: Readonly<Record<string, string>>): string {
  return Object.entries(pairs)
    .map(([name, value]) => `${name}=${value}`)
    .join(" ");
}

/** Collects `name=value` options. */
export function parsePair(text: string, before: Record<string, string> | undefined): Record<string, string> {
  const equals = text.indexOf("=");
  if (equals < 1) throw new InvalidArgumentError("It must look like name=value.");
  return { ...before, [text.slice(0, equals)]: text.slice(equals + 1) };
}

/** Collects an option that may be given several times. */
export function parseRepeated(text: string, before: readonly string[] | undefined): string[] {
  return [...(before ?? []), text];
}

/** Collects a list separated by commas. */
export function parseList(text: string): string[] {
  return text
    .split(",")
    .map((part) => part.trim())
    .filter((part) => part !== "");
}

export function parseCount(min: number, max: number): (text: string) => number {
  return (text) => {
    const number = Number(text);
    if (!/^-?\d+$/.test(text) || number < min || number > max) {
      throw new InvalidArgumentError(`It must be a whole number from ${min} to ${max}.`);
    }
    return number;
  };
}

/** A position of a log. */
export function parsePosition(min: number): (text: string) => bigint {
  return (text) => BigInt(parseCount(min, Number.MAX_SAFE_INTEGER)(text));
}

/** A duration such as "30s" or "24h", in milliseconds. */
export function parseDuration(maxMs: number): (text: string) => number {
  const parse = duration({ minMs: 1, maxMs });
  return (text) => {
    try {
      return parse(text);
    } catch (error) {
      throw new InvalidArgumentError(`It ${(error as Error).message}.`);
    }
  };
}

const YEARS_100_MS = 100 * 365 * 24 * 3_600_000;

const ZONED = /\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$/i;

/** A time with its zone, as it is printed too, or how long ago it was. Without a zone nobody could say whose clock is meant. */
export function parseTime(text: string): Timestamp {
  if (/^\d{4}-/.test(text)) {
    const ms = ZONED.test(text) ? Date.parse(text) : Number.NaN;
    if (Number.isNaN(ms)) {
      throw new InvalidArgumentError(
        "It must be a time with its zone, such as 2026-01-31T09:30:00Z or 2026-01-31T10:30:00+01:00.",
      );
    }
    return timestampFromMs(ms);
  }
  return timestampFromMs(systemClock.nowMs() - parseDuration(YEARS_100_MS)(text));
}

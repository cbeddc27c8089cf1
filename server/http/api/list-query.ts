/** Reads what the query of a list asks for (pure). Names that are not known are ignored, as existing clients expect. */

import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { timestampFromDate, timestampMs } from "@bufbuild/protobuf/wkt";
import { invalidField } from "../../../kit/errors.ts";
import { timeFrom } from "./time-json.ts";

const NUMBER = /^\d{1,9}$/;

/** Throws INVALID_FIELD unless it is a whole number from 1; larger ones count as `most`. */
export function limitOf(query: URLSearchParams, most: number): number {
  const text = query.get("limit");
  if (text === null) return 0;
  if (!NUMBER.test(text) || Number(text) < 1) throw invalidField("limit", "must be a whole number from 1");
  return Math.min(Number(text), most);
}

/** Undefined when it is not said. Throws INVALID_FIELD unless it is a whole number within the range. */
export function numberOf(
  query: URLSearchParams,
  name: string,
  { from, to }: { readonly from: number; readonly to: number },
): number | undefined {
  const text = query.get(name);
  if (text === null) return undefined;
  if (NUMBER.test(text) && Number(text) >= from && Number(text) <= to) return Number(text);
  throw invalidField(name, `must be a whole number from ${from} to ${to}`);
}

export function pageOf(query: URLSearchParams): string {
  return query.get("page") ?? "";
}

export function flagOf(query: URLSearchParams, name: string): boolean {
  const text = query.get(name);
  if (text === null || text === "false") return false;
  if (text === "true") return true;
  throw invalidField(name, "must be true or false");
}

/** Of `name[]=a&name[]=b`, or of the name alone, repeated. */
export function valuesOf(query: URLSearchParams, name: string): readonly string[] {
  return [...query.getAll(`${name}[]`), ...query.getAll(name)];
}

/** Of `name[gte]` and its like. */
export function timeOf(query: URLSearchParams, name: string): Timestamp | undefined {
  const text = query.get(name);
  if (text === null) return undefined;
  return timestampFromDate(timeFrom(text, name));
}

export interface TimeRange {
  /** Both inclusive. */
  readonly fromMs: number;
  readonly toMs: number;
}

const STEP_MS = 1;

/** Of `created_at[gt]`, `[gte]`, `[lt]` and `[lte]`. */
export function rangeOf(query: URLSearchParams, name = "created_at"): TimeRange {
  const ms = (bound: string) => {
    const time = timeOf(query, `${name}[${bound}]`);
    return time === undefined ? undefined : timestampMs(time);
  };
  const from = [ms("gte"), step(ms("gt"), STEP_MS)].filter((value) => value !== undefined);
  const to = [ms("lte"), step(ms("lt"), -STEP_MS)].filter((value) => value !== undefined);
  return {
    fromMs: Math.max(Number.NEGATIVE_INFINITY, ...from),
    toMs: Math.min(Number.POSITIVE_INFINITY, ...to),
  };
}

function step(ms: number | undefined, by: number): number | undefined {
  return ms === undefined ? undefined : ms + by;
}

export function isWithin({ fromMs, toMs }: TimeRange, time: Timestamp | undefined): boolean {
  const ms = time === undefined ? 0 : timestampMs(time);
  return ms >= fromMs && ms <= toMs;
}

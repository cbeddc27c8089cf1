/** How columns become values: what clients wrote stays text, numbers are exact, times are dates. */
import pg from "pg";

const INT8 = 20;
const INT8_ARRAY = 1016;
const JSON_TEXT = 114;
const JSON_TEXT_ARRAY = 199;
const JSONB = 3802;
const JSONB_ARRAY = 3807;
const TEXT_ARRAY = 1009;

/** A bigint column as a number. Positions, sizes and counts stay far below 2^53; beyond it the value would be wrong, so it is refused. */
export function parseInt8(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value))
    throw new RangeError(`the database returned ${text}, which no number holds exactly`);
  return value;
}

const parseTextArray = pg.types.getTypeParser(TEXT_ARRAY as never) as (text: string) => (string | null)[];

// The client library asks per column and format; anything not listed keeps its own parser (timestamptz: Date, numeric: text).
const PARSERS: Record<number, (text: string) => unknown> = {
  [INT8]: parseInt8,
  [INT8_ARRAY]: (text) => parseTextArray(text).map((item) => (item === null ? null : parseInt8(item))),
  // Byte for byte: a parsed and printed payload would not be what was written.
  [JSON_TEXT]: (text) => text,
  [JSON_TEXT_ARRAY]: parseTextArray,
  [JSONB]: (text) => text,
  [JSONB_ARRAY]: parseTextArray,
};

export const columnTypes: pg.CustomTypesConfig = {
  getTypeParser: ((oid: number, format?: "text" | "binary") =>
    (format === "binary" ? undefined : PARSERS[oid]) ??
    pg.types.getTypeParser(oid, format as "text")) as pg.CustomTypesConfig["getTypeParser"],
};

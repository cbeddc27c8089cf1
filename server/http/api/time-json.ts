/** Times as they stand in requests and answers (pure). */
import { type Timestamp, timestampDate } from "@bufbuild/protobuf/wkt";
import { invalidField } from "../../../kit/errors.ts";

const RFC_3339 = /^\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:\d{2})?$/;

/** Without a zone it is UTC. Throws INVALID_FIELD for what is no time as in RFC 3339. */
export function timeFrom(text: string, field: string): Date {
  const hasZone = /([Zz]|[+-]\d{2}:\d{2})$/.test(text);
  const date = new Date(hasZone ? text : `${text}Z`);
  if (RFC_3339.test(text) && !Number.isNaN(date.getTime())) return date;
  throw invalidField(field, "must be a time as in 2026-01-31T12:00:00Z");
}

/** RFC 3339 in UTC; null for none. */
export function timeJson(time: Timestamp | undefined): string | null {
  return time === undefined ? null : timestampDate(time).toISOString();
}

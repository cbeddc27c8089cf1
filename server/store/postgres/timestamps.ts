/** Times in rows and times in messages. */
import { type Timestamp, timestampFromDate } from "@bufbuild/protobuf/wkt";

/** For an optional field: `...timeField("revokedAt", row.revoked_at)`. */
export function timeField<Name extends string>(
  name: Name,
  at: Date | null,
): Partial<Record<Name, Timestamp>> {
  return at === null ? {} : ({ [name]: timestampFromDate(at) } as Record<Name, Timestamp>);
}

export function dateOf(ms: number | undefined): Date | null {
  return ms === undefined ? null : new Date(ms);
}

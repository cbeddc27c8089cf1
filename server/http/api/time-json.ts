/** Times as they stand in answers (pure). */
import { type Timestamp, timestampDate } from "@bufbuild/protobuf/wkt";

/** RFC 3339 in UTC; null for none. */
export function timeJson(time: Timestamp | undefined): string | null {
  return time === undefined ? null : timestampDate(time).toISOString();
}

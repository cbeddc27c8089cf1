/** Free pairs of a resource (pure). */
import { invalidField, isTendonError, TendonError } from "../../../kit/errors.ts";
import type { Fields } from "./fields.ts";

/** Pairs that are said are set, null and "" delete, others stay. */
export function patchedMetadata(
  before: Readonly<Record<string, string>>,
  fields: Fields,
): Record<string, string> {
  const patch = metadataPatch(fields);
  const after = { ...before };
  for (const [key, value] of Object.entries(patch)) {
    if (value === "") delete after[key];
    else after[key] = value;
  }
  return after;
}

/** Of a creation: what would be deleted is not there. */
export function newMetadata(fields: Fields): Record<string, string> {
  return patchedMetadata({}, fields);
}

/** Existing clients know a code for pairs that are wrong. */
export async function withMetadataCode<T>(change: () => Promise<T>): Promise<T> {
  try {
    return await change();
  } catch (error) {
    const isOfPairs =
      isTendonError(error, "INVALID_FIELD") && /^(spec\.)?metadata\b/.test(error.metadata.field ?? "");
    if (!isOfPairs) throw error;
    throw new TendonError(error.reason, error.message, { ...error.metadata, error_code: "invalid_metadata" });
  }
}

/** No resource may have more; most have fewer. */
const MAX_SAID = 64;

/** Of an update: a deletion is an empty value. */
export function metadataPatch(fields: Fields): Record<string, string> {
  const value = fields.object("metadata")?.value ?? {};
  // Before any of them is looked at: a body has room for millions.
  if (Object.keys(value).length > MAX_SAID)
    throw invalidField(fields.at("metadata"), `must have at most ${MAX_SAID} entries`);
  const pairs = Object.entries(value).map(([key, value]) => {
    if (value !== null && typeof value !== "string")
      throw invalidField(`${fields.at("metadata")}.${key}`, "must be a string, or null");
    return [key, value ?? ""] as const;
  });
  return Object.fromEntries(pairs);
}

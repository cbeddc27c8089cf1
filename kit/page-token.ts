/** Page tokens: opaque to callers, good only for the query that gave them. */
import { createHash } from "node:crypto";
import { TendonError } from "./errors.ts";

/** What makes a query another one: its method, its workspace, its filters. Not its page size. */
export type PageQuery = readonly (string | number | boolean | undefined)[];

const CHECK_CHARS = 12;

/** Empty without a cursor: there is no next page. */
export function encodePageToken(query: PageQuery, cursor: readonly string[] | undefined): string {
  if (cursor === undefined) return "";
  const body = Buffer.from(JSON.stringify(cursor)).toString("base64url");
  return checkOf(query, body) + body;
}

/**
 * The cursor in a token, or undefined for the empty token of the first page. `parts` is how many texts this list's cursors
 * have. Throws INVALID_PAGE_TOKEN for one that is garbled, or of another query.
 */
export function decodePageToken(query: PageQuery, token: string, parts: number): string[] | undefined {
  if (token === "") return undefined;
  const body = token.slice(CHECK_CHARS);
  if (token.slice(0, CHECK_CHARS) !== checkOf(query, body)) throw invalid();
  let cursor: unknown;
  try {
    cursor = JSON.parse(Buffer.from(body, "base64url").toString());
  } catch {
    throw invalid();
  }
  const fits =
    Array.isArray(cursor) && cursor.length === parts && cursor.every((part) => typeof part === "string");
  if (!fits) throw invalid();
  return cursor as string[];
}

/** Guards against mistakes, not against malice: whoever forges a token reads no more than their query lets them. */
function checkOf(query: PageQuery, body: string): string {
  const text = JSON.stringify([query.map((part) => part ?? null), body]);
  return createHash("sha256").update(text).digest("base64url").slice(0, CHECK_CHARS);
}

function invalid(): TendonError {
  return new TendonError(
    "INVALID_PAGE_TOKEN",
    "page_token: is of no page of this list; leave it out for the first page",
    { field: "page_token" },
  );
}

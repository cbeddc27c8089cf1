/** What an MCP server says to whoever comes without a token: `WWW-Authenticate: Bearer …` (RFC 9110, 11.6.1; RFC 6750, 3; RFC 9728, 5.1). */

export interface BearerChallenge {
  readonly resourceMetadata: string | undefined;
  readonly scope: string | undefined;
  /** A code of the standard, such as `insufficient_scope`. */
  readonly error: string | undefined;
}

const MAX_CHARS = 8_192;
/** A scheme's name, or one parameter, and what stands in between. */
const PART = /\s*(?:,\s*)*([!#$%&'*+.^_`|~\w-]+)(?:\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+)))?/y;

/** Of the first Bearer challenge in the header; undefined when there is none. */
export function bearerChallenge(header: string | null): BearerChallenge | undefined {
  if (header === null || header.length > MAX_CHARS) return undefined;
  const found = new Map<string, string>();
  let isBearer = false;
  PART.lastIndex = 0;
  for (let part = PART.exec(header); part !== null; part = PART.exec(header)) {
    const [, name = "", quoted, bare] = part;
    const value = quoted?.replaceAll(/\\(.)/g, "$1") ?? bare;
    if (value === undefined) {
      // The next scheme begins.
      if (isBearer) break;
      isBearer = name.toLowerCase() === "bearer";
    } else if (isBearer && !found.has(name.toLowerCase())) found.set(name.toLowerCase(), value);
  }
  if (!isBearer) return undefined;
  return {
    resourceMetadata: found.get("resource_metadata"),
    scope: found.get("scope"),
    error: found.get("error"),
  };
}

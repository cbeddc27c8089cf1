/** What of a secret goes into a request, and what of it must never come back. */
import type { Opened } from "./opener.ts";

/** Headers to add to a request towards the credential's destination; none for variables, which are put in elsewhere. */
export function injectedHeaders({ use: { kind }, secret }: Opened): Readonly<Record<string, string>> {
  switch (kind.case) {
    case "staticBearer":
    case "oauth":
      return { authorization: `Bearer ${secret.value}` };
    case "header":
      return { [kind.value.headerName.toLowerCase()]: secret.value };
    case "git": {
      const user = secret.userName || "x-access-token";
      return { authorization: `Basic ${Buffer.from(`${user}:${secret.value}`).toString("base64")}` };
    }
    default:
      return {};
  }
}

const LEAST_CHARS = 6;

/** Values that are taken out of answers, the longest first: one that is part of another is found after it. */
export function knownValues(opened: Opened): readonly string[] {
  const { value, refreshToken, clientSecret } = opened.secret;
  const sent = Object.values(injectedHeaders(opened)).map((header) => header.replace(/^(Bearer|Basic) /, ""));
  const all = new Set([value, refreshToken, clientSecret, ...sent]);
  return [...all]
    .filter((text) => text.length >= LEAST_CHARS)
    .sort((one, other) => other.length - one.length);
}

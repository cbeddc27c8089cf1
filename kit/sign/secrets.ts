/** Random secrets that are stored as hashes. */
import { createHash, randomBytes, timingSafeEqual } from "node:crypto";

/** 256 random bits behind a prefix that says what it opens, such as "tk_". */
export function newSecret(prefix: string): string {
  return prefix + randomBytes(32).toString("base64url");
}

/**
 * SHA-256 in hex. Only for secrets made by `newSecret`: they cannot be guessed, so a slow hash would add nothing, and the
 * hash can be looked up.
 */
export function hashSecret(secret: string): string {
  return createHash("sha256").update(secret, "utf8").digest("hex");
}

/** Whether `secret` has this hash, in a time that does not tell how much of it matched. */
export function secretMatches(secret: string, hash: string): boolean {
  const expected = Buffer.from(hash, "hex");
  const found = createHash("sha256").update(secret, "utf8").digest();
  return expected.length === found.length && timingSafeEqual(expected, found);
}

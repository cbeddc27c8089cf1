/** What went wrong between us and Postgres, in our words: unreachable is the caller's to retry, a violated constraint has a name, the rest is a bug. */
import { TendonError } from "../../../kit/errors.ts";

/** Failures of the way to Postgres, as Node names them. */
const CONNECTION_CODES = new Set([
  "ECONNREFUSED",
  "ECONNRESET",
  "ENOENT",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EPIPE",
  "ETIMEDOUT",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "EACCES",
]);

/** SQLSTATE classes and codes that say "not now": connection lost, logins refused, out of resources, shutting down, lock not had in time. */
const UNAVAILABLE_STATES = /^(08...|28...|3D000|53...|57P0[1-5]|58030|55P03)$/;

/** Texts of the client library for a connection that ended or never came; it gives them no code. */
const CONNECTION_TEXTS =
  /Connection terminated|timeout exceeded when trying to connect|timeout expired|Client has encountered a connection error|Client was closed|server does not support SSL|after calling end on the pool|not queryable/;

export function codeOf(error: unknown): string | undefined {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === "string" ? code : undefined;
}

export function isUnavailable(error: unknown): boolean {
  const code = codeOf(error);
  if (code !== undefined) return CONNECTION_CODES.has(code) || UNAVAILABLE_STATES.test(code);
  // Node collects the failures of several addresses of one name.
  if (error instanceof AggregateError) return error.errors.some(isUnavailable);
  return error instanceof Error && CONNECTION_TEXTS.test(error.message);
}

/** Postgres' text has no U+0000. */
const NUL_IN_TEXT = "22021";

/** `UNAVAILABLE` where Postgres could not be reached or could not serve; `INVALID_FIELD` for a text that it cannot hold; every other error as it is. The message holds no URL and no password. */
export function translateFailure(error: unknown): unknown {
  if (codeOf(error) === NUL_IN_TEXT) {
    return new TendonError("INVALID_FIELD", "a text of the request holds U+0000, which cannot be stored");
  }
  if (error instanceof TendonError || !isUnavailable(error)) return error;
  const why = codeOf(error) ?? (error instanceof Error ? error.message : "unknown");
  return new TendonError(
    "UNAVAILABLE",
    `the database cannot be reached (${why}); try again`,
    {},
    {
      cause: error,
    },
  );
}

/** The constraint or unique index that a statement violated, or undefined for any other error. */
export function violatedConstraint(error: unknown): string | undefined {
  if (!codeOf(error)?.startsWith("23")) return undefined;
  const name = (error as { constraint?: unknown }).constraint;
  return typeof name === "string" ? name : undefined;
}

/** The error to throw for a violated constraint: the one that `byConstraint` makes for its name, else the error itself. */
export function translateViolation(
  error: unknown,
  byConstraint: Readonly<Record<string, () => TendonError>>,
): unknown {
  const name = violatedConstraint(error);
  return name !== undefined && Object.hasOwn(byConstraint, name) ? byConstraint[name]?.() : error;
}

/** Two transactions got in each other's way; the same work may succeed if it is done again. */
export function isConflict(error: unknown): boolean {
  const code = codeOf(error);
  return code === "40001" || code === "40P01";
}

/** Why the embedded Postgres cannot run. The message is one line for the person who started the program and says what to do. */

export type EmbeddedPostgresProblem =
  /** Another living program owns the database of this data directory. */
  | "in_use"
  /** The data directory, or a file in it, cannot be written. */
  | "unwritable"
  /** The disk of the data directory is full. */
  | "disk_full"
  /** The database is there, but Postgres cannot read it. */
  | "corrupt"
  /** The database was made by another major version of Postgres. */
  | "version"
  /** There are no binaries for this machine, or they do not run on it. */
  | "unsupported"
  /** Postgres did not start, or did not answer, for another reason. */
  | "failed";

export class EmbeddedPostgresError extends Error {
  override readonly name = "EmbeddedPostgresError";
  readonly problem: EmbeddedPostgresProblem;

  constructor(problem: EmbeddedPostgresProblem, message: string, options?: ErrorOptions) {
    super(message.replaceAll(/\s*\n\s*/g, " "), options);
    this.problem = problem;
  }
}

const USE_YOUR_OWN = "or set TENDON_DATABASE_URL to a Postgres of your own";

/** Turns a failed file operation under the data directory into the line that says what to do; anything else stays as it is. */
export function fileProblem(error: unknown, path: string): unknown {
  const code = (error as NodeJS.ErrnoException).code;
  if (code === "ENOSPC" || code === "EDQUOT") return diskFull(path, error);
  if (code === "EACCES" || code === "EPERM" || code === "EROFS") {
    return new EmbeddedPostgresError(
      "unwritable",
      `The data directory ${path} cannot be written (${code}): make it writable for this user, point TENDON_DATA_DIR elsewhere, ${USE_YOUR_OWN}.`,
      { cause: error },
    );
  }
  if (code === "ENOTDIR" || code === "EEXIST") {
    return new EmbeddedPostgresError(
      "unwritable",
      `The data directory ${path} cannot be made (${code}): a file stands in its way.`,
      { cause: error },
    );
  }
  return error;
}

export function diskFull(path: string, cause?: unknown): EmbeddedPostgresError {
  return new EmbeddedPostgresError(
    "disk_full",
    `The disk that holds ${path} is full: free some space and start again.`,
    { cause },
  );
}

/** Reads what Postgres or initdb said last and names the problem. `said` is the output of this start alone. */
export function processProblem(said: string, cluster: string, logPath: string): EmbeddedPostgresError {
  const lines = said.split("\n").filter((line) => line.trim() !== "");
  const last = lines.findLast((line) => /\b(FATAL|PANIC)\b/.test(line)) ?? lines.at(-1) ?? "it said nothing";
  const reason = last.replace(/^.*?\b(FATAL|PANIC|error):\s*/, "").slice(0, 300);
  if (/No space left on device|Disk quota exceeded/.test(said)) return diskFull(cluster);
  if (/incompatible with server|initialized by PostgreSQL version/.test(said)) {
    return new EmbeddedPostgresError(
      "version",
      `The database in ${cluster} was made by another version of Postgres: ${reason}.`,
    );
  }
  if (/Permission denied|Read-only file system|Operation not permitted|wrong ownership/.test(said)) {
    return new EmbeddedPostgresError(
      "unwritable",
      `Postgres may not use ${cluster}: ${reason}. Start as the user that made it, or give it to this user (chown -R).`,
    );
  }
  if (/error while loading shared libraries|cannot execute|Exec format error|GLIBC/.test(said)) {
    return new EmbeddedPostgresError(
      "unsupported",
      `The Postgres binaries do not run on this machine: ${reason}; install what is missing ${USE_YOUR_OWN}.`,
    );
  }
  const damaged =
    /pg_control|invalid checkpoint|could not locate|corrupt|invalid data in file|could not (open|read) (file|directory)|postgresql\.conf|not a valid data directory|is missing|invalid page/.test(
      said,
    );
  return damaged
    ? new EmbeddedPostgresError(
        "corrupt",
        `The database in ${cluster} is damaged (${reason}): restore it from a backup, or move it away to start with an empty one. More in ${logPath}.`,
      )
    : new EmbeddedPostgresError("failed", `Postgres did not start: ${reason}. More in ${logPath}.`);
}

/** Turns what can go wrong at a start, and what its user can mend, into one line. */
import { messageOf, TendonError } from "../kit/errors.ts";
import { ListenError } from "../kit/listen/listen.ts";
import { StartupError } from "../kit/program.ts";
import { EmbeddedPostgresError } from "./store/embedded/embedded-postgres-error.ts";
import { MigrationError } from "./store/postgres/migrate.ts";

const FILE_PROBLEMS: Readonly<Record<string, string>> = {
  EACCES: "it cannot be written",
  EPERM: "it cannot be written",
  EROFS: "it cannot be written",
  ENOTDIR: "a file stands in its way",
  EEXIST: "a file stands in its way",
  ENOSPC: "its disk is full",
  EDQUOT: "its disk is full",
};

/** Anything else is a bug and stays as it is. */
export function startupFailure(error: unknown, dataDir: string): unknown {
  if (
    error instanceof ListenError ||
    error instanceof EmbeddedPostgresError ||
    error instanceof MigrationError ||
    error instanceof TendonError
  ) {
    return new StartupError(error.message, 1, { cause: error });
  }
  const code = (error as NodeJS.ErrnoException).code;
  const problem = code === undefined ? undefined : FILE_PROBLEMS[code];
  if (problem !== undefined) {
    const message = `the data directory ${dataDir}: ${problem} (${code}); mend that, or point TENDON_DATA_DIR elsewhere`;
    return new StartupError(message, 1, { cause: error });
  }
  return error;
}

/** For steps whose every failure has a line of its own, such as reading a key file. */
export async function withOwnLine<T>(step: Promise<T>): Promise<T> {
  try {
    return await step;
  } catch (error) {
    if (error instanceof TendonError || (error as NodeJS.ErrnoException).code !== undefined) throw error;
    throw new StartupError(messageOf(error), 1, { cause: error });
  }
}

/** The Postgres that this server uses: one of its own under the data directory, or the operator's. */
import type { Clock } from "../kit/clock.ts";
import { isTendonError, TendonError } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";
import type { ServerConfig } from "./config.ts";
import { startEmbeddedPostgres } from "./store/embedded/embedded-postgres.ts";
import { migrations } from "./store/migrations/index.ts";
import { codeOf } from "./store/postgres/failure.ts";
import { migrate } from "./store/postgres/migrate.ts";
import { createPool, type Pool } from "./store/postgres/pool.ts";

export interface Database {
  readonly kind: "embedded" | "external";
  readonly pool: Pool;
  /** For LISTEN: never a pooler's. */
  readonly listenUrl: string;
  /** Resolves with the reason when the embedded Postgres is gone for good. */
  readonly lost: Promise<Error>;
  /** Ends all connections, and the embedded Postgres. Never rejects. */
  close(): Promise<void>;
}

const TRY_EVERY_MS = 500;

/**
 * With the newest schema. An operator's Postgres that cannot be reached yet is waited for, as long as the settings
 * say or until the signal: programs and their database may be started in any order.
 * Throws EmbeddedPostgresError, MigrationError or a TendonError, each with a line for the operator.
 */
export async function openDatabase(
  config: ServerConfig,
  clock: Clock,
  log: Logger,
  signal?: AbortSignal,
): Promise<Database> {
  const external = config.TENDON_DATABASE_URL;
  const embedded =
    external === undefined
      ? await startEmbeddedPostgres({ dataDir: config.TENDON_DATA_DIR, clock, log })
      : undefined;
  const url = external ?? embedded!.url;
  // The connection that listens is one of those that the operator allows.
  const max = config.TENDON_DATABASE_POOL - 1;
  const pool = createPool({ url, max, applicationName: "tendon server", log, clock });
  const close = async () => {
    await pool.close();
    await embedded?.stop();
  };
  try {
    if (external === undefined) await migrate(pool, migrations);
    else
      await migrateWhenReached(pool, placeOf(external), {
        clock,
        log,
        signal,
        waitMs: config.TENDON_DATABASE_WAIT_MS,
      });
  } catch (error) {
    await close();
    throw error;
  }
  return {
    kind: embedded === undefined ? "external" : "embedded",
    pool,
    listenUrl: config.TENDON_DATABASE_LISTEN_URL ?? url,
    lost: embedded?.lost ?? new Promise(() => {}),
    close,
  };
}

interface Waiting {
  readonly clock: Clock;
  readonly log: Logger;
  readonly signal: AbortSignal | undefined;
  readonly waitMs: number;
}

async function migrateWhenReached(
  pool: Pool,
  place: string,
  { clock, log, signal, waitMs }: Waiting,
): Promise<void> {
  const startedMs = clock.monotonicMs();
  let isTold = false;
  for (;;) {
    try {
      await migrate(pool, migrations);
      return;
    } catch (error) {
      if (!isTendonError(error, "UNAVAILABLE")) throw error;
      const why = causeOf(error);
      const isOver = clock.monotonicMs() - startedMs >= waitMs || signal?.aborted === true;
      if (isOver || isRefusedLogin(error)) throw unreachable(place, why, error);
      if (!isTold)
        log.warn({ why }, `the database at ${place} cannot be reached yet; waiting up to ${waitMs / 1000} s`);
      isTold = true;
    }
    await clock.sleep(TRY_EVERY_MS, signal).catch(() => {});
  }
}

function unreachable(place: string, why: string, cause: unknown): TendonError {
  const what = isRefusedLogin(cause) ? "refuses the login" : "cannot be reached";
  return new TendonError("UNAVAILABLE", `the database at ${place} ${what} (${why})`, {}, { cause });
}

const causeOf = ({ cause, message }: Error): string =>
  codeOf(cause) ?? (cause as Error | undefined)?.message ?? message;

/** SQLSTATE class 28: waiting does not mend a wrong user or password. */
function isRefusedLogin(error: unknown): boolean {
  return codeOf((error as Error).cause)?.startsWith("28") === true;
}

/** "host:port" of a database URL, or the folder of its socket; nothing secret. */
export function placeOf(databaseUrl: string): string {
  // Postgres knows URLs with a user and without a host, Node does not.
  const text = databaseUrl.replace(/\/\/[^/]*@\//, "///");
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const host = url?.searchParams.get("host") || url?.hostname || "localhost";
  const port = url?.searchParams.get("port") || url?.port || "5432";
  return host.startsWith("/") ? `${host} (port ${port})` : `${host}:${port}`;
}

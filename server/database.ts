/** The Postgres that this server uses: one of its own under the data directory, or the operator's. */
import type { Clock } from "../kit/clock.ts";
import type { Logger } from "../kit/log.ts";
import type { ServerConfig } from "./config.ts";
import { startEmbeddedPostgres } from "./store/embedded/embedded-postgres.ts";
import { migrations } from "./store/migrations/index.ts";
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

/** With the newest schema. Throws EmbeddedPostgresError, MigrationError or a TendonError, each with a line for the operator. */
export async function openDatabase(config: ServerConfig, clock: Clock, log: Logger): Promise<Database> {
  const external = config.TENDON_DATABASE_URL;
  const embedded =
    external === undefined
      ? await startEmbeddedPostgres({ dataDir: config.TENDON_DATA_DIR, clock, log })
      : undefined;
  const url = external ?? embedded!.url;
  const max = config.TENDON_DATABASE_POOL;
  const pool = createPool({ url, max, applicationName: "tendon server", log, clock });
  const close = async () => {
    await pool.close();
    await embedded?.stop();
  };
  try {
    await migrate(pool, migrations);
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

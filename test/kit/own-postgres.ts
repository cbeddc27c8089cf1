/** A Postgres of a test's own, for what would disturb the others of the run: crashes, and settings of the whole server. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { startEmbeddedPostgres } from "../../server/store/embedded/embedded-postgres.ts";
import { createPool, type Pool } from "../../server/store/postgres/pool.ts";

export interface OwnPostgres {
  readonly url: string;
  /** Holds all its files. */
  readonly dataDir: string;
  /** Of the test itself. */
  readonly pool: Pool;
  stop(): Promise<void>;
}

/** `settings` as `postgresql.conf` would have them. */
export async function startOwnPostgres(
  settings: Readonly<Record<string, string>> = {},
): Promise<OwnPostgres> {
  // Named so that the next run removes it when this one is killed (postgres-service.ts).
  const dataDir = await mkdtemp(join(tmpdir(), `tendon-test-${process.pid}-own-`));
  const postgres = await startEmbeddedPostgres({
    dataDir,
    clock: systemClock,
    log: createLogger("test", "silent"),
  });
  const pool = createPool({ url: postgres.url, max: 6, applicationName: "test" });
  for (const [name, value] of Object.entries(settings)) {
    await pool.query(`alter system set ${name} = '${value}'`);
  }
  await pool.query("select pg_reload_conf()");
  return {
    url: postgres.url,
    dataDir,
    pool,
    async stop() {
      await pool.close();
      await postgres.stop();
      await rm(dataDir, { recursive: true, force: true });
    },
  };
}

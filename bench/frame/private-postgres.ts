/** A Postgres of the bench's own, as the product embeds it, with the newest schema; product and baseline both run on it. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { startEmbeddedPostgres } from "../../server/store/embedded/embedded-postgres.ts";
import { migrations } from "../../server/store/migrations/index.ts";
import { migrate } from "../../server/store/postgres/migrate.ts";
import { createPool, type Pool } from "../../server/store/postgres/pool.ts";
import type { BenchContext } from "./bench.ts";

/** What a server has unless told otherwise. */
export const POOL_SIZE = 10;

export interface PrivatePostgres {
  readonly url: string;
  /** As large as a server's; known to Postgres as "bench". */
  readonly pool: Pool;
}

export async function startPrivatePostgres(context: BenchContext): Promise<PrivatePostgres> {
  context.say("starting Postgres …");
  const dataDir = await mkdtemp(join(tmpdir(), "tendon-bench-"));
  context.defer(() => rm(dataDir, { recursive: true, force: true }));
  const log = createLogger("bench", "warn");
  const postgres = await startEmbeddedPostgres({ dataDir, clock: systemClock, log });
  context.defer(() => postgres.stop());
  const { url } = postgres;
  const pool = createPool({ url, max: POOL_SIZE, applicationName: "bench" });
  context.defer(() => pool.close());
  await migrate(pool, migrations);
  return { url, pool };
}

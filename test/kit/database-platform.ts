/** A platform on a database of the run's one Postgres: it need not make a database of its own, which takes seconds each time. */
import { type Platform, type PlatformOptions, startPlatform } from "./platform.ts";
import { createTestDatabase } from "./postgres.ts";

/** As `startPlatform`; the database goes with `stop`. */
export async function startDatabasePlatform(options: PlatformOptions = {}): Promise<Platform> {
  const database = await createTestDatabase();
  const server = { TENDON_DATABASE_URL: database.url, TENDON_DATABASE_POOL: "5", ...options.env?.server };
  const platform = await startPlatform({ ...options, env: { ...options.env, server } }).catch(
    async (error: unknown) => {
      await database.drop();
      throw error;
    },
  );
  const stop = platform.stop.bind(platform);
  return Object.assign(platform, {
    async stop() {
      try {
        await stop();
      } finally {
        await database.drop();
      }
    },
  });
}

/**
 * Whose Postgres it is: a session lock on a connection of its own. It ends with the program that holds it, however that ends,
 * so two servers never work on one data directory and nothing has to be cleaned up.
 */
import type { Clock } from "../../../kit/clock.ts";
import { type DirectConnection, openDirectConnection } from "../postgres/direct-connection.ts";
import { ROLE } from "./cluster.ts";
import { EmbeddedPostgresError } from "./embedded-postgres-error.ts";

/** Any number that no one else uses in the maintenance database. */
const OWNER_LOCK = 7_400_001;

/** A killed owner's session may need a moment to end. */
const CLAIM_WITHIN_MS = 5_000;
const CLAIM_EVERY_MS = 50;

export const DATABASE = "tendon";

export function databaseUrl(socketDir: string, database: string): string {
  return `postgresql://${ROLE}@/${database}?host=${encodeURIComponent(socketDir)}`;
}

/** Takes the lock, or fails with `in_use` naming the process that has it. Other errors mean that Postgres went away. */
export async function claimOwnership(
  socketDir: string,
  dataDir: string,
  clock: Clock,
): Promise<DirectConnection> {
  const connection = await openDirectConnection({
    url: databaseUrl(socketDir, "postgres"),
    applicationName: `tendon owner ${process.pid}`,
  });
  try {
    const deadlineMs = clock.monotonicMs() + CLAIM_WITHIN_MS;
    for (;;) {
      const rows = await connection.query<{ held: boolean }>("select pg_try_advisory_lock($1) as held", [
        OWNER_LOCK,
      ]);
      if (rows[0]?.held) return connection;
      if (clock.monotonicMs() >= deadlineMs) throw await inUse(connection, dataDir);
      await clock.sleep(CLAIM_EVERY_MS);
    }
  } catch (error) {
    await connection.close();
    throw error;
  }
}

async function inUse(connection: DirectConnection, dataDir: string): Promise<EmbeddedPostgresError> {
  const rows = await connection.query<{ application_name: string }>(
    `select a.application_name from pg_locks l join pg_stat_activity a on a.pid = l.pid
      where l.locktype = 'advisory' and l.granted and l.classid = 0 and l.objid = $1
        and l.database = (select oid from pg_database where datname = current_database())`,
    [OWNER_LOCK],
  );
  const pid = /(\d+)$/.exec(rows[0]?.application_name ?? "")?.[1];
  return new EmbeddedPostgresError(
    "in_use",
    `The data directory ${dataDir} is in use by another Tendon server${pid ? ` (process ${pid})` : ""}: stop that one, or point TENDON_DATA_DIR elsewhere.`,
  );
}

/** Makes our database in a fresh cluster. */
export async function ensureDatabase(owner: DirectConnection): Promise<void> {
  const rows = await owner.query("select 1 from pg_database where datname = $1", [DATABASE]);
  if (rows.length === 0) await owner.query(`create database ${DATABASE}`);
}

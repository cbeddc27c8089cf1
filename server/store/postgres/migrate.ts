/**
 * Brings the database to the newest schema.
 *
 * Forward only, one transaction per step, so that a kill leaves whole steps. Any number of servers may do it at once: a
 * transaction's lock lets one through, the others then find the work done. That lock works behind a transaction-mode pooler too.
 */
import { createHash } from "node:crypto";
import type { Migration } from "../migrations/migration.ts";
import { codeOf } from "./failure.ts";
import type { Pool, Queryable } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

/** The database cannot be used by this program; the message is one line that says what to do. */
export class MigrationError extends Error {
  override readonly name = "MigrationError";
}

interface AppliedMigration {
  number: number;
  name: string;
  checksum: string;
  compatible: boolean;
}

/** Any number that nothing else locks in a Tendon database. */
const MIGRATION_LOCK = 7_400_002;

/** How long to wait for another server's step. */
const LOCK_TIMEOUT_MS = 60_000;

const MIN_VERSION_NUM = 150_000;

const TABLE = `
  create table if not exists tendon_migrations (
    number integer primary key,
    name text not null,
    checksum text not null,
    compatible boolean not null,
    applied_at timestamptz not null default now()
  )`;

/**
 * Applies what is missing and returns the numbers of the steps that this call applied. Throws `MigrationError` for a database
 * that is newer than `migrations` (unless all newer steps are compatible), that has another history, or a Postgres older than 15;
 * `UNAVAILABLE` when the database cannot be reached.
 */
export async function migrate(pool: Pool, migrations: readonly Migration[]): Promise<number[]> {
  assertNumbered(migrations);
  await checkVersion(pool);
  const done: number[] = [];
  for (;;) {
    // Most starts find nothing to do and need no lock.
    const found = await readApplied(pool);
    if (found && nextMigration(found, migrations) === undefined) return done;
    const applied = await inTransaction(pool, (transaction) => applyNext(transaction, migrations));
    if (applied !== undefined) done.push(applied);
  }
}

function assertNumbered(migrations: readonly Migration[]): void {
  for (const [index, { number, name }] of migrations.entries()) {
    if (number !== index + 1)
      throw new Error(`migration "${name}" has the number ${number} in place ${index + 1}`);
  }
}

async function checkVersion(pool: Pool): Promise<void> {
  const { rows } = await pool.query<{ number: string; text: string }>(
    "select current_setting('server_version_num') as number, current_setting('server_version') as text",
  );
  if (Number(rows[0]?.number) < MIN_VERSION_NUM) {
    throw new MigrationError(`Tendon needs Postgres 15 or newer, but the database runs ${rows[0]?.text}.`);
  }
}

/** The steps that the database has, or undefined when it has never seen one. */
async function readApplied(queryable: Queryable): Promise<AppliedMigration[] | undefined> {
  try {
    const { rows } = await queryable.query<AppliedMigration>(
      "select number, name, checksum, compatible from tendon_migrations order by number",
    );
    return rows;
  } catch (error) {
    if (codeOf(error) === UNDEFINED_TABLE) return undefined;
    throw error;
  }
}

const UNDEFINED_TABLE = "42P01";

async function applyNext(
  transaction: Transaction,
  migrations: readonly Migration[],
): Promise<number | undefined> {
  await transaction.query(`set local lock_timeout = ${LOCK_TIMEOUT_MS}`);
  await transaction.query("select pg_advisory_xact_lock($1)", [MIGRATION_LOCK]);
  await transaction.query(TABLE);
  const next = nextMigration((await readApplied(transaction)) ?? [], migrations);
  if (!next) return undefined;
  await transaction.query(next.sql);
  await transaction.query(
    "insert into tendon_migrations (number, name, checksum, compatible) values ($1, $2, $3, $4)",
    [next.number, next.name, checksum(next), next.compatible ?? false],
  );
  return next.number;
}

/** Compares histories (pure): the next step to apply, undefined when there is none, an error when they do not fit. */
export function nextMigration(
  applied: readonly AppliedMigration[],
  migrations: readonly Migration[],
): Migration | undefined {
  for (const row of applied) {
    const known = migrations[row.number - 1];
    if (known && checksum(known) !== row.checksum) {
      throw new MigrationError(
        `The database's migration ${row.number} ("${row.name}") is not the one this program has ("${known.name}"): it belongs to another version of Tendon; start that one, or restore a backup.`,
      );
    }
    if (!known && !row.compatible) {
      throw new MigrationError(
        `The database is newer than this program: its migration ${row.number} ("${row.name}") is unknown here; start the newer version of Tendon.`,
      );
    }
  }
  const have = new Set(applied.map(({ number }) => number));
  return migrations.find(({ number }) => !have.has(number));
}

export function checksum({ sql }: Pick<Migration, "sql">): string {
  return createHash("sha256").update(sql).digest("hex");
}

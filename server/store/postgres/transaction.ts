/** Statements that belong together. Whoever passes `fn` must let it be run again: it may have effects on the database only. */
import { Backoff } from "../../../kit/backoff.ts";
import { TendonError } from "../../../kit/errors.ts";
import { codeOf, isConflict } from "./failure.ts";
import type { Pool, PooledConnection, Queryable } from "./pool.ts";

export { isConflict, translateViolation, violatedConstraint } from "./failure.ts";

/** The statements of one transaction; useless once `fn` has returned. */
export type Transaction = Queryable;

export interface TransactionOptions {
  /** Default: read committed. */
  isolation?: "read committed" | "repeatable read" | "serializable";
  readOnly?: boolean;
}

const ATTEMPTS = 6;
const RETRY_BACKOFF = { firstMs: 5, maxMs: 200, resetAfterMs: Number.POSITIVE_INFINITY };

/**
 * Runs `fn` in a transaction: commits when it returns, rolls back when it throws. Serialization failures and deadlocks are
 * tried again, 6 times in all, then `UNAVAILABLE`. When the connection breaks during COMMIT the outcome is unknown and the
 * error `UNAVAILABLE`: the caller repeats what it asked for, which is safe because every mutation is.
 */
export async function inTransaction<T>(
  pool: Pool,
  fn: (transaction: Transaction) => Promise<T>,
  options: TransactionOptions = {},
): Promise<T> {
  const backoff = new Backoff(pool.clock, RETRY_BACKOFF);
  for (let attempt = 1; ; attempt++) {
    try {
      return await runOnce(pool, fn, options);
    } catch (error) {
      if (!isConflict(error)) throw error;
      if (attempt >= ATTEMPTS) {
        throw new TendonError(
          "UNAVAILABLE",
          `the database refused the change ${ATTEMPTS} times because of others made at once (${codeOf(error)}); try again`,
          {},
          { cause: error },
        );
      }
      await pool.clock.sleep(backoff.nextDelayMs());
    }
  }
}

async function runOnce<T>(
  pool: Pool,
  fn: (transaction: Transaction) => Promise<T>,
  { isolation = "read committed", readOnly = false }: TransactionOptions,
): Promise<T> {
  const connection = await pool.connect();
  let broken = true;
  try {
    await connection.query(`begin isolation level ${isolation}${readOnly ? " read only" : ""}`);
    const value = await fn({ query: (sql, values) => connection.query(sql, values) });
    await commit(connection);
    broken = false;
    return value;
  } catch (error) {
    broken = !(await rolledBack(connection));
    throw error;
  } finally {
    connection.release(broken);
  }
}

/** Postgres answers COMMIT of a failed transaction with a silent rollback: `fn` must have swallowed an error, which is a bug. */
async function commit(connection: PooledConnection): Promise<void> {
  const { command } = await connection.query("commit");
  if (command === "ROLLBACK") {
    throw new Error(
      "a statement of the transaction failed and its error was swallowed; nothing was committed",
    );
  }
}

async function rolledBack(connection: PooledConnection): Promise<boolean> {
  try {
    await connection.query("rollback");
    return true;
  } catch {
    return false;
  }
}

/**
 * The connections that all statements go through.
 *
 * They work behind a transaction-mode pooler: no named statements, no SET, LISTEN or session locks; what belongs together runs in
 * one transaction (transaction.ts). `json` columns come back as the text that was stored, `bigint` as number, times as Date.
 */
import pg from "pg";
import type { Clock } from "../../../kit/clock.ts";
import { systemClock } from "../../../kit/clock.ts";
import { messageOf, TendonError } from "../../../kit/errors.ts";
import type { Logger } from "../../../kit/log.ts";
import { columnTypes } from "./column-types.ts";
import { connectionConfig } from "./direct-connection.ts";
import { translateFailure } from "./failure.ts";

export interface PoolOptions {
  /** `postgresql://…`; a unix socket's folder goes into `?host=`. */
  url: string;
  /** Most connections at once. */
  max: number;
  /** What `pg_stat_activity` shows. */
  applicationName: string;
  log?: Logger;
  clock?: Clock;
}

export interface QueryResult<Row> {
  rows: Row[];
  /** Rows returned or changed. */
  rowCount: number;
  /** What Postgres says it did: SELECT, INSERT, COMMIT, … */
  command: string;
}

/** Something that runs statements: the pool (each on any connection) or a transaction. */
export interface Queryable {
  /**
   * Runs one statement; without values also several, separated by `;`.
   * Throws `UNAVAILABLE` when Postgres cannot be reached or serve; an error of the statement as Postgres reports it
   * (see failure.ts for constraint violations).
   */
  query<Row = Record<string, unknown>>(sql: string, values?: readonly unknown[]): Promise<QueryResult<Row>>;
}

/** A connection that was taken out of the pool. */
export interface PooledConnection extends Queryable {
  /** Gives it back; `broken` ends it instead. */
  release(broken?: boolean): void;
}

export interface Pool extends Queryable {
  readonly clock: Clock;
  /** Takes a connection; waits at most 10 s for a free one, then `UNAVAILABLE`. Prefer `query` and `inTransaction`. */
  connect(): Promise<PooledConnection>;
  /** How many connections exist, are idle, and how many callers wait for one. */
  counts(): { total: number; idle: number; waiting: number };
  /** Ends all connections once they have been given back. May be called twice. */
  close(): Promise<void>;
}

const CONNECT_TIMEOUT_MS = 10_000;
const IDLE_TIMEOUT_MS = 30_000;

/**
 * Beyond this many waiting callers per connection a new one is refused at once: with a few milliseconds for each it would wait
 * until `CONNECT_TIMEOUT_MS`, and then be refused. Some hundred calls that begin together on a busy machine are not so many.
 */
const WAITING_PER_CONNECTION = 1_000;

export function createPool(options: PoolOptions): Pool {
  const { max, log, clock = systemClock } = options;
  const pool = new pg.Pool({
    ...connectionConfig(options.url),
    max,
    application_name: options.applicationName,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    idleTimeoutMillis: IDLE_TIMEOUT_MS,
    keepAlive: true,
    types: columnTypes,
  });
  const warn = (error: Error) => log?.warn({ error: messageOf(error) }, "a database connection ended");
  // An idle connection that dies is replaced when it is next needed.
  pool.on("error", warn);

  const connect = async (): Promise<PooledConnection> => {
    if (pool.waitingCount >= max * WAITING_PER_CONNECTION) {
      throw new TendonError("UNAVAILABLE", "too many requests wait for a database connection; try again");
    }
    try {
      return pooled(await pool.connect(), warn);
    } catch (error) {
      throw translateFailure(error);
    }
  };

  let closing: Promise<void> | undefined;
  return {
    clock,
    connect,
    async query<Row>(sql: string, values?: readonly unknown[]) {
      const connection = await connect();
      try {
        return await connection.query<Row>(sql, values);
      } finally {
        connection.release();
      }
    },
    counts: () => ({ total: pool.totalCount, idle: pool.idleCount, waiting: pool.waitingCount }),
    close() {
      closing ??= pool.end();
      return closing;
    },
  };
}

function pooled(client: pg.PoolClient, warn: (error: Error) => void): PooledConnection {
  let dead = false;
  // Without a listener, a connection that dies between two statements would take the process with it.
  const onError = (error: Error) => {
    dead = true;
    warn(error);
  };
  client.on("error", onError);
  return {
    async query<Row>(sql: string, values?: readonly unknown[]) {
      try {
        return toResult<Row>(await client.query(sql, values as unknown[] | undefined));
      } catch (error) {
        throw translateFailure(error);
      }
    },
    release(broken = false) {
      client.off("error", onError);
      client.release(broken || dead);
    },
  };
}

/** Several statements at once give a list of results; the last one counts. */
function toResult<Row>(result: pg.QueryResult | pg.QueryResult[]): QueryResult<Row> {
  const last = Array.isArray(result) ? result.at(-1) : result;
  return { rows: (last?.rows ?? []) as Row[], rowCount: last?.rowCount ?? 0, command: last?.command ?? "" };
}

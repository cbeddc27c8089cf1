import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { isTendonError, TendonError } from "../../kit/errors.ts";
import { openDirectConnection } from "../../server/store/postgres/direct-connection.ts";
import { createPool, type Pool } from "../../server/store/postgres/pool.ts";
import {
  inTransaction,
  type Transaction,
  translateViolation,
  violatedConstraint,
} from "../../server/store/postgres/transaction.ts";
import { eventually } from "../kit/eventually.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";

let database: TestDatabase;
let pool: Pool;

beforeAll(async () => {
  database = await createTestDatabase({ migrated: false });
  pool = database.pool();
  await pool.query(
    "create table counters (name text primary key, value integer not null constraint positive check (value >= 0))",
  );
});

afterAll(async () => {
  await database?.drop();
});

async function backendPid(connection: { query: Pool["query"] }): Promise<number> {
  const { rows } = await connection.query<{ pid: number }>("select pg_backend_pid() as pid");
  return rows[0]?.pid ?? 0;
}

const rejection = (promise: Promise<unknown>) =>
  promise.then(
    () => undefined,
    (error: unknown) => error,
  );

describe("values", () => {
  test("json comes back byte for byte, whatever its spacing and key order", async () => {
    const payload = '{ "b":1,\n "a" : 1.0e2, "b":"\\u00e9" }';
    const { rows } = await pool.query("select $1::json as payload, array[$1::json] as list", [payload]);
    expect(rows[0]).toEqual({ payload, list: [payload] });
  });

  test("a bigint is a number, and one that no number holds exactly is refused instead of rounded", async () => {
    const { rows } = await pool.query(
      "select 9007199254740991::bigint as big, array[1, null]::bigint[] as list",
    );
    expect(rows[0]).toEqual({ big: Number.MAX_SAFE_INTEGER, list: [1, null] });
    expect(await rejection(pool.query("select 9007199254740992::bigint as big"))).toBeInstanceOf(RangeError);
    // The connection is not harmed by it.
    expect((await pool.query("select 1 as one")).rows).toEqual([{ one: 1 }]);
  });

  test("a timestamptz is a Date", async () => {
    const at = new Date("2026-01-02T03:04:05.678Z");
    const { rows } = await pool.query("select $1::timestamptz as at", [at]);
    expect(rows[0]).toEqual({ at });
  });
});

describe("a database that is not there", () => {
  test("is UNAVAILABLE, and the error does not repeat the password", async () => {
    for (const url of [
      "postgresql://tendon:s3cret@127.0.0.1:1/tendon",
      "postgresql://tendon:s3cret@/tendon?host=/nonexistent",
    ]) {
      const absent = createPool({ url, max: 1, applicationName: "test" });
      const error = await rejection(absent.query("select 1"));
      expect(isTendonError(error, "UNAVAILABLE")).toBe(true);
      expect(String(error) + String((error as Error).cause)).not.toContain("s3cret");
      await absent.close();
    }
  });

  test("a URL of another kind is refused without repeating it", () => {
    const error = (() => {
      try {
        createPool({ url: "mysql://user:s3cret@host/db", max: 1, applicationName: "test" });
      } catch (thrown) {
        return thrown;
      }
    })();
    expect(String(error)).toMatch(/must begin with postgresql:\/\//);
    expect(String(error)).not.toContain("s3cret");
  });

  test("a connection that dies while idle is replaced, one that dies in use is UNAVAILABLE; neither ends the process", async () => {
    const own = createPool({ url: database.url, max: 1, applicationName: "test victim" });
    try {
      const idle = await backendPid(own);
      await pool.query("select pg_terminate_backend($1)", [idle]);
      await eventually(() => own.counts().total === 0);
      expect(await backendPid(own)).not.toBe(idle);

      const error = await rejection(
        inTransaction(own, async (transaction) => {
          await pool.query("select pg_terminate_backend($1, 5000)", [await backendPid(transaction)]);
          await transaction.query("select 1");
        }),
      );
      expect(isTendonError(error, "UNAVAILABLE")).toBe(true);
      expect((await own.query("select 1 as one")).rows).toEqual([{ one: 1 }]);
    } finally {
      await own.close();
    }
  });

  test("callers beyond the bound on waiting ones are refused at once", async () => {
    const own = createPool({ url: database.url, max: 1, applicationName: "test bound" });
    const held = await own.connect();
    const waiting = Array.from({ length: 1_000 }, () => own.query("select 1"));
    const error = await rejection(own.query("select 1"));
    expect(isTendonError(error, "UNAVAILABLE")).toBe(true);
    held.release();
    await Promise.all(waiting);
    await own.close();
  });
});

describe("a transaction", () => {
  const value = async (name: string) =>
    (await pool.query<{ value: number }>("select value from counters where name = $1", [name])).rows[0]
      ?.value;

  test("commits what returns and rolls back what throws", async () => {
    const insert = (name: string) => (transaction: Transaction) =>
      transaction.query("insert into counters values ($1, 1)", [name]);
    await inTransaction(pool, insert("kept"));
    const error = await rejection(
      inTransaction(pool, async (transaction) => {
        await insert("dropped")(transaction);
        throw new TendonError("NOT_FOUND", "no");
      }),
    );
    expect(isTendonError(error, "NOT_FOUND")).toBe(true);
    expect([await value("kept"), await value("dropped")]).toEqual([1, undefined]);
    expect(pool.counts().idle).toBe(pool.counts().total);
  });

  test("whose error was swallowed says that nothing was committed", async () => {
    const error = await rejection(
      inTransaction(pool, async (transaction) => {
        await transaction.query("insert into counters values ('swallowed', 1)");
        await rejection(transaction.query("select 1 / 0"));
      }),
    );
    expect(String(error)).toMatch(/nothing was committed/);
    expect(await value("swallowed")).toBeUndefined();
  });

  test("that conflicts with others is run again until each has counted once", async () => {
    await pool.query("insert into counters values ('shared', 0)");
    let runs = 0;
    let haveRead = 0;
    const increment = () =>
      inTransaction(
        pool,
        async (transaction) => {
          runs += 1;
          const { rows } = await transaction.query<{ value: number }>(
            "select value from counters where name = 'shared'",
          );
          // All have read before anybody writes, however slowly they are connected.
          haveRead += 1;
          await eventually(() => haveRead >= 3, { everyMs: 1 });
          await transaction.query("update counters set value = $1 where name = 'shared'", [
            (rows[0]?.value ?? 0) + 1,
          ]);
        },
        { isolation: "serializable" },
      );
    await Promise.all([increment(), increment(), increment()]);
    expect(await value("shared")).toBe(3);
    expect(runs).toBeGreaterThan(3);
  });

  test("that always conflicts is UNAVAILABLE after six tries", async () => {
    let runs = 0;
    const error = await rejection(
      inTransaction(pool, async (transaction) => {
        runs += 1;
        await transaction.query("do $$ begin raise exception 'conflict' using errcode = '40001'; end $$");
      }),
    );
    expect(isTendonError(error, "UNAVAILABLE")).toBe(true);
    expect(runs).toBe(6);
  });

  test("a violated constraint has a name and becomes the error that is given for it", async () => {
    const violation = await rejection(pool.query("insert into counters values ('negative', -1)"));
    expect(violatedConstraint(violation)).toBe("positive");
    const taken = new TendonError("ALREADY_EXISTS", "taken");
    const twice = await rejection(pool.query("insert into counters values ('x', 1), ('x', 1)"));
    expect(translateViolation(twice, { counters_pkey: () => taken })).toBe(taken);
    expect(translateViolation(twice, { other: () => taken })).toBe(twice);
  });
});

test("a direct connection listens, and its end is noticed", async () => {
  const heard: string[] = [];
  const connection = await openDirectConnection({
    url: database.url,
    applicationName: "test listener",
    onNotification: (channel, payload) => heard.push(`${channel} ${payload}`),
  });
  await connection.query("listen heads");
  await pool.query("select pg_notify('heads', 'sesn_1:7')");
  await eventually(() => heard.includes("heads sesn_1:7"));
  const [row] = await connection.query<{ pid: number }>("select pg_backend_pid() as pid");
  await pool.query("select pg_terminate_backend($1)", [row?.pid]);
  expect(await connection.ended).toBeInstanceOf(Error);
  expect(connection.isOpen()).toBe(false);
  await connection.close();
});

/** What the store does must work behind a pooler that gives out server connections per transaction. */
import { afterAll, beforeAll, expect, test } from "vitest";
import { migrate } from "../../server/store/postgres/migrate.ts";
import { createPool, type Pool } from "../../server/store/postgres/pool.ts";
import { inTransaction } from "../../server/store/postgres/transaction.ts";
import { hasPooler, type Pooler, startPooler } from "../kit/pooler.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";

const SERVER_CONNECTIONS = 3;

let database: TestDatabase;
let pooler: Pooler;
let pools: Pool[] = [];

beforeAll(async () => {
  if (!hasPooler) return;
  database = await createTestDatabase({ migrated: false });
  pooler = await startPooler(database.url, SERVER_CONNECTIONS);
  pools = Array.from({ length: 10 }, (_, i) =>
    createPool({ url: pooler.url, max: 5, applicationName: `server ${i}` }),
  );
});

afterAll(async () => {
  if (!hasPooler) return;
  await Promise.all(pools.map((pool) => pool.close()));
  await pooler.stop();
  await database.drop();
});

test.skipIf(!hasPooler)(
  "ten servers migrate at once and count 500 transactions right over three server connections (needs pgbouncer)",
  async () => {
    const steps = [
      {
        number: 1,
        name: "counter",
        sql: "create table counter (value bigint); insert into counter values (0)",
      },
      { number: 2, name: "pids", sql: "create table pids (pid integer)" },
    ];
    const applied = await Promise.all(pools.map((pool) => migrate(pool, steps)));
    expect(applied.flat().sort()).toEqual([1, 2]);

    const work = pools.flatMap((pool) =>
      Array.from({ length: 50 }, () =>
        inTransaction(pool, async (transaction) => {
          await transaction.query("update counter set value = value + $1", [1]);
          await transaction.query("insert into pids values (pg_backend_pid())");
        }),
      ),
    );
    await Promise.all(work);
    const { rows } = await database
      .pool()
      .query("select value, (select count(distinct pid) from pids) <= $1 as shared from counter", [
        SERVER_CONNECTIONS,
      ]);
    expect(rows).toEqual([{ value: 500, shared: true }]);
  },
);

import { afterEach, beforeEach, expect, test } from "vitest";
import { migrations as released } from "../../server/store/migrations/index.ts";
import type { Migration } from "../../server/store/migrations/migration.ts";
import { MigrationError, migrate } from "../../server/store/postgres/migrate.ts";
import { createPool } from "../../server/store/postgres/pool.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";

let database: TestDatabase;

beforeEach(async () => {
  database = await createTestDatabase({ migrated: false });
});

afterEach(async () => {
  await database.drop();
});

const first: Migration = { number: 1, name: "things", sql: "create table things (id integer primary key)" };
const second: Migration = {
  number: 2,
  name: "names",
  sql: "alter table things add name text; create index on things (name);",
};

async function history(): Promise<string[]> {
  const { rows } = await database
    .pool()
    .query<{ number: number; name: string }>("select number, name from tendon_migrations order by number");
  return rows.map(({ number, name }) => `${number} ${name}`);
}

test("an empty database gets all steps in order, and a second run finds nothing to do", async () => {
  expect(await migrate(database.pool(), [first, second])).toEqual([1, 2]);
  expect(await migrate(database.pool(), [first, second])).toEqual([]);
  expect(await history()).toEqual(["1 things", "2 names"]);
});

test("the released steps apply to an empty database", async () => {
  expect(await migrate(database.pool(), released)).toEqual(released.map(({ number }) => number));
});

test("20 servers that migrate at once apply each step exactly once", async () => {
  const pools = Array.from({ length: 20 }, (_, i) =>
    createPool({ url: database.url, max: 1, applicationName: `migrator ${i}` }),
  );
  try {
    const applied = await Promise.all(pools.map((pool) => migrate(pool, [first, second])));
    expect(applied.flat().sort()).toEqual([1, 2]);
    expect(await history()).toEqual(["1 things", "2 names"]);
  } finally {
    await Promise.all(pools.map((pool) => pool.close()));
  }
});

test("a step that fails leaves nothing of itself and keeps the steps before it", async () => {
  const broken: Migration = { ...second, sql: "alter table things add name text; select 1 / 0;" };
  await expect(migrate(database.pool(), [first, broken])).rejects.toThrow("division by zero");
  expect(await history()).toEqual(["1 things"]);
  expect(await migrate(database.pool(), [first, second])).toEqual([2]);
});

test("a step that was changed after it was applied is refused", async () => {
  await migrate(database.pool(), [first]);
  const changed = { ...first, sql: `${first.sql} -- changed` };
  await expect(migrate(database.pool(), [changed, second])).rejects.toThrow(
    /migration 1 \("things"\) is not the one this program has/,
  );
  await expect(migrate(database.pool(), [changed])).rejects.toBeInstanceOf(MigrationError);
  expect(await history()).toEqual(["1 things"]);
});

test("a database newer than the program is refused, unless its newer steps say that older programs may use it", async () => {
  await migrate(database.pool(), [first, { ...second, compatible: true }]);
  expect(await migrate(database.pool(), [first])).toEqual([]);

  const third: Migration = { number: 3, name: "contract", sql: "alter table things drop name" };
  await migrate(database.pool(), [first, { ...second, compatible: true }, third]);
  await expect(migrate(database.pool(), [first])).rejects.toThrow(
    /newer than this program: its migration 3 \("contract"\)/,
  );
});

test("steps with a gap in their numbers are a bug that no database sees", async () => {
  await expect(migrate(database.pool(), [first, { ...second, number: 3 }])).rejects.toThrow(/in place 2/);
});

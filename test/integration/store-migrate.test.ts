import { afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { migrations as released } from "../../server/store/migrations/index.ts";
import type { Migration } from "../../server/store/migrations/migration.ts";
import { createEventStore } from "../../server/store/postgres/events.ts";
import { MigrationError, migrate } from "../../server/store/postgres/migrate.ts";
import { createPool } from "../../server/store/postgres/pool.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { schemaOf } from "../kit/schema-of.ts";

let database: TestDatabase;
/** Of a database that was made by the released steps. */
let releasedSchema: string[];

beforeAll(async () => {
  const fresh = await createTestDatabase();
  try {
    releasedSchema = await schemaOf(fresh.pool());
    expect(releasedSchema.length).toBeGreaterThan(100);
  } finally {
    await fresh.drop();
  }
});

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

test("20 servers that bring an empty database to the released schema at once make the same as one", async () => {
  const pools = Array.from({ length: 20 }, (_, i) =>
    createPool({ url: database.url, max: 1, applicationName: `migrator ${i}` }),
  );
  try {
    const applied = await Promise.all(pools.map((pool) => migrate(pool, released)));
    expect(applied.flat().sort((a, b) => a - b)).toEqual(released.map(({ number }) => number));
    expect(await schemaOf(database.pool())).toEqual(releasedSchema);
  } finally {
    await Promise.all(pools.map((pool) => pool.close()));
  }
});

/** What a first release's database may hold, written with its own columns. */
const OLD_ROWS = `
  insert into workspaces (workspace_id, name) values ('wrkspc_old', 'old');
  insert into agents (agent_id, workspace_id, latest_version) values ('agent_old', 'wrkspc_old', 1);
  insert into agent_versions (agent_id, version, spec) values ('agent_old', 1, '{"name":"old"}');
  insert into environments (environment_id, workspace_id, name, spec, is_default)
    values ('env_old', 'wrkspc_old', 'old', '{"name":"old"}', true);
  insert into sessions (session_id, workspace_id, agent_id, agent_version, agent, environment_id, head)
    values ('sesn_old', 'wrkspc_old', 'agent_old', 1, '{"id":"agent_old","version":1,"spec":{"name":"old"}}', 'env_old', 2);
  insert into events (session_id, position, event_id, type, payload) values
    ('sesn_old', 1, 'sevt_old_1', 'user.message', '{"2":"b","1":"a"}'), ('sesn_old', 2, 'sevt_old_2', 'agent.message', '{}');`;

test.each(released.slice(0, -1))(
  "a database in use at step $number, $name, migrated has the schema of a fresh one, and its log goes on",
  async ({ number }) => {
    const pool = database.pool();
    await migrate(pool, released.slice(0, number));
    await pool.query(OLD_ROWS);
    await migrate(pool, released);
    expect(await schemaOf(pool)).toEqual(releasedSchema);
    const events = createEventStore(pool);
    const event = { id: "sevt_new", type: "acme.noted", threadId: "", payload: "{}", internal: undefined };
    const { head } = await events.append({ sessionId: "sesn_old", authority: "client", events: [event] });
    expect(head).toBe(3);
    const { events: log } = await events.read({
      ...{ sessionId: "sesn_old", afterPosition: 0, limit: 10, maxBytes: 10_000 },
      ...{ inlineLimitBytes: 1_000, withInternal: true },
    });
    expect(log.map(({ id, payload }) => [id, payload])).toEqual([
      ["sevt_old_1", '{"2":"b","1":"a"}'],
      ["sevt_old_2", "{}"],
      ["sevt_new", "{}"],
    ]);
    await events.close();
  },
);

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

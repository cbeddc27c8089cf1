/** What the store does must work behind a pooler that gives out server connections per transaction. */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { migrate } from "../../server/store/postgres/migrate.ts";
import { createPool, type Pool } from "../../server/store/postgres/pool.ts";
import { inTransaction } from "../../server/store/postgres/transaction.ts";
import { eventually } from "../kit/eventually.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";

const pgbouncer = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].find((path) => existsSync(path));
const SERVER_CONNECTIONS = 3;

let folder: string;
let database: TestDatabase;
let pooler: ChildProcess;
let pools: Pool[] = [];

beforeAll(async () => {
  if (!pgbouncer) return;
  database = await createTestDatabase({ migrated: false });
  folder = mkdtempSync(join(tmpdir(), "tendon-pooler-"));
  const direct = new URL(database.url.replace("@/", "@socket/"));
  const target = [
    `host=${direct.searchParams.get("host") ?? direct.hostname}`,
    `port=${direct.port || 5432}`,
    `user=${direct.username}`,
    direct.password ? `password=${decodeURIComponent(direct.password)}` : "",
  ].join(" ");
  const settings = [
    `[databases]\n* = ${target}\n[pgbouncer]\npool_mode = transaction\nauth_type = any`,
    `default_pool_size = ${SERVER_CONNECTIONS}\nunix_socket_dir = ${folder}\nlisten_port = 6432\n`,
  ];
  writeFileSync(join(folder, "pgbouncer.ini"), settings.join("\n"), { mode: 0o600 });
  // It refuses to be root; the socket's folder may be root's alone.
  const asOther =
    process.getuid?.() === 0 ? ["unshare", "--user", "--map-user=65534", "--map-group=65534"] : [];
  const [program = "", ...args] = [...asOther, pgbouncer, join(folder, "pgbouncer.ini")];
  pooler = spawn(program, args, { stdio: "ignore" });
  const url = `postgresql://tendon@${direct.pathname}?host=${encodeURIComponent(folder)}&port=6432`;
  pools = Array.from({ length: 10 }, (_, i) => createPool({ url, max: 5, applicationName: `server ${i}` }));
  await eventually(() => pools[0]?.query("select 1"));
});

afterAll(async () => {
  if (!pgbouncer) return;
  await Promise.all(pools.map((pool) => pool.close()));
  const ended = new Promise((resolve) => pooler.once("exit", resolve));
  pooler.kill("SIGTERM");
  await ended;
  await database.drop();
  rmSync(folder, { recursive: true });
});

test.skipIf(!pgbouncer)(
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

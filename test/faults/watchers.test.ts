/** R19: a thousand watchers at two servers cost no database connections of their own, and are told everything, also without hints. */
import { afterEach, beforeEach, expect, test } from "vitest";
import { type Connection, dial } from "../../kit/dial/dial.ts";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { trials } from "../kit/fault-trials.ts";
import { type Platform, startPlatform } from "../kit/platform.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";

const ADMIN_KEY = "the-admin-key-of-servers-that-share-a-database";
const POOL = 5;
const WATCHERS = 1_000;
const ROUNDS = trials(2, 30);
/** A server asks once a second what is new; the rest is for a busy machine. */
const ASKED_WITHIN_MS = 30_000;

let database: TestDatabase;
let servers: Platform[] = [];
const connections: Connection[] = [];

beforeEach(async () => {
  database = await createTestDatabase({ migrated: false });
  for (let n = 0; n < 2; n++) {
    const server = {
      TENDON_DATABASE_URL: database.url,
      TENDON_DATABASE_POOL: String(POOL),
      TENDON_ADMIN_KEY: ADMIN_KEY,
    };
    servers.push(await startPlatform({ programs: [], env: { server } }));
  }
});

afterEach(async () => {
  for (const connection of connections.splice(0)) connection.close();
  for (const server of servers) await server.stop();
  servers = [];
  await database?.drop();
});

function sessionsAt(server: Platform) {
  const connection = dial({ url: server.url, token: () => ADMIN_KEY, proxy: {} });
  connections.push(connection);
  return connection.client(SessionService);
}

/** Runs `task` for each number, so many at once. */
async function each(count: number, atOnce: number, task: (n: number) => Promise<void>): Promise<void> {
  let next = 0;
  await Promise.all(
    Array.from({ length: atOnce }, async () => {
      while (next < count) await task(next++);
    }),
  );
}

const OF_SERVERS = "datname = current_database() and application_name like 'tendon%'";

/** The most connections of both servers that were there at any look, but for those that were killed and are just ending. */
function countConnections(killed: readonly number[]) {
  let most = 0;
  let isOver = false;
  const counting = (async () => {
    while (!isOver) {
      const { rows } = await database
        .pool()
        .query<{ pid: number }>(`select pid from pg_stat_activity where ${OF_SERVERS}`);
      // Those that were killed while the question was on its way are among the killed by now.
      most = Math.max(most, rows.filter(({ pid }) => !killed.includes(pid)).length);
    }
  })();
  return async () => {
    isOver = true;
    await counting;
    return most;
  };
}

test(
  `R19: under ${WATCHERS} watchers two servers have no more connections than their pools; watchers are told also while listeners are killed`,
  async () => {
    const { agent } = await servers[0]!.client(AgentService).createAgent({ spec: { name: "t" } });
    const creating = sessionsAt(servers[0]!);
    const killed: number[] = [];
    const stopCounting = countConnections(killed);
    const sessionIds: string[] = [];
    await each(WATCHERS, 20, async () => {
      const { session } = await creating.createSession({ agentId: agent?.id ?? "" });
      sessionIds.push(session?.id ?? "");
    });
    const told = new Map<string, number>();
    const failed: unknown[] = [];
    /** Each is told again every 10 s how far it is. */
    const watching = new Set<string>();
    const clients = servers.map(sessionsAt);
    for (const [n, sessionId] of sessionIds.entries()) {
      void (async () => {
        for await (const { kind } of clients[n % 2]!.watchEvents({ sessionId })) {
          if (kind.case === "progress" && Number(kind.value.position) === 0) watching.add(sessionId);
          if (kind.case === "event" && Number(kind.value.position) === (told.get(sessionId) ?? 0) + 1)
            told.set(sessionId, Number(kind.value.position));
        }
      })().catch((error: unknown) => failed.push(error));
    }
    await eventually(() => watching.size === WATCHERS, { withinMs: 60_000 });
    for (let round = 1; round <= ROUNDS; round++) {
      // Half of the appends are at the server that does not have the watcher.
      const writers = servers.map(sessionsAt);
      const { rows: listeners } = await database
        .pool()
        .query<{ pid: number }>(
          `select pid from pg_stat_activity where ${OF_SERVERS} and query like 'listen%'`,
        );
      if (round === 1) expect(listeners).toHaveLength(2);
      killed.push(...listeners.map(({ pid }) => pid));
      await database
        .pool()
        .query("select pg_terminate_backend(pid) from unnest($1::integer[]) as pid", [killed]);
      await each(WATCHERS, 60, async (n) => {
        const sessionId = sessionIds[n]!;
        await writers[(n >> 1) % 2]!.emitEvents({ sessionId, events: [{ type: "acme.noted" }] });
      });
      await eventually(
        () => [...told.values()].filter((position) => position === round).length === WATCHERS,
        {
          withinMs: ASKED_WITHIN_MS,
        },
      );
    }
    expect(failed).toEqual([]);
    const most = await stopCounting();
    console.log(`${WATCHERS} watchers, ${ROUNDS} rounds: at most ${most} connections of two servers`);
    expect(most).toBeGreaterThan(2);
    expect(most).toBeLessThanOrEqual(2 * POOL);
  },
  trials(180_000, 600_000),
);

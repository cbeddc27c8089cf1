/**
 * Many writers and readers at two servers while servers, listeners, database connections and the database itself are killed:
 * positions stay dense and in order (L1), acknowledged events are kept and retries get their first positions (L2), and
 * readers get every position once (L4).
 */
import { setTimeout as delay } from "node:timers/promises";
import { afterEach, beforeEach, expect, test } from "vitest";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { trials } from "../kit/fault-trials.ts";
import { expectLogs, follow, type Traffic, tail, write } from "../kit/log-traffic.ts";
import { type OwnPostgres, startOwnPostgres } from "../kit/own-postgres.ts";
import { type Platform, startPlatform } from "../kit/platform.ts";
import { type SeededRandom, seededRandom } from "../kit/seeded-random.ts";
import { startTcpRelay, type TcpRelay } from "../kit/tcp-relay.ts";

const ADMIN_KEY = "the-admin-key-of-servers-that-share-a-database";
const WRITERS = trials(16, 50);
const REQUESTS = trials(25, 100);
const SESSIONS = 5;
const CUTS = trials(100, 1_000);

let postgres: OwnPostgres;
let servers: Platform[] = [];
let over: AbortController;

beforeEach(async () => {
  over = new AbortController();
  postgres = await startOwnPostgres();
  for (let n = 0; n < 2; n++) {
    const server = {
      TENDON_DATABASE_URL: postgres.url,
      TENDON_DATABASE_POOL: "5",
      TENDON_ADMIN_KEY: ADMIN_KEY,
    };
    servers.push(await startPlatform({ programs: [], env: { server } }));
  }
  // Commits take their time, each its own: what was numbered first is not what is visible first.
  await postgres.pool.query(`
    create function delay_commit() returns trigger language plpgsql as
      $body$ begin perform pg_sleep(case when random() < 0.1 then random() * 0.02 else 0 end); return null; end $body$;
    create constraint trigger delay_commit after insert on events deferrable initially deferred
      for each row execute function delay_commit()`);
});

afterEach(async () => {
  over.abort();
  for (const server of servers) await server.stop();
  servers = [];
  await postgres?.stop();
});

/** What is done to them, each with how often relative to the others. */
const ATTACKS: readonly [string, number, (random: SeededRandom) => Promise<void>][] = [
  ["server killed", 3, killServer],
  [
    "connection ended",
    8,
    () => endBackends("application_name like 'tendon server%' and query not like 'listen%'"),
  ],
  ["listener ended", 3, () => endBackends("query like 'listen%'")],
  ["server stopped for a while", 2, freezeServer],
  ["database crashed", 1, crashDatabase],
];

async function killServer(random: SeededRandom): Promise<void> {
  const server = random.pick(servers);
  await server.program("server").end("SIGKILL");
  await server.start("server");
}

async function freezeServer(random: SeededRandom): Promise<void> {
  const { pid } = random.pick(servers).program("server");
  process.kill(pid, "SIGSTOP");
  try {
    await delay(random.between(100, 800));
  } finally {
    process.kill(pid, "SIGCONT");
  }
}

async function endBackends(which: string): Promise<void> {
  await postgres.pool
    .query(
      `select pg_terminate_backend(pid) from (
         select pid from pg_stat_activity where ${which} and pid <> pg_backend_pid() order by random() limit 1) one`,
    )
    .catch(() => {});
}

/** Postgres ends all connections and recovers from its log when one of its processes is killed. */
async function crashDatabase(): Promise<void> {
  const { rows } = await postgres.pool
    .query<{ pid: number }>(
      "select pid from pg_stat_activity where application_name like 'tendon server%' order by random() limit 1",
    )
    .catch(() => ({ rows: [] }));
  if (rows[0] !== undefined) process.kill(rows[0].pid, "SIGKILL");
}

async function attack(random: SeededRandom, isOver: () => boolean): Promise<Map<string, number>> {
  const done = new Map(ATTACKS.map(([name]) => [name, 0]));
  const often = ATTACKS.flatMap((one) => Array.from({ length: one[1] }, () => one));
  // Every kind once, then as it comes.
  const first = [...ATTACKS];
  while (!isOver() || first.length > 0) {
    const [name, , run] = first.shift() ?? random.pick(often);
    await run(random);
    done.set(name, (done.get(name) ?? 0) + 1);
    await delay(random.between(50, 500));
  }
  return done;
}

async function createSessions(): Promise<string[]> {
  const [server] = servers;
  const { agent } = await server!.client(AgentService).createAgent({ spec: { name: "t" } });
  return Promise.all(
    Array.from({ length: SESSIONS }, async () => {
      const { session } = await server!.client(SessionService).createSession({ agentId: agent?.id ?? "" });
      return session?.id ?? "";
    }),
  );
}

async function createTraffic(): Promise<Traffic> {
  return {
    urls: servers.map(({ url }) => url),
    key: ADMIN_KEY,
    sessionIds: await createSessions(),
    requests: [],
    failures: new Map(),
    over: over.signal,
  };
}

/** How many events the session has once all that was asked for is in its log. */
function sizeOf({ requests }: Traffic, sessionId: string): number {
  return requests
    .filter((request) => request.sessionId === sessionId)
    .reduce((sum, { events }) => sum + events.length, 0);
}

test(
  "L1, L2, L4: with servers, connections and the database killed, logs are dense, retries find their place, readers miss nothing",
  async () => {
    const random = seededRandom();
    const traffic = await createTraffic();
    let isWritten = false;
    const writing = Promise.all(
      Array.from({ length: WRITERS }, () => write(traffic, random.fork(), { count: REQUESTS, pauseMs: 40 })),
    ).finally(() => {
      isWritten = true;
    });
    const readers = traffic.sessionIds.flatMap((sessionId) =>
      [follow, follow, tail].map(async (read) => ({
        sessionId,
        seen: await read(
          traffic,
          random.fork(),
          sessionId,
          (seen) => isWritten && seen.length >= sizeOf(traffic, sessionId),
        ),
      })),
    );
    const attacks = attack(random.fork(), () => isWritten);
    const [done, , ...read] = await Promise.all([attacks, writing, ...readers]);
    const logs = await expectLogs(postgres.pool, traffic);
    for (const { sessionId, seen } of read) expect(seen).toEqual(logs.get(sessionId));
    console.log(
      `${traffic.requests.length} requests; ${[...done].map(([name, times]) => `${name} ${times}x`).join(", ")}; unanswered: ${JSON.stringify([...traffic.failures])}`,
    );
    expect(traffic.failures.get("UNAVAILABLE")).toBeGreaterThan(0);
  },
  trials(180_000, 1_800_000),
);

/** Breaks every connection through the relay; counts once somebody has come again. */
async function cutAgainAndAgain(relay: TcpRelay, times: number): Promise<void> {
  await eventually(() => relay.connections > 0);
  for (let cut = 0; cut < times; cut++) {
    const before = relay.connections;
    relay.cut();
    await eventually(() => relay.connections > before);
  }
}

test(
  "R17: over 100 cut connections, with writers at two servers, watchers get every position once and in order",
  async () => {
    const random = seededRandom();
    const traffic = await createTraffic();
    const relays = await Promise.all(servers.map(({ url }) => startTcpRelay(Number(new URL(url).port))));
    const throughRelays = { ...traffic, urls: relays.map(({ port }) => `http://127.0.0.1:${port}`) };
    let isCut = false;
    let isWritten = false;
    const cutting = Promise.all(relays.map((relay) => cutAgainAndAgain(relay, CUTS / relays.length))).finally(
      () => {
        isCut = true;
      },
    );
    const writing = Promise.all(
      Array.from({ length: 6 }, async () => {
        while (!isCut) await write(traffic, random.fork(), { count: 5, pauseMs: 20 });
      }),
    ).finally(() => {
      isWritten = true;
    });
    const readers = traffic.sessionIds.flatMap((sessionId) =>
      [follow, follow].map(async (read) => ({
        sessionId,
        seen: await read(
          throughRelays,
          random.fork(),
          sessionId,
          (seen) => isWritten && seen.length >= sizeOf(traffic, sessionId),
        ),
      })),
    );
    try {
      const [, , ...read] = await Promise.all([cutting, writing, ...readers]);
      const logs = await expectLogs(postgres.pool, traffic);
      for (const { sessionId, seen } of read) expect(seen).toEqual(logs.get(sessionId));
    } finally {
      for (const relay of relays) await relay.close();
    }
  },
  trials(180_000, 600_000),
);

/** R25: what streams by leaves nothing behind but its final events, and purging keeps the tables' size bounded while writes go on. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { afterEach, beforeEach, expect, test } from "vitest";
import { type Connection, dial } from "../../kit/dial/dial.ts";
import { newId } from "../../kit/ids.ts";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import type { LeaseProof } from "../../proto/gen/tendon/v1/event_pb.js";
import { HarnessService, type WorkRequestSchema } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { migrations } from "../../server/store/migrations/index.ts";
import { migrate } from "../../server/store/postgres/migrate.ts";
import { eventually } from "../kit/eventually.ts";
import { trials } from "../kit/fault-trials.ts";
import { type OwnPostgres, startOwnPostgres } from "../kit/own-postgres.ts";
import { type Platform, startPlatform } from "../kit/platform.ts";
import { createWorld, type SessionReplica, startReplica } from "../kit/session-rig.ts";

let postgres: OwnPostgres;
const cleanups: (() => Promise<void> | void)[] = [];

beforeEach(async () => {
  // Postgres' own cleaning, as in production but without the minute between its rounds.
  postgres = await startOwnPostgres({ autovacuum_naptime: "1s" });
});
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
  await postgres?.stop();
});

/** Rows of every table. */
async function rowCounts(): Promise<Map<string, number>> {
  const { rows } = await postgres.pool.query<{ name: string }>(
    "select relname as name from pg_stat_user_tables order by 1",
  );
  const counts = new Map<string, number>();
  for (const { name } of rows) {
    const counted = await postgres.pool.query<{ n: number }>(`select count(*) as n from ${name}`);
    counts.set(name, counted.rows[0]!.n);
  }
  return counts;
}

async function rssBytes(platform: Platform): Promise<number> {
  const status = await readFile(`/proc/${platform.program("server").pid}/status`, "utf8");
  return Number(/VmRSS:\s+(\d+) kB/.exec(status)?.[1]) * 1024;
}

/** A harness that holds one session and sends what it is told, no faster than the server takes it. */
async function holdSession(connection: Connection, sessionId: () => Promise<string>) {
  const call = connection.client(HarnessService).work();
  const send = (kind: MessageInitShape<typeof WorkRequestSchema>["kind"]) => call.send({ kind: kind! });
  await send({
    case: "hello",
    value: {
      instanceId: newId("harness"),
      protocolVersion: 1,
      build: "test",
      loops: ["claude"],
      capacity: 1,
    },
  });
  const responses = call.responses[Symbol.asyncIterator]();
  await responses.next();
  const held = await sessionId();
  for (;;) {
    const { value } = await responses.next();
    if (value?.kind.case !== "assignment") continue;
    expect(value.kind.value.session?.id).toBe(held);
    // What else the server says is read and let go of.
    const reading = (async () => {
      while (!(await responses.next()).done);
    })().catch(() => {});
    cleanups.push(async () => {
      call.cancel();
      await reading;
    });
    return { lease: value.kind.value.lease as LeaseProof, send };
  }
}

const SECONDS = 3_600;
const DELTAS_PER_SECOND = trials(10, 1_000);
const MESSAGES = 60;
const DELTAS_AT_ONCE = 100;

test(
  `R25: an hour of ${DELTAS_PER_SECOND} deltas a second leaves one row for each final message, and nothing else`,
  async () => {
    const server = { TENDON_DATABASE_URL: postgres.url, TENDON_DATABASE_POOL: "5" };
    const platform = await startPlatform({ programs: [], env: { server } });
    cleanups.push(() => platform.stop());
    const sessions = platform.client(SessionService);
    const { agent } = await platform.client(AgentService).createAgent({ spec: { name: "t" } });
    const key = (await readFile(join(platform.dataDir, "harness.key"), "utf8")).trim();
    const connection = dial({ url: platform.url, token: () => key, proxy: {} });
    cleanups.push(() => connection.close());
    let sessionId = "";
    const { lease, send } = await holdSession(connection, async () => {
      const payload = '{"content":[{"type":"text","text":"go"}]}';
      const { session } = await sessions.createSession({
        agentId: agent!.id,
        initialEvents: [{ type: "user.message", payload }],
      });
      sessionId = session!.id;
      return sessionId;
    });
    const told = { previews: 0, messages: 0, progress: 0 };
    const watching = sessions.watchEvents({ sessionId, afterPosition: -1n, previews: true });
    const watched = (async () => {
      for await (const { kind } of watching) {
        if (kind.case === "preview") told.previews += 1;
        if (kind.case === "event") told.messages += 1;
        if (kind.case === "progress") told.progress += 1;
      }
    })().catch(() => {});
    cleanups.push(async () => {
      watching.cancel();
      await watched;
    });
    // It watches by now, and is told all that comes.
    await eventually(() => told.progress > 0);
    const before = await rowCounts();
    const rssBefore = await rssBytes(platform);

    const brain = connection.client(SessionService);
    for (let message = 0; message < MESSAGES; message++) {
      const eventId = newId("event");
      const text = "token ";
      const preview = { kind: { case: "text" as const, value: { eventId, index: 0, text } } };
      const previews = Array.from({ length: DELTAS_AT_ONCE }, () => preview);
      for (let sent = 0; sent < (SECONDS * DELTAS_PER_SECOND) / MESSAGES; sent += DELTAS_AT_ONCE) {
        await send({ case: "previews", value: { lease, sessionId, previews } });
      }
      await brain.emitEvents({
        sessionId,
        lease,
        events: [{ id: eventId, type: "agent.message", payload: "{}" }],
      });
    }
    await eventually(() => told.messages === MESSAGES);

    const grown = [...(await rowCounts())].filter(([name, rows]) => rows !== before.get(name));
    expect(grown).toEqual([["events", before.get("events")! + MESSAGES]]);
    expect(told.previews).toBeGreaterThan(MESSAGES);
    const rssGrown = Math.round(((await rssBytes(platform)) - rssBefore) / 1024 / 1024);
    console.log(
      `${SECONDS * DELTAS_PER_SECOND} deltas: ${MESSAGES} rows, ${told.previews} previews seen, the server grew by ${rssGrown} MiB`,
    );
    expect(rssGrown).toBeLessThan(150);
  },
  trials(180_000, 1_200_000),
);

const GENERATIONS = trials(6, 60);
const SESSIONS = trials(10, 30);
const EVENTS = 200;
const WRITERS = 8;

/** A generation of sessions, each written through the contract by writers of its own. */
async function writeGeneration(
  replica: SessionReplica,
  newSession: () => Promise<string>,
  workspaceId: string,
) {
  const client = replica.client({ kind: "client", keyId: "apikey_1", workspaceId });
  const sessionIds = await Promise.all(Array.from({ length: SESSIONS }, newSession));
  const payload = JSON.stringify({ text: "x".repeat(500) });
  let left = (SESSIONS * EVENTS) / 10;
  await Promise.all(
    Array.from({ length: WRITERS }, async () => {
      while (left > 0) {
        left -= 1;
        const events = Array.from({ length: 10 }, () => ({ type: "acme.noted", payload }));
        await client.emitEvents({ sessionId: sessionIds[left % SESSIONS]!, events });
      }
    }),
  );
  return sessionIds;
}

async function vacuumsOfEvents(): Promise<number> {
  const { rows } = await postgres.pool.query<{ n: number }>(
    "select autovacuum_count as n from pg_stat_user_tables where relname = 'events'",
  );
  return rows[0]!.n;
}

async function bytesOfTables(): Promise<number> {
  const { rows } = await postgres.pool.query<{ bytes: number }>(
    "select sum(pg_total_relation_size(relid))::bigint as bytes from pg_stat_user_tables",
  );
  return rows[0]!.bytes;
}

test(
  "R25: generation after generation of sessions is purged while the next is written; the tables stop growing",
  async () => {
    await migrate(postgres.pool, migrations);
    const world = await createWorld(postgres.pool);
    const { workspaceId } = world;
    const replica = await startReplica({ url: postgres.url, world });
    cleanups.push(() => replica.stop());
    await postgres.pool.query("update workspaces set limits = $2 where workspace_id = $1", [
      workspaceId,
      '{"retentionDays":1}',
    ]);
    const sizes: number[] = [];
    let old: string[] = [];
    for (let generation = 0; generation < GENERATIONS; generation++) {
      const vacuums = await vacuumsOfEvents();
      await postgres.pool.query(
        "update sessions set created_at = now() - interval '3 days', updated_at = now() - interval '2 days' where session_id = any($1)",
        [old],
      );
      const purging = (async () => {
        const isThere = "select 1 from sessions where session_id = any($1)";
        while ((await postgres.pool.query(isThere, [old])).rows.length > 0)
          await replica.area.retention.round();
      })();
      [old] = await Promise.all([writeGeneration(replica, () => world.newSession(), workspaceId), purging]);
      if (generation > 0) {
        // A busy machine may keep Postgres from it for longer than a generation takes.
        await eventually(async () => (await vacuumsOfEvents()) > vacuums, { withinMs: 60_000, everyMs: 100 });
      }
      sizes.push(await bytesOfTables());
    }
    const { rows } = await postgres.pool.query<{ n: number }>("select count(*) as n from events");
    expect(rows[0]!.n).toBe(SESSIONS * EVENTS);
    const mib = sizes.map((bytes) => Math.round(bytes / 1024 / 1024));
    console.log(
      `${GENERATIONS} generations of ${SESSIONS * EVENTS} events; MiB after each: ${mib.join(" ")}`,
    );
    // What all of them together would need is far more than what a few that overlap do.
    const half = Math.floor(GENERATIONS / 2);
    expect(Math.max(...sizes.slice(half))).toBeLessThan(1.5 * Math.max(...sizes.slice(0, half)));
    expect(Math.max(...sizes)).toBeLessThan((GENERATIONS / 2) * sizes[0]!);
  },
  trials(180_000, 1_200_000),
);

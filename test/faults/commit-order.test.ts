/**
 * R18, L1: 50 writers whose commits take their time, each its own, so that what is numbered first is not visible first.
 * A reader that tails the log by position misses nothing. Beside it, in the same run, a table that is numbered by a
 * sequence loses events to such a reader: the delays are ones that hurt.
 */
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import type { EventStore, NewEvent } from "../../server/store/events.ts";
import { createEventStore } from "../../server/store/postgres/events.ts";
import { createPool, type Pool } from "../../server/store/postgres/pool.ts";
import { trials } from "../kit/fault-trials.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { type SeededRandom, seededRandom } from "../kit/seeded-random.ts";
import { createWorld, type SessionReplica, type SessionWorld, startReplica } from "../kit/session-rig.ts";

const WRITERS = 50;
const APPENDS = trials(6, 200);
const SESSIONS = 3;
/** Writers are spread over so many replicas: within one, group commit would leave little to chance. */
const STORES = 10;

let database: TestDatabase;
let world: SessionWorld;
let pools: Pool[] = [];
let stores: EventStore[] = [];
const replicas: SessionReplica[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  world = await createWorld(database.pool());
  pools = Array.from({ length: STORES }, (_, n) =>
    createPool({ url: database.url, max: 4, applicationName: `writer ${n}` }),
  );
  stores = pools.map((pool) => createEventStore(pool));
  for (const listens of [true, false])
    replicas.push(await startReplica({ url: database.url, world, listens }));
  await database.pool().query(`
    create table numbered (id bigserial primary key);
    create function delay_commit() returns trigger language plpgsql as
      $body$ begin perform pg_sleep(random() * random() * 0.03); return null; end $body$;
    create constraint trigger delay_commit after insert on events deferrable initially deferred
      for each row execute function delay_commit();
    create constraint trigger delay_commit after insert on numbered deferrable initially deferred
      for each row execute function delay_commit()`);
});

afterAll(async () => {
  for (const replica of replicas) await replica.stop();
  for (const store of stores) await store.close();
  for (const pool of pools) await pool.close();
  await database?.drop();
});

const END = "acme.ended";
const event = (type = "acme.noted") => ({
  id: newId("event"),
  type,
  threadId: "",
  payload: "{}",
  internal: undefined,
});

/** Ids by position, of what the writers were told; at the end each session gets one event more. */
async function writeAll(sessionIds: readonly string[], random: SeededRandom): Promise<Map<string, string[]>> {
  const acknowledged = new Map<string, string[]>(sessionIds.map((sessionId) => [sessionId, [""]]));
  const append = async (writer: number, sessionId: string, events: NewEvent[]) => {
    const store = stores[writer % STORES]!;
    const { receipts } = await store.append({ sessionId, authority: "client", events });
    const list = acknowledged.get(sessionId)!;
    for (const { id, position } of receipts) {
      expect(list[position]).toBeUndefined();
      list[position] = id;
    }
  };
  await Promise.all(
    Array.from({ length: WRITERS }, async (_, writer) => {
      const mine = random.fork();
      for (let n = 0; n < APPENDS; n++) {
        const events = Array.from({ length: mine.between(1, 2) }, () => event());
        await append(writer, mine.pick(sessionIds), events);
        if (mine.chance(0.3)) await delay(mine.between(0, 5));
      }
    }),
  );
  for (const sessionId of sessionIds) await append(0, sessionId, [event(END)]);
  return acknowledged;
}

/** Reads on by position, with a statement each time, until the last event. */
async function tail(store: EventStore, sessionId: string): Promise<string[]> {
  const seen = [""];
  for (;;) {
    const { events } = await store.read({
      sessionId,
      afterPosition: seen.length - 1,
      limit: 1_000,
      maxBytes: 10_000_000,
      inlineLimitBytes: 1_000,
      withInternal: false,
    });
    for (const { id, position, type } of events) {
      expect(position).toBe(seen.length);
      seen.push(id);
      if (type === END) return seen;
    }
  }
}

async function watch(replica: SessionReplica, sessionId: string): Promise<string[]> {
  const seen = [""];
  const client = replica.client({ kind: "client", keyId: "apikey_1", workspaceId: world.workspaceId });
  for await (const { kind } of client.watchEvents({ sessionId })) {
    if (kind.case !== "event") continue;
    expect(Number(kind.value.position)).toBe(seen.length);
    seen.push(kind.value.id);
    if (kind.value.type === END) break;
  }
  return seen;
}

/** How many rows a reader misses that asks for what is above the highest number that it has seen. */
async function missedInSequence(): Promise<number> {
  const pool = database.pool();
  let isWritten = false;
  let last = 0;
  let seen = 0;
  const reader = (async () => {
    for (;;) {
      const wasWritten = isWritten;
      const { rows } = await pool.query<{ id: number }>("select id from numbered where id > $1 order by id", [
        last,
      ]);
      seen += rows.length;
      last = rows.at(-1)?.id ?? last;
      if (rows.length === 0 && wasWritten) return;
    }
  })();
  await Promise.all(
    Array.from({ length: WRITERS }, async (_, writer) => {
      for (let n = 0; n < 10; n++) await pools[writer % STORES]!.query("insert into numbered default values");
    }),
  );
  isWritten = true;
  await reader;
  return WRITERS * 10 - seen;
}

test(
  "R18: 50 writers with random commit delays; whoever tails the log by position or watches it misses nothing",
  async () => {
    const random = seededRandom();
    const sessionIds = await Promise.all(Array.from({ length: SESSIONS }, () => world.newSession()));
    const reading = sessionIds.map(async (sessionId) => ({
      sessionId,
      logs: await Promise.all([
        tail(stores[0]!, sessionId),
        ...replicas.map((replica) => watch(replica, sessionId)),
      ]),
    }));
    const [acknowledged, ...read] = await Promise.all([writeAll(sessionIds, random), ...reading]);
    for (const { sessionId, logs } of read)
      for (const seen of logs) expect(seen).toEqual(acknowledged.get(sessionId));
    expect(await missedInSequence()).toBeGreaterThan(0);
  },
  trials(180_000, 600_000),
);

import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { NEW_CHAIN } from "../../kit/chain/event-hash.ts";
import { isTendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import type { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { createBlobStore } from "../../server/store/postgres/blobs.ts";
import { createLeaseStore } from "../../server/store/postgres/leases.ts";
import { createLogCopyStore } from "../../server/store/postgres/log-copies.ts";
import { createRetentionStore } from "../../server/store/postgres/retention.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { promised } from "../kit/promised.ts";
import { createWorld, type SessionReplica, type SessionWorld, startReplica } from "../kit/session-rig.ts";

let database: TestDatabase;
let world: SessionWorld;
let replica: SessionReplica;
let second: SessionReplica;
let client: Client<typeof SessionService>;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database?.drop());

beforeEach(async () => {
  await replica?.stop();
  await second?.stop();
  world = await createWorld(database.pool());
  replica = await startReplica({ url: database.url, world });
  second = await startReplica({ url: database.url, world });
  client = replica.client({ kind: "client", keyId: "apikey_1", workspaceId: world.workspaceId });
});
afterAll(async () => {
  await replica?.stop();
  await second?.stop();
});

const keepFor = (days: number) =>
  database
    .pool()
    .query("update workspaces set limits = $2 where workspace_id = $1", [
      world.workspaceId,
      JSON.stringify({ retentionDays: days }),
    ]);

/** A session that changed for the last time so many days ago. */
async function aged(days: number, more: { archived?: boolean; hasWork?: boolean; events?: number } = {}) {
  const sessionId = await world.newSession();
  const { events = 3 } = more;
  await client.emitEvents({
    sessionId,
    events: Array.from({ length: events }, (_, n) => ({ type: "acme.noted", payload: `{"n":${n}}` })),
  });
  if (more.hasWork)
    await client.emitEvents({
      sessionId,
      events: [{ type: "user.message", payload: '{"content":[{"type":"text","text":"x"}]}' }],
    });
  if (more.archived) await client.archiveSession({ sessionId });
  await database.pool().query(
    `update sessions set created_at = created_at - $2 * interval '1 day', updated_at = updated_at - $2 * interval '1 day',
       archived_at = archived_at - $2 * interval '1 day' where session_id = $1`,
    [sessionId, days],
  );
  return sessionId;
}

async function exists(sessionId: string): Promise<boolean> {
  const { rows } = await database.pool().query("select 1 from sessions where session_id = $1", [sessionId]);
  return rows.length > 0;
}

/** Rows of any table that name one of these sessions. */
async function traces(sessionIds: string[]): Promise<Record<string, number>> {
  const { rows } = await database.pool().query<{ name: string; n: number }>(
    `select 'sessions' as name, count(*) as n from sessions where session_id = any($1)
     union all select 'events', count(*) from events where session_id = any($1)
     union all select 'consumed_inputs', count(*) from consumed_inputs where session_id = any($1)
     union all select 'session_slots', count(*) from session_slots where session_id = any($1)
     union all select 'executions', count(*) from executions where session_id = any($1)
     union all select 'hands', count(*) from hands where session_id = any($1)
     union all select 'unfinished_logs', count(*) from unfinished_logs where session_id = any($1)
     union all select 'blob_references', count(*) from blob_references where owner = any($1)`,
    [sessionIds],
  );
  return Object.fromEntries(rows.filter(({ n }) => n > 0).map(({ name, n }) => [name, n]));
}

describe("deletion", () => {
  test("erases all of a session: events, consumed inputs, executions, slots and references to stored bytes", async () => {
    const pool = database.pool();
    const blobs = createBlobStore(pool);
    const { workspaceId } = world;
    const sessionId = await aged(0, { events: 250 });
    const { sha256 } = await blobs.write({
      workspaceId,
      owner: sessionId,
      bytes: [Buffer.from("abc")],
      maxBytes: 9,
    });
    await pool.query("insert into tool_lists (digest, tools) values ('d', '[]') on conflict do nothing");
    await pool.query("insert into session_slots (session_id, slot, tools_digest) values ($1, '', 'd')", [
      sessionId,
    ]);
    await pool.query(
      "insert into consumed_inputs (session_id, event_id, position) values ($1, 'sevt_1', 1)",
      [sessionId],
    );
    await pool.query(
      `insert into executions (execution_key, workspace_id, session_id, execution_id, name, input, input_hash, timeout_ms, finished_at, result)
         values ($1 || '/x', $2, $1, 'x', 'bash', '{}', '\\x00', 1, now(), '{}')`,
      [sessionId, workspaceId],
    );
    expect(Object.keys(await traces([sessionId])).sort()).toEqual([
      ...["blob_references", "consumed_inputs", "events", "executions", "session_slots", "sessions"],
    ]);
    await client.deleteSession({ sessionId });
    expect(await traces([sessionId])).toEqual({});
    expect(await blobs.find(workspaceId, sha256)).toBeUndefined();
    expect(replica.released).toContain(sessionId);
  });

  test("a log of many batches is gone when the call returns, and writers of other sessions are not held up", async () => {
    // The database expects every log to be short: whatever it makes of that, a long one does not take its length squared.
    const short = await Promise.all(Array.from({ length: 20 }, () => world.newSession()));
    await database.pool().query(
      `insert into events (session_id, position, event_id, type, payload)
         select s, n, 'sevt_' || n, 'acme.noted', '{}' from unnest($1::text[]) s, generate_series(1, 3) n`,
      [short],
    );
    await database.pool().query("analyze events");
    const sessionId = await world.newSession();
    await database.pool().query(
      `insert into events (session_id, position, event_id, type, payload)
         select $1, n, 'sevt_' || n, 'acme.noted', '{}' from generate_series(1, 20000) n`,
      [sessionId],
    );
    await database.pool().query("update sessions set head = 20000 where session_id = $1", [sessionId]);
    const other = await world.newSession();
    let deleted = false;
    const deleting = client.deleteSession({ sessionId }).finally(() => {
      deleted = true;
    });
    let slowestMs = 0;
    while (!deleted) {
      const begun = performance.now();
      await client.emitEvents({ sessionId: other, events: [{ type: "acme.noted" }] });
      slowestMs = Math.max(slowestMs, performance.now() - begun);
    }
    await deleting;
    expect(slowestMs).toBeLessThan(promised(2_000));
    expect(await traces([sessionId])).toEqual({});
  });

  test("a server that dies between the session and its events leaves them to the next round of any replica", async () => {
    const sessionId = await aged(0, { archived: true, events: 200 });
    const pool = database.pool();
    await pool.query("delete from sessions where session_id = $1", [sessionId]);
    await pool.query(
      "insert into unfinished_logs (session_id, erasing, touched_at) values ($1, true, now() - interval '2 hours')",
      [sessionId],
    );
    await second.area.retention.round();
    expect(await traces([sessionId])).toEqual({});
  });
});

describe("copies that nobody finishes", () => {
  test("are erased by any replica once they were left alone for an hour, and whoever comes back then is refused", async () => {
    const copies = createLogCopyStore(database.pool());
    const [left, young] = [newId("session"), newId("session")];
    const eventsOf = (first: number) =>
      Array.from({ length: 10 }, (_, n) => ({
        id: newId("event"),
        position: first + n,
        type: "acme.noted",
        threadId: "",
        createdAt: new Date(),
        payload: "{}",
        internal: undefined,
        answers: undefined,
      }));
    for (const sessionId of [left, young]) {
      await copies.begin({ sessionId, workspaceId: world.workspaceId, origin: NEW_CHAIN });
      expect(await copies.add(sessionId, eventsOf(1))).toBeUndefined();
    }
    await database
      .pool()
      .query("update unfinished_logs set touched_at = now() - interval '61 minutes' where session_id = $1", [
        left,
      ]);
    await second.area.retention.round();
    expect(await traces([left])).toEqual({});
    const refused = await copies.add(left, eventsOf(11)).catch((error: unknown) => error);
    expect(isTendonError(refused, "UNAVAILABLE")).toBe(true);
    expect(await traces([left])).toEqual({});
    expect(await copies.add(young, eventsOf(11))).toBeUndefined();
    await copies.discard(young);
    expect(await traces([young])).toEqual({});
  });
});

describe("retention (L3)", () => {
  test("sessions that ended longer ago than their workspace keeps them are erased, all others stay", async () => {
    await keepFor(30);
    const gone = [await aged(31), await aged(40, { archived: true })];
    const held = await aged(31, { hasWork: true });
    await createLeaseStore(replica.pool).acquire({
      sessionId: held,
      leaseId: newId("lease"),
      harnessId: newId("harness"),
      replicaId: replica.replicaId,
      ttlMs: 30_000,
    });
    const kept = [
      await aged(29),
      await aged(29, { archived: true }),
      await aged(31, { hasWork: true }),
      held,
    ];
    const justArchived = await aged(31);
    await client.archiveSession({ sessionId: justArchived });
    const elsewhere = await createWorld(database.pool());
    const foreign = await elsewhere.newSession();
    await database
      .pool()
      .query("update sessions set created_at = 'epoch', updated_at = 'epoch' where session_id = $1", [
        foreign,
      ]);
    await replica.area.retention.round();
    expect(await traces(gone)).toEqual({});
    for (const sessionId of [...kept, justArchived, foreign]) expect(await exists(sessionId)).toBe(true);
    // Hands of what goes are given back before; those of nobody else.
    expect(replica.released).toEqual(expect.arrayContaining(gone));
    expect(replica.released).not.toContain(kept[0]);
    await keepFor(0);
    await replica.area.retention.round();
    expect(await exists(justArchived)).toBe(true);
  });

  test("whoever comes to a session that retention has found is told that it is over, and a watcher's stream ends", async () => {
    await keepFor(1);
    const sessionId = await aged(2);
    const watch = client.watchEvents({ sessionId })[Symbol.asyncIterator]();
    // Once it has been told something, it is there.
    await watch.next();
    const watching = (async () => {
      while (!(await watch.next()).done);
    })();
    await expect.poll(() => createRetentionStore(database.pool()).expire(10)).toEqual([sessionId]);
    const refused = await client
      .emitEvents({ sessionId, events: [{ type: "acme.noted" }] })
      .catch((error: unknown) => error);
    expect(isTendonError(refused, "SESSION_ARCHIVED")).toBe(true);
    // A replica that dies here leaves it to the next round.
    await second.area.retention.round();
    await watching;
    expect(await traces([sessionId])).toEqual({});
  });

  test("replicas share the work: no session is taken by two at once, and all go", async () => {
    await keepFor(1);
    const gone = await Promise.all(Array.from({ length: 50 }, () => aged(2)));
    await Promise.all([replica.area.retention.round(), second.area.retention.round()]);
    await replica.area.retention.round();
    expect(await traces(gone)).toEqual({});
  });

  test("an age that no calendar holds keeps everything", async () => {
    await keepFor(2_147_483_647);
    const sessionId = await aged(1_000);
    await replica.area.retention.round();
    expect(await exists(sessionId)).toBe(true);
  });

  test("tables stay bounded and writes go on while old sessions are purged (R25)", async () => {
    await keepFor(1);
    const pool = database.pool();
    const sizeOf = async () => {
      await pool.query("vacuum events");
      const { rows } = await pool.query<{ bytes: number }>(
        "select pg_total_relation_size('events') as bytes",
      );
      return rows[0]!.bytes;
    };
    const live = await world.newSession();
    let writing = true;
    let written = 0;
    const writer = (async () => {
      while (writing) {
        await client.emitEvents({ sessionId: live, events: [{ type: "acme.noted" }] });
        written += 1;
      }
    })();
    const sizes: number[] = [];
    let writtenMeanwhile = 0;
    for (let generation = 0; generation < 5; generation++) {
      for (let n = 0; n < 10; n++) {
        const sessionId = await world.newSession();
        await pool.query(
          `insert into events (session_id, position, event_id, type, payload)
             select $1, n, 'sevt_' || n, 'agent.message', '{"text":"' || repeat('x', 500) || '"}' from generate_series(1, 500) n`,
          [sessionId],
        );
        await pool.query(
          "update sessions set head = 500, created_at = now() - interval '3 days', updated_at = now() - interval '2 days' where session_id = $1",
          [sessionId],
        );
      }
      const before = written;
      await replica.area.retention.round();
      writtenMeanwhile += written - before;
      sizes.push(await sizeOf());
    }
    writing = false;
    await writer;
    // In one of the rounds at least: a short one may lie between two writes.
    expect(writtenMeanwhile).toBeGreaterThan(0);
    const { rows } = await pool.query<{ n: number }>(
      "select count(*) as n from events where session_id = $1",
      [live],
    );
    expect(rows[0]!.n).toBe(written);
    // The space of the first generations serves the later ones.
    expect(sizes.at(-1)!).toBeLessThan(sizes[1]! * 1.5);
  });
});

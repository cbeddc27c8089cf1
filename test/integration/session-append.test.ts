import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { isTendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { AppendRequest, EventStore, NewEvent } from "../../server/store/events.ts";
import { appendWithin } from "../../server/store/postgres/append-within.ts";
import { createEventStore } from "../../server/store/postgres/events.ts";
import { createLeaseStore } from "../../server/store/postgres/leases.ts";
import { createPool, type Pool } from "../../server/store/postgres/pool.ts";
import { createReplicaStore } from "../../server/store/postgres/replicas.ts";
import { createSessionStore } from "../../server/store/postgres/sessions.ts";
import { inTransaction } from "../../server/store/postgres/transaction.ts";
import { failure } from "../kit/failure.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { createWorld, type SessionWorld } from "../kit/session-rig.ts";

let database: TestDatabase;
let pool: Pool;
let world: SessionWorld;
let events: EventStore;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = database.pool();
  world = await createWorld(pool);
  events = createEventStore(pool);
});

afterAll(async () => {
  await events?.close();
  await database?.drop();
});

const event = (type = "acme.noted", payload: object = {}, over: Partial<NewEvent> = {}): NewEvent => ({
  id: newId("event"),
  type,
  threadId: "",
  payload: JSON.stringify(payload),
  internal: undefined,
  ...over,
});

const client = (sessionId: string, ...list: NewEvent[]): AppendRequest => ({
  sessionId,
  events: list,
  authority: "client",
});
const server = (sessionId: string, ...list: NewEvent[]): AppendRequest => ({
  ...client(sessionId, ...list),
  authority: "server",
});

const row = async (sessionId: string) =>
  (await pool.query<Record<string, unknown>>("select * from sessions where session_id = $1", [sessionId]))
    .rows[0]!;

const all = (sessionId: string, store = events) =>
  store.read({
    sessionId,
    afterPosition: 0,
    limit: 10_000,
    maxBytes: 100_000_000,
    inlineLimitBytes: 1_000_000,
    withInternal: true,
  });

async function lease(sessionId: string) {
  await pool.query("update sessions set lease_id = null where session_id = $1", [sessionId]);
  await events.append(client(sessionId, event("user.message")));
  const taken = await createLeaseStore(pool).acquire({
    sessionId,
    leaseId: newId("lease"),
    harnessId: newId("harness"),
    replicaId: newId("replica"),
    ttlMs: 30_000,
  });
  return { leaseId: taken!.leaseId, epoch: taken!.epoch };
}

describe("positions", () => {
  test("L1: with many writers over two stores they are dense, and a reader never finds an older one later", async () => {
    const otherPool = createPool({ url: database.url, max: 6, applicationName: "other replica" });
    const stores = [events, createEventStore(otherPool)];
    const sessionIds = await Promise.all([1, 2, 3].map(() => world.newSession()));
    let writing = true;
    const read = async (sessionId: string) => {
      let seen = 0;
      while (writing) {
        const slice = await events.read({
          sessionId,
          afterPosition: 0,
          limit: 10_000,
          maxBytes: 100_000_000,
          inlineLimitBytes: 100,
          withInternal: false,
        });
        const positions = slice.events.map(({ position }) => position);
        expect(positions).toEqual(Array.from({ length: positions.length }, (_, index) => index + 1));
        expect(positions.length).toBeGreaterThanOrEqual(seen);
        seen = positions.length;
      }
    };
    const readers = sessionIds.map(read);
    const acknowledged = new Map<string, number>();
    const write = async (writer: number) => {
      for (let n = 0; n < 12; n++) {
        const sessionId = sessionIds[(writer + n) % sessionIds.length]!;
        const list = Array.from({ length: 1 + (n % 3) }, () => event("acme.noted", { writer, n }));
        const store = stores[writer % 2]!;
        const { receipts } = await store.append(client(sessionId, ...list));
        // A retry, as after a lost answer, from any replica.
        if (n % 4 === 0) {
          const again = await stores[(writer + 1) % 2]!.append(client(sessionId, ...list));
          expect(again.receipts.map(({ position }) => position)).toEqual(
            receipts.map(({ position }) => position),
          );
          expect(again.receipts.every(({ duplicate }) => duplicate)).toBe(true);
        }
        for (const receipt of receipts) acknowledged.set(receipt.id, receipt.position);
        if (n % 5 === 0) await delay(Math.random() * 3);
      }
    };
    await Promise.all(Array.from({ length: 24 }, (_, writer) => write(writer)));
    writing = false;
    await Promise.all(readers);
    for (const sessionId of sessionIds) {
      const { events: list } = await all(sessionId);
      expect(list.map(({ position }) => position)).toEqual(list.map((_, index) => index + 1));
      expect((await row(sessionId)).head).toBe(list.length);
      const times = list.map(({ createdAt }) => createdAt.getTime());
      expect(times).toEqual([...times].sort((a, b) => a - b));
      for (const { id, position } of list) {
        expect(acknowledged.get(id)).toBe(position);
        acknowledged.delete(id);
      }
    }
    expect(acknowledged.size).toBe(0);
    await stores[1]!.close();
    await otherPool.close();
  });

  test("R18: of 50 writers that expect the same position exactly one succeeds, the others learn the head", async () => {
    const sessionId = await world.newSession();
    for (let round = 0; round < 5; round++) {
      const outcomes = await Promise.allSettled(
        Array.from({ length: 50 }, () =>
          events.append({ ...client(sessionId, event()), expectedPosition: BigInt(round) }),
        ),
      );
      expect(outcomes.filter(({ status }) => status === "fulfilled")).toHaveLength(1);
      for (const outcome of outcomes) {
        if (outcome.status === "fulfilled") continue;
        expect(outcome.reason).toMatchObject({
          reason: "POSITION_MISMATCH",
          metadata: { head: `${round + 1}` },
        });
      }
    }
    expect((await all(sessionId)).events).toHaveLength(5);
  });

  test("R18: 50 writers that try again with the head they were told all get through", async () => {
    const sessionId = await world.newSession();
    const write = async () => {
      let expected = 0n;
      const mine = event();
      for (;;) {
        try {
          return await events.append({ ...client(sessionId, mine), expectedPosition: expected });
        } catch (error) {
          if (!isTendonError(error, "POSITION_MISMATCH")) throw error;
          expected = BigInt(error.metadata.head!);
        }
      }
    };
    const answers = await Promise.all(Array.from({ length: 50 }, write));
    const positions = answers.map(({ receipts }) => receipts[0]!.position).sort((a, b) => a - b);
    expect(positions).toEqual(Array.from({ length: 50 }, (_, index) => index + 1));
  });

  test("two stores that batch {A,B} and {B,A} get in each other's way without a deadlock", async () => {
    const [a, b] = [await world.newSession(), await world.newSession()];
    const otherPool = createPool({ url: database.url, max: 6, applicationName: "other replica" });
    const other = createEventStore(otherPool);
    const rounds = 60;
    await Promise.all(
      Array.from({ length: rounds }, async () => {
        await Promise.all([
          events.append(client(a, event())),
          events.append(client(b, event())),
          other.append(client(b, event())),
          other.append(client(a, event())),
        ]);
      }),
    );
    for (const sessionId of [a, b]) expect((await row(sessionId)).head).toBe(2 * rounds);
    await other.close();
    await otherPool.close();
  });

  test("a session that is locked elsewhere holds up no other, and gets its turn when the lock goes", async () => {
    const [locked, free] = [await world.newSession(), await world.newSession()];
    let waiting: Promise<unknown> | undefined;
    let done = false;
    await inTransaction(pool, async (transaction) => {
      await transaction.query("select 1 from sessions where session_id = $1 for no key update", [locked]);
      waiting = events.append(client(locked, event())).then((value) => {
        done = true;
        return value;
      });
      for (let n = 0; n < 40; n++) await events.append(client(free, event()));
      expect(done).toBe(false);
    });
    expect(await waiting).toMatchObject({ head: 1 });
  });
});

describe("retries", () => {
  test("L2: the same id with the same content gets its first position, even after archiving and fencing", async () => {
    const sessionId = await world.newSession();
    const brain = await lease(sessionId);
    const [first, second] = [event("agent.message", { a: 1 }, { internal: "[1]" }), event("agent.message")];
    const request: AppendRequest = { sessionId, events: [first, second], authority: "brain", lease: brain };
    const answer = await events.append(request);
    expect(answer.receipts.map(({ duplicate }) => duplicate)).toEqual([false, false]);
    await lease(sessionId);
    await createSessionStore(pool).archive({ sessionId, interrupt: true, openCallText: "over" });
    const again = await events.append(request);
    expect(again.receipts).toEqual(answer.receipts.map((receipt) => ({ ...receipt, duplicate: true })));
    expect(again.added).toEqual([]);
    expect(await failure(events.append({ ...request, events: [event("agent.message")] }))).toMatchObject({
      reason: "LEASE_FENCED",
      metadata: { epoch: "2" },
    });
  });

  test.each<[string, Partial<NewEvent>]>([
    ["type", { type: "acme.other" }],
    ["thread", { threadId: newId("thread") }],
    ["payload, if only by a blank", { payload: '{"a": 1}' }],
    ["internal", { internal: "{}" }],
  ])("L2: the same id with another %s is refused and changes nothing", async (_, over) => {
    const sessionId = await world.newSession();
    const first = event("acme.noted", { a: 1 });
    await events.append(client(sessionId, first));
    const failed = await failure(events.append(server(sessionId, event(), { ...first, ...over })));
    expect(failed).toMatchObject({
      reason: "EVENT_CONTENT_DIFFERS",
      metadata: { field: "events[1].id", event_id: first.id, position: "1" },
    });
    expect((await all(sessionId)).events).toHaveLength(1);
  });

  test("a request that has grown keeps what is known and appends the rest; in another order it is refused", async () => {
    const sessionId = await world.newSession();
    const [a, b, c] = [event(), event("session.status_running"), event()];
    await events.append(server(sessionId, a));
    const grown = await events.append(server(sessionId, a, b));
    expect(grown.receipts).toEqual([
      { id: a.id, position: 1, duplicate: true },
      { id: b.id, position: 2, duplicate: false },
    ]);
    expect((await row(sessionId)).status).toBe("running");
    const failed = await failure(events.append(server(sessionId, a, c, b)));
    expect(failed).toMatchObject({ reason: "EVENT_CONTENT_DIFFERS", metadata: { field: "events[2].id" } });
    expect((await row(sessionId)).head).toBe(2);
  });

  test("L2: twenty retries of one request at once append it once", async () => {
    const sessionId = await world.newSession();
    const request = client(sessionId, event(), event());
    const answers = await Promise.all(Array.from({ length: 20 }, () => events.append(request)));
    expect(answers.filter(({ added }) => added.length > 0)).toHaveLength(1);
    for (const { receipts } of answers) expect(receipts.map(({ position }) => position)).toEqual([1, 2]);
  });

  test("an unknown session is NOT_FOUND, alone and in the midst of others", async () => {
    const sessionId = await world.newSession();
    const outcomes = await Promise.allSettled([
      events.append(client(sessionId, event())),
      events.append(client(newId("session"), event())),
      events.append(client(sessionId, event())),
    ]);
    expect(outcomes.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
    expect((outcomes[1] as PromiseRejectedResult).reason).toMatchObject({ reason: "NOT_FOUND" });
  });

  test("one event that the database cannot take fails alone", async () => {
    const sessionIds = await Promise.all([1, 2, 3, 4].map(() => world.newSession()));
    const outcomes = await Promise.allSettled(
      sessionIds.map((id, index) =>
        events.append(client(id, event("acme.noted", {}, index === 2 ? { payload: '{"\0":1}' } : {}))),
      ),
    );
    expect(outcomes.map(({ status }) => status)).toEqual(["fulfilled", "fulfilled", "rejected", "fulfilled"]);
  });
});

describe("leases", () => {
  test("E1: only the newest lease may append; a released one may not either", async () => {
    const sessionId = await world.newSession();
    const old = await lease(sessionId);
    const brain = (by: typeof old) =>
      events.append({ sessionId, events: [event("agent.message")], authority: "brain", lease: by });
    await brain(old);
    const fresh = await lease(sessionId);
    expect(await failure(brain(old))).toMatchObject({ reason: "LEASE_FENCED", metadata: { epoch: "2" } });
    expect(await failure(brain({ ...fresh, leaseId: old.leaseId }))).toMatchObject({
      reason: "LEASE_FENCED",
    });
    await brain(fresh);
    await createLeaseStore(pool).withdraw(sessionId);
    expect(await failure(brain(fresh))).toMatchObject({ reason: "LEASE_FENCED" });
  });

  test("E1: a new lease fences the old one's appends also in the midst of them", async () => {
    const sessionId = await world.newSession();
    const old = await lease(sessionId);
    let fenced = 0;
    let last = 0;
    const writes = Array.from({ length: 40 }, () =>
      events.append({ sessionId, events: [event("agent.message")], authority: "brain", lease: old }).then(
        ({ head }) => {
          last = Math.max(last, head);
        },
        () => {
          fenced += 1;
        },
      ),
    );
    const taken = await lease(sessionId);
    const { receipts } = await events.append({
      sessionId,
      events: [event("agent.message")],
      authority: "brain",
      lease: taken,
    });
    await Promise.all(writes);
    expect(receipts[0]!.position).toBeGreaterThan(last);
    expect(fenced + (await all(sessionId)).events.filter(({ type }) => type === "agent.message").length).toBe(
      41,
    );
  });
});

describe("leases that ran out", () => {
  const run = async (sessionId: string, replicaId: string) => {
    const leases = createLeaseStore(pool);
    const taken = await leases.acquire({
      sessionId,
      leaseId: newId("lease"),
      harnessId: newId("harness"),
      replicaId,
      ttlMs: 60_000,
    });
    await pool.query("update sessions set lease_expires_at = clock_timestamp() where session_id = $1", [
      sessionId,
    ]);
    return taken!.silentDeaths;
  };
  const replica = async (seenAgoMs: number) => {
    const replicaId = newId("replica");
    await createReplicaStore(pool).announce({ replicaId, build: "", peerUrl: "", publicKeys: "" });
    await pool.query(
      "update replicas set seen_at = seen_at - $2 * interval '1 millisecond' where replica_id = $1",
      [replicaId, seenAgoMs],
    );
    return replicaId;
  };

  test("E4: under a server that lives they are deaths of the session's harness; an event in between clears it", async () => {
    const sessionId = await world.newSession();
    await events.append(client(sessionId, event("user.message")));
    const living = await replica(0);
    expect([await run(sessionId, living), await run(sessionId, living)]).toEqual([0, 1]);
    await events.append(server(sessionId, event("session.status_running")));
    expect([await run(sessionId, living), await run(sessionId, living)]).toEqual([0, 1]);
  });

  test("E4: with servers that died, again and again, they say nothing against the session", async () => {
    const sessionId = await world.newSession();
    await events.append(client(sessionId, event("user.message")));
    const deaths: number[] = [];
    for (let n = 0; n < 5; n++) deaths.push(await run(sessionId, await replica(20_000)));
    deaths.push(await run(sessionId, newId("replica")));
    expect(deaths).toEqual([0, 0, 0, 0, 0, 0]);
  });
});

describe("answers", () => {
  test("X3: a call has one result; a client's second is refused, the server's gets the receipt of the first", async () => {
    const sessionId = await world.newSession();
    const call = event("agent.custom_tool_use", { name: "ask" });
    await events.append(server(sessionId, call));
    const result = () => event("user.custom_tool_result", { custom_tool_use_id: call.id });
    const first = result();
    await events.append(client(sessionId, first));
    expect(await failure(events.append(client(sessionId, result())))).toMatchObject({
      reason: "CALL_ALREADY_ANSWERED",
      metadata: { tool_use_id: call.id, event_id: first.id, position: "2" },
    });
    const other = event("acme.noted");
    const answer = await events.append(server(sessionId, result(), other));
    expect(answer.receipts).toEqual([
      { id: first.id, position: 2, duplicate: true },
      { id: other.id, position: 3, duplicate: false },
    ]);
  });

  test("X3: of many results at once, by clients and the server, exactly one is kept", async () => {
    const sessionId = await world.newSession();
    const call = event("agent.tool_use", { name: "bash" });
    await events.append(server(sessionId, call));
    const outcomes = await Promise.allSettled(
      Array.from({ length: 30 }, (_, n) =>
        n % 2 === 0
          ? events.append(server(sessionId, event("agent.tool_result", { tool_use_id: call.id })))
          : events.append(client(sessionId, event("user.tool_result", { tool_use_id: call.id }))),
      ),
    );
    for (const [n, outcome] of outcomes.entries()) {
      if (n % 2 === 0) expect(outcome).toMatchObject({ status: "fulfilled", value: { head: 2 } });
      else if (outcome.status === "rejected") expect(outcome.reason.reason).toBe("CALL_ALREADY_ANSWERED");
    }
    expect((await all(sessionId)).events).toHaveLength(2);
  });

  test("a client's result or confirmation of a call that the log does not have is refused", async () => {
    const sessionId = await world.newSession();
    const failed = await failure(
      events.append(
        client(sessionId, event("user.tool_confirmation", { tool_use_id: "sevt_none", result: "allow" })),
      ),
    );
    expect(failed).toMatchObject({
      reason: "INVALID_FIELD",
      metadata: { field: "events[0].payload.tool_use_id" },
    });
  });

  test("appends in another noun's transaction are seen with its commit, not before, and not after a rollback", async () => {
    const sessionId = await world.newSession();
    await inTransaction(pool, async (transaction) => {
      const { advance } = await appendWithin(transaction, server(sessionId, event("user.message")));
      expect(advance).toEqual({ sessionId, head: 1n, hasWork: true });
      expect((await all(sessionId)).events).toHaveLength(0);
    });
    expect((await all(sessionId)).events).toHaveLength(1);
    const stop = new Error("no");
    const failed = inTransaction(pool, async (transaction) => {
      await appendWithin(transaction, server(sessionId, event()));
      throw stop;
    });
    await expect(failed).rejects.toBe(stop);
    expect((await events.append(client(sessionId, event()))).head).toBe(2);
  });
});

describe("folds", () => {
  test("E3: status, stop reason and running time follow the events, with their last word in a batch", async () => {
    const sessionId = await world.newSession();
    await events.append(server(sessionId, event("session.status_running")));
    expect(await row(sessionId)).toMatchObject({ status: "running", running_since: expect.any(Date) });
    await delay(15);
    const idle = event("session.status_idle", { stop_reason: { type: "end_turn" } });
    await events.append(server(sessionId, idle));
    const rested = await row(sessionId);
    expect(rested).toMatchObject({ status: "idle", stop_reason: "end_turn", running_since: null });
    expect(rested.active_ms).toBeGreaterThanOrEqual(10);
    await events.append(
      server(
        sessionId,
        event("session.status_running"),
        event("session.status_rescheduled"),
        event("session.status_running"),
      ),
    );
    expect(await row(sessionId)).toMatchObject({ status: "running", stop_reason: "end_turn" });
    // A repeat counts nothing twice.
    await events.append(server(sessionId, idle));
    expect((await row(sessionId)).status).toBe("running");
  });

  test("usage is the sum of what the model reported; what is no count is not counted", async () => {
    const sessionId = await world.newSession();
    const end = (usage: object) => event("span.model_request_end", { model_usage: usage });
    const usage = {
      input_tokens: 3,
      output_tokens: 5,
      cache_read_input_tokens: 7,
      cache_creation_input_tokens: 11,
    };
    await events.append(server(sessionId, end(usage), event(), end(usage)));
    await events.append(
      server(sessionId, end({ input_tokens: -4, output_tokens: "9" }), event("span.model_request_end")),
    );
    expect(await row(sessionId)).toMatchObject({
      model_requests: 4,
      input_tokens: 6,
      output_tokens: 10,
      cache_read_input_tokens: 14,
      cache_creation_input_tokens: 22,
    });
  });

  test("what clients ask and what the server answers is work; what a brain writes itself is not", async () => {
    const sessionId = await world.newSession();
    expect((await events.append(client(sessionId, event("acme.noted")))).hasWork).toBe(false);
    expect((await events.append(client(sessionId, event("user.message"), event("acme.noted")))).hasWork).toBe(
      true,
    );
    const since = (await row(sessionId)).work_since;
    await delay(3);
    await events.append(client(sessionId, event("user.interrupt")));
    expect(await row(sessionId)).toMatchObject({ work_position: 4, work_since: since });
    await pool.query("update sessions set rested_position = head where session_id = $1", [sessionId]);
    const brain = await lease(sessionId);
    await pool.query("update sessions set rested_position = head where session_id = $1", [sessionId]);
    const calls = [event("agent.tool_use"), event("agent.tool_use")];
    const own = event("agent.tool_result", { tool_use_id: calls[0]!.id });
    const byBrain = { sessionId, events: [...calls, own], authority: "brain", lease: brain } as const;
    expect((await events.append(byBrain)).hasWork).toBe(false);
    const byServer = server(sessionId, event("agent.tool_result", { tool_use_id: calls[1]!.id }));
    expect((await events.append(byServer)).hasWork).toBe(true);
    const after = await row(sessionId);
    expect(after.work_position).toBe(after.head);
    expect((after.work_since as Date).getTime()).toBeGreaterThan((since as Date).getTime());
  });

  test("L6: processed_at is the time of the marker that first took the event in", async () => {
    const sessionId = await world.newSession();
    const [taken, queued] = [event("user.message"), event("user.message")];
    await events.append(client(sessionId, taken, queued));
    const marker = () => event("brain.inputs_consumed", { event_ids: [taken.id], turn: 1 });
    await events.append(server(sessionId, marker(), event("span.model_request_start")));
    await delay(3);
    await events.append(server(sessionId, marker()));
    const list = (await all(sessionId)).events;
    expect(list.map(({ processedAt }) => processedAt)).toEqual([
      list[2]!.createdAt,
      undefined,
      undefined,
      undefined,
      undefined,
    ]);
  });
});

test("appends after the close are refused, those under way are finished", async () => {
  const store = createEventStore(pool);
  const sessionId = await world.newSession();
  const under = Array.from({ length: 20 }, () => store.append(client(sessionId, event())));
  const closed = store.close();
  expect(await failure(store.append(client(sessionId, event())))).toMatchObject({ reason: "DRAINING" });
  await closed;
  expect(await Promise.all(under)).toHaveLength(20);
});

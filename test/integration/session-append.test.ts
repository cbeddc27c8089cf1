/** Where events come to stand in a log, who may append them, and what a repeat gets. */
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { isTendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { AppendRequest, EventStore, NewEvent } from "../../server/store/events.ts";
import { createEventStore } from "../../server/store/postgres/events.ts";
import { createLeaseStore } from "../../server/store/postgres/leases.ts";
import { createPool, type Pool } from "../../server/store/postgres/pool.ts";
import { createReplicaStore } from "../../server/store/postgres/replicas.ts";
import { createSessionStore } from "../../server/store/postgres/sessions.ts";
import { inTransaction } from "../../server/store/postgres/transaction.ts";
import { type AppendRig, client, event, server, startAppendRig } from "../kit/append-rig.ts";
import { failure } from "../kit/failure.ts";
import type { SessionWorld } from "../kit/session-rig.ts";

let rig: AppendRig;
let pool: Pool;
let world: SessionWorld;
let events: EventStore;

beforeAll(async () => {
  rig = await startAppendRig();
  ({ pool, world, events } = rig);
});

afterAll(() => rig?.stop());

describe("positions", () => {
  test("L1: with many writers over two stores they are dense, and a reader never finds an older one later", async () => {
    const otherPool = createPool({ url: rig.database.url, max: 6, applicationName: "other replica" });
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
      const { events: list } = await rig.all(sessionId);
      expect(list.map(({ position }) => position)).toEqual(list.map((_, index) => index + 1));
      expect((await rig.row(sessionId)).head).toBe(list.length);
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
    expect((await rig.all(sessionId)).events).toHaveLength(5);
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
    const otherPool = createPool({ url: rig.database.url, max: 6, applicationName: "other replica" });
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
    for (const sessionId of [a, b]) expect((await rig.row(sessionId)).head).toBe(2 * rounds);
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
    const brain = await rig.lease(sessionId);
    const [first, second] = [event("agent.message", { a: 1 }, { internal: "[1]" }), event("agent.message")];
    const request: AppendRequest = { sessionId, events: [first, second], authority: "brain", lease: brain };
    const answer = await events.append(request);
    expect(answer.receipts.map(({ duplicate }) => duplicate)).toEqual([false, false]);
    await rig.lease(sessionId);
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
    expect((await rig.all(sessionId)).events).toHaveLength(1);
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
    expect((await rig.row(sessionId)).status).toBe("running");
    const failed = await failure(events.append(server(sessionId, a, c, b)));
    expect(failed).toMatchObject({ reason: "EVENT_CONTENT_DIFFERS", metadata: { field: "events[2].id" } });
    expect((await rig.row(sessionId)).head).toBe(2);
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
    const old = await rig.lease(sessionId);
    const brain = (by: typeof old) =>
      events.append({ sessionId, events: [event("agent.message")], authority: "brain", lease: by });
    await brain(old);
    const fresh = await rig.lease(sessionId);
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
    const old = await rig.lease(sessionId);
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
    const taken = await rig.lease(sessionId);
    const { receipts } = await events.append({
      sessionId,
      events: [event("agent.message")],
      authority: "brain",
      lease: taken,
    });
    await Promise.all(writes);
    expect(receipts[0]!.position).toBeGreaterThan(last);
    expect(
      fenced + (await rig.all(sessionId)).events.filter(({ type }) => type === "agent.message").length,
    ).toBe(41);
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

test("appends after the close are refused, those under way are finished", async () => {
  const store = createEventStore(pool);
  const sessionId = await world.newSession();
  const under = Array.from({ length: 20 }, () => store.append(client(sessionId, event())));
  const closed = store.close();
  expect(await failure(store.append(client(sessionId, event())))).toMatchObject({ reason: "DRAINING" });
  await closed;
  expect(await Promise.all(under)).toHaveLength(20);
});

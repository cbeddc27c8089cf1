import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { Clock } from "../../kit/clock.ts";
import { isTendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import type { SessionService, WatchEventsResponse } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { Principal } from "../../server/ports/principal.ts";
import type { Advance } from "../../server/ports/session-log.ts";
import { eventually } from "../kit/eventually.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { RoundsClock } from "../kit/rounds-clock.ts";
import { createWorld, type SessionReplica, type SessionWorld, startReplica } from "../kit/session-rig.ts";

let database: TestDatabase;
let world: SessionWorld;
let caller: Principal;
const replicas: SessionReplica[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  world = await createWorld(database.pool());
  caller = { kind: "client", keyId: "apikey_1", workspaceId: world.workspaceId };
});

afterAll(async () => {
  await database?.drop();
});

afterEach(async () => {
  for (const replica of replicas.splice(0)) await replica.stop();
});

async function start(options: { listens?: boolean; clock?: Clock } = {}): Promise<SessionReplica> {
  const replica = await startReplica({ url: database.url, listenUrl: database.directUrl, world, ...options });
  replicas.push(replica);
  return replica;
}

const note = (n: number) => ({ type: "acme.noted", payload: JSON.stringify({ n }) });

/** Reads a watch in the background; `stop` ends it. */
function follow(client: Client<typeof SessionService>, request: object) {
  const call = client.watchEvents(request);
  const told: WatchEventsResponse["kind"][] = [];
  let error: unknown;
  const ended = (async () => {
    try {
      for await (const { kind } of call) told.push(kind);
    } catch (thrown) {
      error = thrown;
    }
  })();
  return {
    told,
    ended,
    error: () => error,
    positions: () => told.flatMap((kind) => (kind.case === "event" ? [Number(kind.value.position)] : [])),
    progress: () => told.flatMap((kind) => (kind.case === "progress" ? [Number(kind.value.position)] : [])),
    stop() {
      call.cancel();
      return ended;
    },
  };
}

const upTo = (n: number) => Array.from({ length: n }, (_, index) => index + 1);

describe("one replica", () => {
  let replica: SessionReplica;
  let client: Client<typeof SessionService>;

  beforeEach(async () => {
    replica = await start();
    client = replica.client(caller);
  });

  test("L4: history comes first, then progress, then what is appended, each once and in order", async () => {
    const sessionId = await world.newSession();
    await client.emitEvents({ sessionId, events: upTo(20).map(note) });
    const watch = follow(client, { sessionId, afterPosition: 5n });
    await eventually(() => watch.progress().length === 1);
    expect(watch.progress()).toEqual([20]);
    for (const n of upTo(30)) await client.emitEvents({ sessionId, events: [note(n), note(n)] });
    await eventually(() => watch.positions().length === 75);
    expect(watch.positions()).toEqual(upTo(80).slice(5));
    await watch.stop();
  });

  test("after -1 only what comes is told; types are filtered, and progress goes on over what is left out", async () => {
    const sessionId = await world.newSession();
    await client.emitEvents({ sessionId, events: upTo(3).map(note) });
    const live = follow(client, { sessionId, afterPosition: -1n });
    const filtered = follow(client, { sessionId, types: ["acme.rare"] });
    await eventually(() => live.progress().length === 1 && filtered.progress().length === 1);
    expect(filtered.progress()).toEqual([3]);
    await client.emitEvents({ sessionId, events: [note(4), { type: "acme.rare" }, note(6)] });
    await eventually(() => live.positions().length === 3 && filtered.positions().length === 1);
    expect(live.positions()).toEqual([4, 5, 6]);
    expect(filtered.positions()).toEqual([5]);
    await Promise.all([live.stop(), filtered.stop()]);
  });

  test("a cursor that the log has not reached gets RESYNC, never silence", async () => {
    const sessionId = await world.newSession();
    const watch = follow(client, { sessionId, afterPosition: 1n });
    await watch.ended;
    expect(watch.error()).toMatchObject({ reason: "RESYNC", metadata: { head: "0" } });
  });

  test("R17: over 100 forced disconnects with concurrent writers nothing is missed and nothing comes twice", async () => {
    const sessionId = await world.newSession();
    const total = 300;
    const writers = Promise.all(
      [0, 1, 2].map(async (writer) => {
        for (let n = 0; n < total / 3; n++) {
          await replica.area.sessionLog.append({
            sessionId,
            events: [
              {
                ...note(n),
                $typeName: "tendon.v1.EventInput",
                id: "",
                threadId: `sthr_${writer}`,
                internal: "",
              },
            ],
          });
        }
      }),
    );
    const seen: number[] = [];
    let disconnects = 0;
    while (seen.length < total || disconnects < 100) {
      const watching = replica.client(caller).watchEvents({ sessionId, afterPosition: BigInt(seen.length) });
      let left = 1 + (disconnects % 4);
      try {
        for await (const { kind } of watching) {
          if (kind.case === "event") seen.push(Number(kind.value.position));
          left -= 1;
          if (left <= 0) {
            replica.disconnect();
            break;
          }
        }
      } catch (error) {
        if (!isTendonError(error)) throw error;
      }
      disconnects += 1;
    }
    await writers;
    expect(seen).toEqual(upTo(total));
  });

  test("a reader that does not read holds nothing but a page, and goes on where it was", async () => {
    const sessionId = await world.newSession();
    const payload = JSON.stringify({ a: "x".repeat(200_000) });
    const watching = client.watchEvents({ sessionId })[Symbol.asyncIterator]();
    expect((await watching.next()).value.kind.case).toBe("progress");
    for (let n = 0; n < 12; n++) {
      await client.emitEvents({
        sessionId,
        events: Array.from({ length: 5 }, () => ({ type: "acme.big", payload })),
      });
    }
    const seen: number[] = [];
    while (seen.length < 60) {
      const { kind } = (await watching.next()).value;
      if (kind.case === "event") seen.push(Number(kind.value.position));
    }
    expect(seen).toEqual(upTo(60));
    await watching.return?.();
  });

  test("L5: previews reach those who asked, before the event that closes them; a slow watcher's are dropped", async () => {
    const sessionId = await world.newSession();
    const eventId = newId("event");
    const [asked, not] = [follow(client, { sessionId, previews: true }), follow(client, { sessionId })];
    await eventually(() => asked.progress().length === 1 && not.progress().length === 1);
    const preview = (text: string) =>
      ({
        $typeName: "tendon.v1.Preview",
        kind: { case: "text", value: { $typeName: "tendon.v1.PreviewText", eventId, index: 0, text } },
      }) as const;
    replica.area.sessionLog.publishPreviews(
      sessionId,
      upTo(1000).map((n) => preview(String(n))),
    );
    await client.emitEvents({ sessionId, events: [{ id: eventId, type: "acme.said" }] });
    await eventually(() => asked.positions().length === 1 && not.positions().length === 1);
    const cases = asked.told.map((kind) => kind.case).slice(1);
    expect(cases.at(-1)).toBe("event");
    expect(cases.filter((one) => one === "preview").length).toBeGreaterThan(0);
    expect(cases.filter((one) => one === "preview").length).toBeLessThanOrEqual(256);
    expect(not.told.map((kind) => kind.case)).toEqual(["progress", "event"]);
    await Promise.all([asked.stop(), not.stop()]);
  });

  test("the stream ends properly when the session is archived or deleted", async () => {
    const [archived, deleted] = [await world.newSession(), await world.newSession()];
    const watches = [archived, deleted].map((sessionId) => follow(client, { sessionId }));
    await eventually(() => watches.every((watch) => watch.progress().length === 1));
    await client.archiveSession({ sessionId: archived });
    await client.deleteSession({ sessionId: deleted });
    await Promise.all(watches.map((watch) => watch.ended));
    expect(watches.map((watch) => watch.error())).toEqual([undefined, undefined]);
    expect(watches[0]!.positions()).toEqual([1]);
  });

  test("a server that stops ends its watches with DRAINING", async () => {
    const sessionId = await world.newSession();
    const watch = follow(client, { sessionId });
    await eventually(() => watch.progress().length === 1);
    await replica.area.drain?.(5_000);
    await watch.ended;
    expect(watch.error()).toMatchObject({ reason: "DRAINING" });
    const late = follow(client, { sessionId });
    await late.ended;
    expect(late.error()).toMatchObject({ reason: "DRAINING" });
  });

  test("events that another noun's transaction appended are told once it says so", async () => {
    const sessionId = await world.newSession();
    const watch = follow(client, { sessionId });
    const advances: Advance[] = [];
    const stop = replica.area.sessionLog.onAdvance((advance) => advances.push(advance));
    await eventually(() => watch.progress().length === 1);
    const store = replica.events;
    const event = { id: newId("event"), type: "agent.tool_result", threadId: "", internal: undefined };
    await store.append({
      sessionId,
      authority: "server",
      events: [{ ...event, payload: '{"tool_use_id":"sevt_1"}' }],
    });
    replica.area.sessionLog.announce({ sessionId, head: 1n, hasWork: true });
    await eventually(() => watch.positions().length === 1);
    expect(advances).toContainEqual({ sessionId, head: 1n, hasWork: true });
    stop();
    await watch.stop();
  });
});

describe("two replicas on one database", () => {
  test("L4: what one appends is told by the other, in order, with writers on both", async () => {
    const [a, b] = [await start(), await start()];
    const sessionId = await world.newSession();
    const watches = [a, b].map((replica) => follow(replica.client(caller), { sessionId }));
    await Promise.all(
      [a, b].flatMap((replica) =>
        upTo(5).map(async () => {
          const client = replica.client(caller);
          for (const n of upTo(20)) await client.emitEvents({ sessionId, events: [note(n)] });
        }),
      ),
    );
    await eventually(() => watches.every((watch) => watch.positions().length === 200));
    for (const watch of watches) {
      expect(watch.positions()).toEqual(upTo(200));
      await watch.stop();
    }
  });

  test("a hint tells the other replica, which need not ask", async () => {
    const clock = new RoundsClock();
    const [a, b] = [await start(), await start({ clock })];
    const sessionId = await world.newSession();
    const watch = follow(b.client(caller), { sessionId });
    await eventually(() => watch.progress().length === 1);
    const listening = "select from pg_stat_activity where application_name = $1 and query like 'listen%'";
    await eventually(async () => {
      return (await database.pool().query(listening, [`listener ${b.replicaId}`])).rowCount > 0;
    });
    clock.isHeld = true;
    for (const n of upTo(9)) {
      await a.client(caller).emitEvents({ sessionId, events: [note(n)] });
      await eventually(() => watch.positions().length === n, { everyMs: 1 });
    }
    await watch.stop();
  });

  test("R19: when the listener is killed, or there is none, what was lost is found by asking", async () => {
    const [a, listening, deaf] = [await start(), await start(), await start({ listens: false })];
    const sessionId = await world.newSession();
    const client = a.client(caller);
    const watches = [listening, deaf].map((replica) => follow(replica.client(caller), { sessionId }));
    await eventually(() => watches.every((watch) => watch.progress().length === 1));
    const kill = () =>
      database
        .pool()
        .query("select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1", [
          `listener ${listening.replicaId}`,
        ]);
    for (const n of upTo(5)) {
      await eventually(async () => (await kill()).rowCount > 0);
      await client.emitEvents({ sessionId, events: [note(n)] });
    }
    await eventually(() => watches.every((watch) => watch.positions().length === 5));
    for (const watch of watches) expect(watch.positions()).toEqual(upTo(5));
    await client.deleteSession({ sessionId });
    await Promise.all(watches.map((watch) => watch.ended));
    expect(watches.map((watch) => watch.error())).toEqual([undefined, undefined]);
  });

  test("waiting work is told on every replica, again and again until somebody takes it", async () => {
    const [a, deaf] = [await start(), await start({ listens: false })];
    const sessionId = await world.newSession();
    const advances: Advance[] = [];
    const stop = deaf.area.sessionLog.onAdvance((advance) => {
      if (advance.sessionId === sessionId) advances.push(advance);
    });
    await a.client(caller).emitEvents({
      sessionId,
      events: [{ type: "user.message", payload: '{"content":[{"type":"text","text":"hi"}]}' }],
    });
    await eventually(() => advances.length >= 2);
    expect(advances[0]).toEqual({ sessionId, head: 1n, hasWork: true });
    stop();
  });
});

/** Work distribution with a real server and Postgres; the harnesses are scripted, the far side of the wire. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { HarnessService, ReleaseReason } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { inTransaction } from "../../server/store/postgres/transaction.ts";
import { eventually } from "../kit/eventually.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { ScriptedHarness } from "../kit/scripted-harness.ts";
import { startServer, type TestServer } from "../kit/server.ts";

const LEASE_TTL_MS = 2_000;
let database: TestDatabase;
let a: TestServer;
let b: TestServer;
let harnessKey = "";
let agentId = "";
const harnesses: ScriptedHarness[] = [];
const sessionIds: string[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  const settings = { TENDON_LEASE_TTL_MS: String(LEASE_TTL_MS) };
  a = await startServer({ databaseUrl: database.url, settings });
  b = await startServer({ databaseUrl: database.url, settings });
  harnessKey = await a.localKey("harness");
  agentId = await createAgent("");
  await a.client(EnvironmentService).createEnvironment({ spec: { name: "default" }, makeDefault: true });
});
afterEach(async () => {
  // What a test leaves waiting would count as another death of the next test's harness.
  for (const sessionId of sessionIds.splice(0))
    await a.client(SessionService).archiveSession({ sessionId, interrupt: true });
  for (const harness of harnesses.splice(0)) harness.die();
  // The next test begins when nobody is connected any more.
  await eventually(async () => (await a.client(AdminService).getStatus({})).harnesses.length === 0);
});
afterAll(async () => {
  await a?.stop();
  await b?.stop();
  await database?.drop();
});

async function createAgent(loop: string): Promise<string> {
  const { agent } = await a.client(AgentService).createAgent({ spec: { name: "t", loop } });
  return agent?.id ?? "";
}

const message = { type: "user.message", payload: '{"content":[{"type":"text","text":"go"}]}' };

async function createSession(agent = agentId, withWork = true): Promise<string> {
  const { session } = await a
    .client(SessionService)
    .createSession({ agentId: agent, initialEvents: withWork ? [message] : [] });
  sessionIds.push(session?.id ?? "");
  return session?.id ?? "";
}

function harness(
  server: TestServer,
  hello: ConstructorParameters<typeof ScriptedHarness>[1] = {},
): ScriptedHarness {
  const made = new ScriptedHarness(server.client(HarnessService, harnessKey), hello);
  harnesses.push(made);
  return made;
}

describe("assignments", () => {
  test("a session gets a harness when it has work, on whichever replica, and only then (E2)", async () => {
    const quiet = await createSession(agentId, false);
    const busy = await createSession();
    const h = harness(b);
    const assignment = await h.assigned(busy);
    expect(assignment.tail.map(({ type, position }) => [type, position])).toEqual([["user.message", 1n]]);
    expect([assignment.lease?.epoch, assignment.session?.agent?.id]).toEqual([1n, agentId]);
    expect(assignment.sessionToken.split(".")).toHaveLength(3);
    h.release(assignment);
    await a.client(SessionService).emitEvents({ sessionId: quiet, events: [message] });
    h.release(await h.assigned(quiet));
    expect(h.assignments).toHaveLength(2);
  });

  test("only a harness that has the agent's loop, and room, gets the session", async () => {
    const special = await createSession(await createAgent("special"));
    const plain = harness(a);
    await plain.welcome();
    const other = harness(a, { loops: ["special"], capacity: 1 });
    const assignment = await other.assigned(special);
    const second = await createSession(assignment.session?.agent?.id);
    other.release(assignment);
    await other.assigned(second);
    expect(plain.assignments).toEqual([]);
  });

  test("workspaces take turns: one with many waiting sessions does not make another wait", async () => {
    const { workspace } = await a.client(AdminService).createWorkspace({ name: `fair-${Date.now()}` });
    const { secret } = await a
      .client(AdminService)
      .createApiKey({ name: "k", role: 1, workspaceId: workspace?.id ?? "" });
    const { agent } = await a.client(AgentService, secret).createAgent({ spec: { name: "t" } });
    await a
      .client(EnvironmentService, secret)
      .createEnvironment({ spec: { name: "default" }, makeDefault: true });
    const many = [];
    for (let i = 0; i < 5; i++) many.push(await createSession());
    const lone = await a
      .client(SessionService, secret)
      .createSession({ agentId: agent?.id ?? "", initialEvents: [message] });
    const h = harness(a, { capacity: 2 });
    await eventually(() => h.assignments.length === 2);
    expect(h.assignments.map(({ session }) => session?.id).sort()).toEqual(
      [many[0], lone.session?.id].sort(),
    );
    for (let done = 0; done < 6; done++) {
      await eventually(() => h.assignments.length > done);
      h.release(h.assignments[done]!);
    }
  });

  test("what others append to a held session is pushed to its holder, once and in order", async () => {
    const sessionId = await createSession();
    const h = harness(b);
    const { lease } = await h.assigned(sessionId);
    const types = ["acme.one", "acme.two", "acme.three"];
    for (const type of types)
      await a.client(SessionService).emitEvents({ sessionId, events: [{ type, payload: "{}" }] });
    await eventually(() => h.all("logAdvanced").flatMap(({ events }) => events).length >= 3);
    const pushed = h.all("logAdvanced").flatMap(({ events }) => events);
    expect(pushed.map(({ type, position }) => [type, position])).toEqual(
      types.map((type, i) => [type, BigInt(i + 2)]),
    );
    // Its own appends are not echoed.
    const own = { type: "session.status_running", payload: "{}" };
    await b.client(SessionService, harnessKey).emitEvents({ sessionId, events: [own], lease });
    await a.client(SessionService).emitEvents({ sessionId, events: [{ type: "acme.four", payload: "{}" }] });
    await eventually(() => h.all("logAdvanced").some(({ head }) => head === 6n));
    expect(
      h
        .all("logAdvanced")
        .flatMap(({ events }) => events)
        .map(({ type }) => type),
    ).toEqual([...types, "acme.four"]);
  });

  test("a release that asks for a retry keeps the session back, and WakeSession brings it at once", async () => {
    const sessionId = await createSession();
    const h = harness(a);
    h.release(await h.assigned(sessionId), ReleaseReason.RETRY_LATER, { retryAfterMs: 60_000 });
    const waits =
      "select 1 from sessions where session_id = $1 and lease_id is null and not_before > clock_timestamp()";
    await eventually(async () => (await database.pool().query(waits, [sessionId])).rowCount === 1);
    expect((await a.client(SessionService).wakeSession({ sessionId })).hasWork).toBe(true);
    const again = await h.assigned(sessionId, { times: 2 });
    expect(again.lease?.epoch).toBe(2n);
  });

  test("work that came after what the holder had seen brings the session again at once", async () => {
    const sessionId = await createSession();
    const h = harness(a);
    const first = await h.assigned(sessionId);
    await a.client(SessionService).emitEvents({ sessionId, events: [message] });
    h.release(first);
    const second = await h.assigned(sessionId, { times: 2 });
    h.release(second);
    expect(second.tail.map(({ position }) => position)).toEqual([1n, 2n]);
  });
});

describe("leases", () => {
  test("a harness that dies loses its session to another within a second, under the next epoch; the old one is refused (E1, E2, R3)", async () => {
    const sessionId = await createSession();
    const first = harness(a);
    const { lease } = await first.assigned(sessionId);
    const second = harness(b);
    await second.welcome();
    first.die();
    const taken = await second.assigned(sessionId, { withinMs: 3_000 });
    expect(taken.lease?.epoch).toBe((lease?.epoch ?? 0n) + 1n);
    const stale = a
      .client(SessionService, harnessKey)
      .emitEvents({ sessionId, events: [{ type: "session.status_running" }], lease });
    await expect(stale).rejects.toMatchObject({ reason: "LEASE_FENCED" });
  });

  test("the same instance that attaches again in time goes on under the same epoch, on another replica, and misses nothing (E2)", async () => {
    const sessionId = await createSession();
    const first = harness(a);
    const assignment = await first.assigned(sessionId);
    const rival = harness(a);
    await rival.welcome();
    first.die();
    const lease = assignment.lease!;
    const again = harness(b, { instanceId: first.instanceId, attach: [{ sessionId, lease, position: 1n }] });
    expect((await again.welcome()).attachedLeaseIds).toEqual([lease.leaseId]);
    await b
      .client(SessionService, a.adminKey)
      .emitEvents({ sessionId, events: [{ type: "acme.later", payload: "{}" }] });
    await eventually(() =>
      again
        .all("logAdvanced")
        .flatMap(({ events }) => events)
        .some(({ type }) => type === "acme.later"),
    );
    await b
      .client(SessionService, harnessKey)
      .emitEvents({ sessionId, events: [{ type: "session.status_running" }], lease });
    expect(rival.assignments).toEqual([]);
  });

  test("a hang is found by the lease's time, and the hanging harness is told when it renews (E2)", async () => {
    const sessionId = await createSession();
    const hanging = harness(a);
    const { lease } = await hanging.assigned(sessionId);
    const other = harness(b);
    const taken = await other.assigned(sessionId, { withinMs: LEASE_TTL_MS + 3_000 });
    expect(taken.lease?.epoch).toBe(2n);
    hanging.say({ case: "renew", value: { leaseIds: [lease?.leaseId ?? ""] } });
    await eventually(() => hanging.all("leaseLost").some(({ leaseId }) => leaseId === lease?.leaseId));
  });

  test("a lease that ran out is given anew by the same server, to whoever is connected there, its old holder too (E2)", async () => {
    const sessionId = await createSession();
    const only = harness(a);
    const { lease } = await only.assigned(sessionId);
    // It says nothing more about this lease, as one that took it for over itself, and stays connected. Until it is
    // heard from it may hang.
    await eventually(() => only.all("leaseLost").length === 1, { withinMs: LEASE_TTL_MS + 5_000 });
    only.say({ case: "heartbeat", value: { sequence: 1n } });
    const again = await only.assigned(sessionId, { withinMs: LEASE_TTL_MS + 10_000, times: 2 });
    expect(again.lease?.epoch).toBe(2n);
    expect(only.all("leaseLost").map(({ leaseId }) => leaseId)).toEqual([lease?.leaseId]);
    only.say({ case: "renew", value: { leaseIds: [again.lease?.leaseId ?? ""] } });
    await eventually(() => only.all("renewed").some(({ leaseIds }) => leaseIds.length === 1));
  });

  test("a harness whose attaching fails half way is not there, and what it had attached goes to others (E2)", async () => {
    const ids = [await createSession(), await createSession()];
    const leasesLast = (ms: number) =>
      database
        .pool()
        .query(
          "update sessions set lease_expires_at = clock_timestamp() + $2 * interval '1 millisecond' where session_id = any($1)",
          [ids, ms],
        );
    const first = harness(a);
    const attach = await Promise.all(
      ids.map(async (sessionId) => ({
        sessionId,
        lease: (await first.assigned(sessionId)).lease!,
        position: 1n,
      })),
    );
    await leasesLast(60_000);
    await inTransaction(database.pool(), async (transaction) => {
      await transaction.query("select 1 from sessions where session_id = $1 for update", [ids[1]]);
      const again = harness(a, { instanceId: first.instanceId, attach });
      const blocked = "wait_event_type = 'Lock' and query like '%lease_replica_id = $5%'";
      await eventually(async () => {
        const terminate = `select pg_terminate_backend(pid) from pg_stat_activity where ${blocked}`;
        return (await database.pool().query(terminate)).rowCount > 0;
      });
      await eventually(() => again.ended);
      expect(again.ended).toMatchObject({ error: { reason: "UNAVAILABLE" } });
    });
    first.die();
    await eventually(async () => (await a.client(AdminService).getStatus({})).harnesses.length === 0);
    await leasesLast(0);
    const other = harness(a);
    for (const sessionId of ids) await other.assigned(sessionId, { withinMs: 10_000 });
  });

  test("a lease that is renewed lasts, and its renewal says until when", async () => {
    const sessionId = await createSession();
    const h = harness(a);
    const { lease, expiresAt } = await h.assigned(sessionId);
    const rival = harness(b);
    await rival.welcome();
    for (let i = 1; i <= 4; i++) {
      h.say({ case: "renew", value: { leaseIds: [lease?.leaseId ?? ""] } });
      await eventually(() => h.all("renewed").length === i);
      const until = Number(h.all("renewed")[i - 1]?.expiresAt?.seconds ?? 0n);
      expect(until).toBeGreaterThanOrEqual(Number(expiresAt?.seconds ?? 0n));
      await eventually(
        async () =>
          (
            await database
              .pool()
              .query(
                "select 1 from sessions where session_id = $1 and lease_expires_at < clock_timestamp() + interval '1200 milliseconds'",
                [sessionId],
              )
          ).rowCount === 1,
      );
    }
    expect(rival.assignments).toEqual([]);
  });

  test("archiving withdraws the lease: the holder is told, and what it still sends is refused", async () => {
    const sessionId = await createSession();
    const h = harness(a);
    const { lease } = await h.assigned(sessionId);
    await a.client(SessionService).archiveSession({ sessionId, interrupt: true });
    await eventually(() => h.all("leaseLost").some(({ leaseId }) => leaseId === lease?.leaseId));
    const late = a
      .client(SessionService, harnessKey)
      .emitEvents({ sessionId, events: [{ type: "session.status_running" }], lease });
    await expect(late).rejects.toMatchObject({ code: 9 });
  });

  test("a session that says running without a live lease is said to be rescheduled (E3, R8)", async () => {
    const sessionId = await createSession();
    const h = harness(a);
    const { lease } = await h.assigned(sessionId);
    await a
      .client(SessionService, harnessKey)
      .emitEvents({ sessionId, events: [{ type: "session.status_running" }], lease });
    h.die();
    const sessions = a.client(SessionService);
    const status = async () => (await sessions.getSession({ sessionId })).session?.status;
    expect(await status()).toBe(SessionStatus.RUNNING);
    await eventually(async () => (await status()) === SessionStatus.RESCHEDULING, {
      withinMs: LEASE_TTL_MS + 8_000,
    });
    const { events } = await sessions.getEvents({ sessionId, types: ["session.status_rescheduled"] });
    expect(events).toHaveLength(1);
  });

  test("a session that kills every harness before anything is recorded runs alone after two deaths and ends after the third (E4)", async () => {
    const poison = await createSession();
    const deaths: boolean[] = [];
    for (let death = 1; death <= 3; death++) {
      const h = harness(a);
      const { silentDeaths } = await h.assigned(poison);
      expect(silentDeaths).toBe(death - 1);
      if (death === 3) {
        // Alone: another session waits although there is room.
        const other = await createSession();
        await a.client(SessionService).wakeSession({ sessionId: other });
        deaths.push(h.assignments.some(({ session }) => session?.id === other));
      }
      h.die();
      await eventually(async () => (await a.client(AdminService).getStatus({})).harnesses.length === 0);
    }
    expect(deaths).toEqual([false]);
    const h = harness(a);
    await h.welcome();
    const sessions = a.client(SessionService);
    const { events } = await eventually(async () => {
      const slice = await sessions.getEvents({ sessionId: poison, types: ["session.status_idle"] });
      return slice.events.length > 0 ? slice : undefined;
    });
    expect(JSON.parse(events[0]!.payload)).toMatchObject({ stop_reason: { type: "retries_exhausted" } });
    expect(h.assignments.some(({ session }) => session?.id === poison)).toBe(false);
    // The next message starts afresh.
    await sessions.emitEvents({ sessionId: poison, events: [message] });
    expect((await h.assigned(poison)).silentDeaths).toBe(0);
  });
});

describe("a session whose row somebody holds for long", () => {
  test("keeps no other session from being assigned, renewed or released, and is assigned once it is free", async () => {
    const [stuck, plain, held] = [
      await createSession(),
      await createSession(),
      await createSession(agentId, false),
    ];
    const connection = await database.pool().connect();
    await connection.query("begin");
    await connection.query("select 1 from sessions where session_id = any($1) for update", [[stuck]]);
    const h = harness(a);
    const assignment = await h.assigned(plain);
    await a.client(SessionService).emitEvents({ sessionId: held, events: [message] });
    const other = await h.assigned(held);
    const leases = [assignment, other].map(({ lease }) => lease?.leaseId ?? "");
    h.say({ case: "renew", value: { leaseIds: leases } });
    await eventually(() => h.all("renewed").length === 1);
    expect([...(h.all("renewed")[0]?.leaseIds ?? [])].sort()).toEqual([...leases].sort());
    expect(h.assignments.some(({ session }) => session?.id === stuck)).toBe(false);
    await connection.query("rollback");
    connection.release();
    await h.assigned(stuck);
  });

  test("does not lose its own lease when a renewal finds it locked", async () => {
    const sessionId = await createSession();
    const h = harness(a);
    const { lease } = await h.assigned(sessionId);
    const connection = await database.pool().connect();
    await connection.query("begin");
    await connection.query("select 1 from sessions where session_id = $1 for update", [sessionId]);
    h.say({ case: "renew", value: { leaseIds: [lease?.leaseId ?? ""] } });
    await eventually(() => h.all("renewed").length === 1);
    await connection.query("rollback");
    connection.release();
    expect(h.all("renewed")[0]?.leaseIds).toEqual([lease?.leaseId]);
    expect(h.all("leaseLost")).toEqual([]);
  });
});

describe("the stream", () => {
  test("begins with hello, in a version that the server speaks", async () => {
    const wrong = harness(a, { protocolVersion: 99 });
    await eventually(() => wrong.ended);
    expect(wrong.ended?.error).toMatchObject({ reason: "PROTOCOL_VERSION_UNSUPPORTED" });
    const call = a.client(HarnessService, harnessKey).work();
    await call.send({ kind: { case: "goodbye", value: {} } });
    await expect(call.responses[Symbol.asyncIterator]().next()).rejects.toMatchObject({
      reason: "INVALID_FIELD",
    });
  });

  test("a harness that says goodbye leaves its sessions to others at once", async () => {
    const sessionId = await createSession();
    const first = harness(a);
    await first.assigned(sessionId);
    const second = harness(a);
    await second.welcome();
    await first.leave();
    expect((await second.assigned(sessionId)).silentDeaths).toBe(0);
  });
});

describe("one agent that is odd", () => {
  test("does not keep anybody from work: what Postgres cannot read as JSON is taken for the default loop", async () => {
    const odd = await createSession();
    await database
      .pool()
      .query(
        'update sessions set agent = replace(agent, \'"name":"t"\', \'"name":"a\\u0000b"\') where session_id = $1',
        [odd],
      );
    const plain = await createSession();
    const h = harness(a);
    await h.assigned(plain);
    await h.assigned(odd);
  });

  test("a NUL in what people name or describe is refused with the path of its field", async () => {
    const agents = a.client(AgentService);
    const field = (path: string) => ({ reason: "INVALID_FIELD", metadata: { field: path } });
    await expect(agents.createAgent({ spec: { name: "p", system: "a\0b" } })).rejects.toMatchObject(
      field("spec.system"),
    );
    const session = a.client(SessionService).createSession({ agentId, metadata: { k: "\0" } });
    await expect(session).rejects.toMatchObject(field('metadata["k"]'));
  });
});

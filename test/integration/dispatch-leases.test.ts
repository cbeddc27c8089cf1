/** Who holds a session, for how long and under which epoch; a real server and Postgres, scripted harnesses. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { type Clock, systemClock } from "../../kit/clock.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { REATTACH_GRACE_MS } from "../../server/harness/limits.ts";
import { inTransaction } from "../../server/store/postgres/transaction.ts";
import { type DispatchRig, message, startDispatchRig } from "../kit/dispatch-rig.ts";
import { eventually } from "../kit/eventually.ts";
import type { TestServer } from "../kit/server.ts";

let rig: DispatchRig;
let a: TestServer;
let b: TestServer;

/** While it is set, what servers do at the end of the grace in which a harness may attach again waits here. */
let gracesEnd: (() => void)[] | undefined;
const clock: Clock = {
  ...systemClock,
  after(delayMs, run) {
    if (gracesEnd === undefined || delayMs !== REATTACH_GRACE_MS) return systemClock.after(delayMs, run);
    gracesEnd.push(run);
    return () => {};
  },
};

beforeAll(async () => {
  rig = await startDispatchRig({ clock });
  ({ a, b } = rig);
});
afterEach(() => {
  gracesEnd = undefined;
  return rig.clear();
});
afterAll(() => rig?.stop());

/** As if so much were left of the time of the sessions' leases. */
async function leasesLast(sessionIds: readonly string[], ms: number): Promise<void> {
  await rig.database
    .pool()
    .query(
      "update sessions set lease_expires_at = clock_timestamp() + $2 * interval '1 millisecond' where session_id = any($1)",
      [sessionIds, ms],
    );
}

describe("leases", () => {
  test("a harness that dies loses its session to another long before the lease is over, under the next epoch; the old one is refused (E1, E2, R3)", async () => {
    const sessionId = await rig.createSession();
    const first = rig.harness(a);
    const { lease } = await first.assigned(sessionId);
    const second = rig.harness(b);
    await second.welcome();
    first.die();
    const taken = await second.assigned(sessionId);
    expect(taken.lease?.epoch).toBe((lease?.epoch ?? 0n) + 1n);
    const stale = a
      .client(SessionService, rig.harnessKey)
      .emitEvents({ sessionId, events: [{ type: "session.status_running" }], lease });
    await expect(stale).rejects.toMatchObject({ reason: "LEASE_FENCED" });
  });

  test("which tools a session's hands have is settled when a harness takes it, not while it waits for one", async () => {
    const sessionId = await rig.createSession();
    const slots = async () => {
      const sql = "select 1 from session_slots where session_id = $1";
      return (await rig.database.pool().query(sql, [sessionId])).rows.length;
    };
    // Servers look for a harness each time that something is said, and have done so for the first by then.
    const later = await rig.createSession();
    await a.client(SessionService, a.adminKey).wakeSession({ sessionId });
    expect(await slots()).toBe(0);
    const harness = rig.harness(a);
    await harness.assigned(sessionId);
    await harness.assigned(later);
    expect(await slots()).toBe(1);
  });

  test("after its idle event a session can be archived while its harness still holds the lease, but not once it has new work", async () => {
    const sessions = a.client(SessionService, a.adminKey);
    const harness = rig.harness(a);
    const rested = async () => {
      const sessionId = await rig.createSession();
      const { lease } = await harness.assigned(sessionId);
      const events = ["session.status_running", "session.status_idle"].map((type) => ({ type }));
      await a.client(SessionService, rig.harnessKey).emitEvents({ sessionId, events, lease });
      return sessionId;
    };
    const [done, again] = [await rested(), await rested()];
    await sessions.emitEvents({ sessionId: again, events: [message] });
    await expect(sessions.archiveSession({ sessionId: again })).rejects.toMatchObject({
      reason: "SESSION_RUNNING",
    });
    const { session } = await sessions.archiveSession({ sessionId: done });
    expect(session?.status).toBe(SessionStatus.TERMINATED);
  });

  test("the same instance that attaches again in time goes on under the same epoch, on another replica, and misses nothing (E2)", async () => {
    const sessionId = await rig.createSession();
    const first = rig.harness(a);
    const assignment = await first.assigned(sessionId);
    const rival = rig.harness(a);
    await rival.welcome();
    gracesEnd = [];
    first.die();
    await eventually(() => gracesEnd?.length === 1);
    const lease = assignment.lease!;
    const again = rig.harness(b, {
      instanceId: first.instanceId,
      attach: [{ sessionId, lease, position: 1n }],
    });
    expect((await again.welcome()).attachedLeaseIds).toEqual([lease.leaseId]);
    for (const end of gracesEnd) end();
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
      .client(SessionService, rig.harnessKey)
      .emitEvents({ sessionId, events: [{ type: "session.status_running" }], lease });
    expect(rival.assignments).toEqual([]);
  });

  test("a hang is found by the lease's time, and the hanging harness is told when it renews (E2)", async () => {
    const sessionId = await rig.createSession();
    const hanging = rig.harness(a);
    const { lease } = await hanging.assigned(sessionId);
    const other = rig.harness(b);
    await other.welcome();
    await leasesLast([sessionId], 500);
    const taken = await other.assigned(sessionId);
    expect(taken.lease?.epoch).toBe(2n);
    hanging.say({ case: "renew", value: { leaseIds: [lease?.leaseId ?? ""] } });
    await eventually(() => hanging.all("leaseLost").some(({ leaseId }) => leaseId === lease?.leaseId));
  });

  test("a lease that ran out is given anew by the same server, to whoever is connected there, its old holder too (E2)", async () => {
    const sessionId = await rig.createSession();
    const only = rig.harness(a);
    const { lease } = await only.assigned(sessionId);
    // It says nothing more about this lease, as one that took it for over itself, and stays connected. Until it is
    // heard from it may hang.
    await leasesLast([sessionId], 500);
    await eventually(() => only.all("leaseLost").length === 1);
    only.say({ case: "heartbeat", value: { sequence: 1n } });
    const again = await only.assigned(sessionId, { times: 2 });
    expect(again.lease?.epoch).toBe(2n);
    expect(only.all("leaseLost").map(({ leaseId }) => leaseId)).toEqual([lease?.leaseId]);
    only.say({ case: "renew", value: { leaseIds: [again.lease?.leaseId ?? ""] } });
    await eventually(() => only.all("renewed").some(({ leaseIds }) => leaseIds.length === 1));
  });

  test("a harness whose attaching fails half way is not there, and what it had attached goes to others (E2)", async () => {
    const ids = [await rig.createSession(), await rig.createSession()];
    const first = rig.harness(a);
    const attach = await Promise.all(
      ids.map(async (sessionId) => ({
        sessionId,
        lease: (await first.assigned(sessionId)).lease!,
        position: 1n,
      })),
    );
    await inTransaction(rig.database.pool(), async (transaction) => {
      await transaction.query("select 1 from sessions where session_id = $1 for update", [ids[1]]);
      const again = rig.harness(a, { instanceId: first.instanceId, attach });
      const blocked =
        "datname = current_database() and wait_event_type = 'Lock' and query like '%lease_replica_id = $5%'";
      await eventually(async () => {
        const terminate = `select pg_terminate_backend(pid) from pg_stat_activity where ${blocked}`;
        return (await rig.database.pool().query(terminate)).rowCount > 0;
      });
      await eventually(() => again.ended);
      expect(again.ended).toMatchObject({ error: { reason: "UNAVAILABLE" } });
    });
    first.die();
    await eventually(async () => (await a.client(AdminService).getStatus({})).harnesses.length === 0);
    await leasesLast(ids, 0);
    const other = rig.harness(a);
    for (const sessionId of ids) await other.assigned(sessionId, { withinMs: 60_000 });
  });

  test("a lease that is renewed lasts, and its renewal says until when", async () => {
    const sessionId = await rig.createSession();
    const h = rig.harness(a, { capacity: 1 });
    const { lease, expiresAt } = await h.assigned(sessionId);
    const rival = rig.harness(b);
    await rival.welcome();
    const LEFT_MS = 60_000;
    await leasesLast([sessionId], LEFT_MS);
    h.say({ case: "renew", value: { leaseIds: [lease?.leaseId ?? ""] } });
    await eventually(() => h.all("renewed").length === 1);
    const until = Number(h.all("renewed")[0]?.expiresAt?.seconds ?? 0n);
    expect(until).toBeGreaterThanOrEqual(Number(expiresAt?.seconds ?? 0n));
    // Who may have a session is decided by what stands there, by the database's clock.
    const lasts = "select 1 from sessions where lease_id = $1 and lease_expires_at > clock_timestamp() + $2";
    const isLasting = await rig.database.pool().query(lasts, [lease?.leaseId, `${LEFT_MS} milliseconds`]);
    expect(isLasting.rowCount).toBe(1);
    // Whoever could take it looks for work, and takes what there is.
    await rival.assigned(await rig.createSession());
    expect(rival.assignments).toHaveLength(1);
    expect(h.all("leaseLost")).toEqual([]);
  });

  test("archiving withdraws the lease: the holder is told, and what it still sends is refused", async () => {
    const sessionId = await rig.createSession();
    const h = rig.harness(a);
    const { lease } = await h.assigned(sessionId);
    await a.client(SessionService).archiveSession({ sessionId, interrupt: true });
    await eventually(() => h.all("leaseLost").some(({ leaseId }) => leaseId === lease?.leaseId));
    const late = a
      .client(SessionService, rig.harnessKey)
      .emitEvents({ sessionId, events: [{ type: "session.status_running" }], lease });
    await expect(late).rejects.toMatchObject({ code: 9 });
  });

  test("a session that says running without a live lease is said to be rescheduled (E3, R8)", async () => {
    const sessionId = await rig.createSession();
    const h = rig.harness(a);
    const { lease } = await h.assigned(sessionId);
    await a
      .client(SessionService, rig.harnessKey)
      .emitEvents({ sessionId, events: [{ type: "session.status_running" }], lease });
    const sessions = a.client(SessionService);
    const status = async () => (await sessions.getSession({ sessionId })).session?.status;
    expect(await status()).toBe(SessionStatus.RUNNING);
    h.die();
    await eventually(async () => (await status()) === SessionStatus.RESCHEDULING);
    const { events } = await sessions.getEvents({ sessionId, types: ["session.status_rescheduled"] });
    expect(events).toHaveLength(1);
  });

  test("a session that kills every harness before anything is recorded runs alone after two deaths and ends after the third (E4)", async () => {
    const poison = await rig.createSession();
    const deaths: boolean[] = [];
    for (let death = 1; death <= 3; death++) {
      const h = rig.harness(a);
      const { silentDeaths } = await h.assigned(poison);
      expect(silentDeaths).toBe(death - 1);
      if (death === 3) {
        // Alone: another session waits although there is room.
        const other = await rig.createSession();
        await a.client(SessionService).wakeSession({ sessionId: other });
        deaths.push(h.assignments.some(({ session }) => session?.id === other));
      }
      h.die();
      await eventually(async () => (await a.client(AdminService).getStatus({})).harnesses.length === 0);
    }
    expect(deaths).toEqual([false]);
    const h = rig.harness(a);
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

/** What ends a lease, or a session's deaths, waits for whoever holds the lock 12. */
const HELD_ENDINGS = `
create function hold_endings() returns trigger language plpgsql as $body$
begin
  if current_query() like '%silent_deaths = 0%' then perform pg_advisory_xact_lock_shared(12); end if;
  return null;
end
$body$;
create trigger hold_endings before update on sessions for each statement execute function hold_endings()`;
const ENDINGS = "drop trigger hold_endings on sessions; drop function hold_endings()";

describe("a session that is given up", () => {
  test("keeps what is said to it meanwhile: that is the first message of a new start (E4)", async () => {
    const poison = await rig.createSession();
    const sessions = a.client(SessionService);
    const pool = rig.database.pool();
    await pool.query(HELD_ENDINGS);
    const holder = await pool.connect();
    try {
      await holder.query("begin");
      await holder.query("select pg_advisory_xact_lock(12)");
      await pool.query("update sessions set silent_deaths = 3 where session_id = $1", [poison]);
      const isIdle = { sessionId: poison, types: ["session.status_idle"] };
      await eventually(async () => (await sessions.getEvents(isIdle)).events.length === 1);
      await sessions.emitEvents({ sessionId: poison, events: [message] });
    } finally {
      await holder.query("rollback");
      holder.release();
      await pool.query(ENDINGS);
    }
    const { silentDeaths, tail } = await rig.harness(a).assigned(poison);
    expect(silentDeaths).toBe(0);
    expect(tail.at(-1)?.type).toBe("user.message");
  });
});

describe("a session whose row somebody holds for long", () => {
  test("keeps no other session from being assigned, renewed or released, and is assigned once it is free", async () => {
    const [stuck, plain, held] = [
      await rig.createSession(),
      await rig.createSession(),
      await rig.createSession(rig.agentId, false),
    ];
    const connection = await rig.database.pool().connect();
    await connection.query("begin");
    await connection.query("select 1 from sessions where session_id = any($1) for update", [[stuck]]);
    const h = rig.harness(a);
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
    const sessionId = await rig.createSession();
    const h = rig.harness(a);
    const { lease } = await h.assigned(sessionId);
    const connection = await rig.database.pool().connect();
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

/** Who gets a harness first, and what a session that kills its holders may take along; the harnesses are scripted. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { HarnessService } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { SessionStatus, StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { ScriptedHarness } from "../kit/scripted-harness.ts";
import { startServer, type TestServer } from "../kit/server.ts";

let database: TestDatabase;
let server: TestServer;
let harnessKey = "";
const harnesses: ScriptedHarness[] = [];
const workspaces: Workspace[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  harnessKey = await server.localKey("harness");
});
afterEach(async () => {
  for (const { key, sessionIds } of workspaces.splice(0)) {
    const sessions = server.client(SessionService, key);
    for (const sessionId of sessionIds) await sessions.archiveSession({ sessionId, interrupt: true });
  }
  for (const one of harnesses.splice(0)) one.die();
  await eventually(async () => (await server.client(AdminService).getStatus({})).harnesses.length === 0);
});
afterAll(async () => {
  await server?.stop();
  await database?.drop();
});

const message = { type: "user.message", payload: '{"content":[{"type":"text","text":"go"}]}' };
type Hello = ConstructorParameters<typeof ScriptedHarness>[1];

interface Workspace {
  readonly key: string;
  readonly sessionIds: string[];
  /** Sessions with work, as many, in the order in which they were made. */
  add(count: number, loop?: string): Promise<string[]>;
}

async function createWorkspace(runningSessions = 0): Promise<Workspace> {
  const admin = server.client(AdminService);
  const { workspace } = await admin.createWorkspace({
    name: `w${workspaces.length}-${performance.now()}`,
    limits: { runningSessions },
  });
  const { secret: key } = await admin.createApiKey({
    name: "k",
    role: Role.ADMIN,
    workspaceId: workspace?.id ?? "",
  });
  await server.client(EnvironmentService, key).createEnvironment({ spec: { name: "d" }, makeDefault: true });
  const sessionIds: string[] = [];
  const made: Workspace = {
    key,
    sessionIds,
    async add(count, loop = "claude") {
      const { agent } = await server.client(AgentService, key).createAgent({ spec: { name: "t", loop } });
      const sessions = server.client(SessionService, key);
      const request = { agentId: agent?.id ?? "", initialEvents: [message] };
      const makeOne = async () => (await sessions.createSession(request)).session?.id ?? "";
      const ids: string[] = [];
      while (ids.length < count) {
        const atOnce = count > 20 ? Math.min(10, count - ids.length) : 1;
        ids.push(...(await Promise.all(Array.from({ length: atOnce }, makeOne))));
      }
      sessionIds.push(...ids);
      return ids;
    },
  };
  workspaces.push(made);
  return made;
}

function harness(hello: Hello = {}): ScriptedHarness {
  const made = new ScriptedHarness(server.client(HarnessService, harnessKey), hello);
  harnesses.push(made);
  return made;
}

const order = (h: ScriptedHarness) => h.assignments.map(({ session }) => session?.id);

/** Gives back one assignment after the other, each once it is there. */
async function workOff(h: ScriptedHarness, count: number): Promise<void> {
  for (let done = 0; done < count; done++) {
    h.release(await eventually(() => h.assignments[done]));
  }
}

describe("fairness", () => {
  test("a workspace with an old backlog and one with a single new session take turns at one free place", async () => {
    const [busy, late] = [await createWorkspace(), await createWorkspace()];
    const backlog = await busy.add(6);
    const h = harness({ capacity: 2 });
    await eventually(() => h.assignments.length === 2);
    const [lone] = await late.add(1);
    // One place becomes free; what waits longest belongs to a workspace that has the other place.
    h.release(h.assignments[0]!);
    await eventually(() => h.assignments.length === 3);
    expect(order(h)[2]).toBe(lone);
    h.release(h.assignments[1]!);
    h.release(h.assignments[2]!);
    await eventually(() => h.assignments.length === 5);
    // What is taken together is prepared side by side, and what somebody just works on is passed over.
    const later = order(h).slice(3);
    expect(later.every((sessionId) => backlog.includes(sessionId ?? ""))).toBe(true);
    for (const held of h.assignments.slice(3)) h.release(held);
    await eventually(() => h.assignments.length === 7);
    for (const held of h.assignments.slice(5)) h.release(held);
  });

  test("one that is spoken to as a place becomes free does not get it before those that wait for it", async () => {
    const space = await createWorkspace();
    const [first] = await space.add(1);
    const h = harness({ capacity: 1 });
    const held = await h.assigned(first!);
    const waiting = await space.add(3);
    const client = await database.pool().connect();
    try {
      // Who waits is asked of this table too: from here on, who asks first is answered first.
      await client.query("begin");
      await client.query("lock table workspaces in access exclusive mode");
      await server
        .client(SessionService, space.key)
        .emitEvents({ sessionId: waiting[2]!, events: [message] });
      h.release(held);
      const isFree = "select 1 from sessions where session_id = $1 and lease_id is null";
      await eventually(async () => (await client.query(isFree, [first])).rowCount === 1);
      await client.query("commit");
    } finally {
      client.release(true);
    }
    await eventually(() => h.assignments.length === 2);
    expect(order(h)).toEqual([first, waiting[0]]);
    await workOff(h, 4);
  });

  test("sessions for which there is no room hide none for which there is", async () => {
    const space = await createWorkspace();
    // More than are looked at in one round.
    const stuck = await space.add(110);
    const other = harness({ loops: ["other"], capacity: 1 });
    await other.welcome();
    const [runnable] = await space.add(1, "other");
    await other.assigned(runnable!);
    other.release(other.assignments[0]!);
    const h = harness({ capacity: 200 });
    await eventually(() => h.assignments.length === stuck.length, { withinMs: 60_000 });
    expect(new Set(order(h))).toEqual(new Set(stuck));
    await workOff(h, stuck.length);
  });

  test("a harness takes as many sessions as it said, and the next one as soon as it has given one back", async () => {
    const space = await createWorkspace();
    await space.add(9);
    const [small, large] = [harness({ capacity: 1 }), harness({ capacity: 3 })];
    await eventually(() => small.assignments.length === 1 && large.assignments.length === 3);
    for (let round = 1; round <= 5; round++) {
      const [from, done] = round % 2 === 0 ? [small, (round - 1) / 2] : [large, (round - 1) / 2];
      from.release(from.assignments[Math.floor(done)]!);
      await eventually(() => small.assignments.length + large.assignments.length === 4 + round);
      const held = [small, large].map((h) => h.assignments.length);
      expect(held).toEqual([1 + Math.floor(round / 2), 3 + Math.ceil(round / 2)]);
    }
  });
});

describe("a workspace with a limit of running sessions", () => {
  test("runs no more at a time, whoever else has room, and goes on as they end", async () => {
    const space = await createWorkspace(2);
    await space.add(5);
    const h = harness({ capacity: 50 });
    await eventually(() => h.assignments.length === 2);
    await space.add(1);
    // Somebody else's session passes by.
    const [free] = await (await createWorkspace()).add(1);
    h.release(await h.assigned(free!));
    const ofSpace = () => h.assignments.filter(({ session }) => session?.id !== free);
    expect(ofSpace()).toHaveLength(2);
    for (let done = 0; done < 6; done++) {
      h.release(await eventually(() => ofSpace()[done]));
      await eventually(() => ofSpace().length === Math.min(6, done + 3));
    }
  });
});

describe("WakeSession", () => {
  test("may be repeated: it changes nothing of a session that runs, rests, or is about to run", async () => {
    const space = await createWorkspace();
    const [sessionId] = await space.add(1);
    const sessions = server.client(SessionService, space.key);
    const wake = () => sessions.wakeSession({ sessionId: sessionId! });
    await wake();
    await wake();
    const h = harness();
    const rival = harness();
    // Not still on its way when the test is over.
    await Promise.all([h.welcome(), rival.welcome()]);
    const assignment = await eventually(() => [...h.assignments, ...rival.assignments][0]);
    expect(assignment.session?.id).toBe(sessionId);
    const before = await sessions.getSession({ sessionId: sessionId! });
    for (let n = 0; n < 5; n++) await wake();
    expect(await sessions.getSession({ sessionId: sessionId! })).toEqual(before);
    const holder = h.assignments.length > 0 ? h : rival;
    holder.release(assignment);
    await eventually(async () => !(await sessions.getSession({ sessionId: sessionId! })).session?.hasWork);
    for (let n = 0; n < 5; n++) await wake();
    expect(h.assignments.length + rival.assignments.length).toBe(1);
    await expect(sessions.wakeSession({ sessionId: "sesn_none" })).rejects.toMatchObject({
      reason: "NOT_FOUND",
    });
  });
});

describe("a session whose holders die", () => {
  test("each time after they have begun to ask a model is run alone in the end, and given up there (E4)", async () => {
    const space = await createWorkspace();
    const [sessionId] = await space.add(1);
    const sessions = server.client(SessionService, harnessKey);
    let deaths = 0;
    for (; deaths < 5; deaths++) {
      const h = harness();
      const { lease } = await h.assigned(sessionId!);
      const events = [{ type: "session.status_running" }, { type: "span.model_request_start" }];
      await sessions.emitEvents({ sessionId: sessionId!, events, lease });
      if (deaths === 4) {
        // Alone: a neighbour waits although there is room.
        const [neighbour] = await space.add(1);
        await sessions.wakeSession({ sessionId: neighbour! }).catch(() => {});
        expect(order(h)).toEqual([sessionId]);
      }
      h.die();
      await eventually(async () => (await server.client(AdminService).getStatus({})).harnesses.length === 0);
    }
    const h = harness();
    const { session } = await eventually(async () => {
      const read = await server.client(SessionService, space.key).getSession({ sessionId: sessionId! });
      return read.session?.status === SessionStatus.IDLE ? read : undefined;
    });
    expect(session?.stopReason).toBe(StopReason.RETRIES_EXHAUSTED);
    expect(order(h)).not.toContain(sessionId);
  });

  test("does not count deaths between which it got anywhere (E4)", async () => {
    const space = await createWorkspace();
    const [sessionId] = await space.add(1);
    const sessions = server.client(SessionService, harnessKey);
    for (let deaths = 0; deaths < 6; deaths++) {
      const h = harness();
      const { lease, silentDeaths } = await h.assigned(sessionId!);
      expect(silentDeaths).toBe(0);
      const type = deaths % 2 === 0 ? "span.model_request_start" : "agent.message";
      await sessions.emitEvents({ sessionId: sessionId!, events: [{ type }], lease });
      h.die();
      await eventually(async () => (await server.client(AdminService).getStatus({})).harnesses.length === 0);
    }
    await harness().assigned(sessionId!);
  });
});

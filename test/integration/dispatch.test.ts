/** Work distribution with a real server and Postgres; the harnesses are scripted, the far side of the wire. */
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { HarnessService, ReleaseReason } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { type DispatchRig, message, startDispatchRig } from "../kit/dispatch-rig.ts";
import { eventually } from "../kit/eventually.ts";
import type { TestServer } from "../kit/server.ts";

let rig: DispatchRig;
let a: TestServer;
let b: TestServer;

beforeAll(async () => {
  rig = await startDispatchRig();
  ({ a, b } = rig);
});
afterEach(() => rig.clear());
afterAll(() => rig?.stop());

describe("assignments", () => {
  test("a session gets a harness when it has work, on whichever replica, and only then (E2)", async () => {
    const quiet = await rig.createSession(rig.agentId, false);
    const busy = await rig.createSession();
    const h = rig.harness(b);
    const assignment = await h.assigned(busy);
    expect(assignment.tail.map(({ type, position }) => [type, position])).toEqual([["user.message", 1n]]);
    expect([assignment.lease?.epoch, assignment.session?.agent?.id]).toEqual([1n, rig.agentId]);
    expect(assignment.sessionToken.split(".")).toHaveLength(3);
    h.release(assignment);
    await a.client(SessionService).emitEvents({ sessionId: quiet, events: [message] });
    h.release(await h.assigned(quiet));
    expect(h.assignments).toHaveLength(2);
  });

  test("only a harness that has the agent's loop, and room, gets the session", async () => {
    const special = await rig.createSession(await rig.createAgent("special"));
    const plain = rig.harness(a);
    await plain.welcome();
    const other = rig.harness(a, { loops: ["special"], capacity: 1 });
    const assignment = await other.assigned(special);
    const second = await rig.createSession(assignment.session?.agent?.id);
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
    for (let i = 0; i < 5; i++) many.push(await rig.createSession());
    const others = a.client(SessionService, secret);
    const lone = await others.createSession({ agentId: agent?.id ?? "", initialEvents: [message] });
    const sessionId = lone.session?.id ?? "";
    onTestFinished(async () => void (await others.archiveSession({ sessionId, interrupt: true })));
    const h = rig.harness(a, { capacity: 2 });
    await eventually(() => h.assignments.length === 2);
    expect(h.assignments.map(({ session }) => session?.id).sort()).toEqual([many[0], sessionId].sort());
    for (let done = 0; done < 6; done++) {
      await eventually(() => h.assignments.length > done);
      h.release(h.assignments[done]!);
    }
  });

  test("what others append to a held session is pushed to its holder, once and in order", async () => {
    const sessionId = await rig.createSession();
    const h = rig.harness(b);
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
    await b.client(SessionService, rig.harnessKey).emitEvents({ sessionId, events: [own], lease });
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
    const sessionId = await rig.createSession();
    const h = rig.harness(a);
    h.release(await h.assigned(sessionId), ReleaseReason.RETRY_LATER, { retryAfterMs: 60_000 });
    const waits =
      "select 1 from sessions where session_id = $1 and lease_id is null and not_before > clock_timestamp()";
    await eventually(async () => (await rig.database.pool().query(waits, [sessionId])).rowCount === 1);
    expect((await a.client(SessionService).wakeSession({ sessionId })).hasWork).toBe(true);
    const again = await h.assigned(sessionId, { times: 2 });
    expect(again.lease?.epoch).toBe(2n);
  });

  test("a session that its harness has no room for goes to others first", async () => {
    const sessionId = await rig.createSession();
    const full = rig.harness(a);
    const assignment = await full.assigned(sessionId);
    // With more of its places taken it would be chosen last.
    const other = rig.harness(a, { capacity: 2 });
    await other.welcome();
    await other.assigned(await rig.createSession());
    full.release(assignment, ReleaseReason.RETRY_LATER, { lacksRoom: true });
    await other.assigned(sessionId);
  });

  test("work that came after what the holder had seen brings the session again at once", async () => {
    const sessionId = await rig.createSession();
    const h = rig.harness(a);
    const first = await h.assigned(sessionId);
    await a.client(SessionService).emitEvents({ sessionId, events: [message] });
    h.release(first);
    const second = await h.assigned(sessionId, { times: 2 });
    h.release(second);
    expect(second.tail.map(({ position }) => position)).toEqual([1n, 2n]);
  });
});

describe("the stream", () => {
  test("begins with hello, in a version that the server speaks", async () => {
    const wrong = rig.harness(a, { protocolVersion: 99 });
    await eventually(() => wrong.ended);
    expect(wrong.ended?.error).toMatchObject({ reason: "PROTOCOL_VERSION_UNSUPPORTED" });
    const call = a.client(HarnessService, rig.harnessKey).work();
    await call.send({ kind: { case: "goodbye", value: {} } });
    await expect(call.responses[Symbol.asyncIterator]().next()).rejects.toMatchObject({
      reason: "INVALID_FIELD",
    });
  });

  test("a harness that is back before its old stream has ended stays known when that ends (H3)", async () => {
    const sessionId = await rig.createSession();
    const first = rig.harness(a);
    await first.assigned(sessionId);
    const { instanceId } = first;
    const again = rig.harness(a, { instanceId });
    await again.welcome();
    first.die();
    // What the old stream held is given to others a while after its end.
    await again.assigned(sessionId);
    const { harnesses } = await a.client(AdminService).getStatus({});
    expect(harnesses.map((one) => one.instanceId)).toEqual([instanceId]);
  });

  test("a harness that says goodbye leaves its sessions to others at once", async () => {
    const sessionId = await rig.createSession();
    const first = rig.harness(a);
    await first.assigned(sessionId);
    const second = rig.harness(a);
    await second.welcome();
    await first.leave();
    expect((await second.assigned(sessionId)).silentDeaths).toBe(0);
  });
});

describe("one agent that is odd", () => {
  test("does not keep anybody from work: what Postgres cannot read as JSON is taken for the default loop", async () => {
    const odd = await rig.createSession();
    await rig.database
      .pool()
      .query(
        'update sessions set agent = replace(agent, \'"name":"t"\', \'"name":"a\\u0000b"\') where session_id = $1',
        [odd],
      );
    const plain = await rig.createSession();
    const h = rig.harness(a);
    await h.assigned(plain);
    await h.assigned(odd);
  });

  test("a NUL in what people name or describe is refused with the path of its field", async () => {
    const agents = a.client(AgentService);
    const field = (path: string) => ({ reason: "INVALID_FIELD", metadata: { field: path } });
    await expect(agents.createAgent({ spec: { name: "p", system: "a\0b" } })).rejects.toMatchObject(
      field("spec.system"),
    );
    const session = a.client(SessionService).createSession({ agentId: rig.agentId, metadata: { k: "\0" } });
    await expect(session).rejects.toMatchObject(field('metadata["k"]'));
  });
});

/** A replica dies, hangs or cannot be reached while others need what it holds. Nothing of it is ever a result (X1–X3, H3). */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { LeaseProof } from "../../proto/gen/tendon/v1/event_pb.js";
import { HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { HarnessService } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { freePort } from "../kit/free-port.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { hasProcesses, type RunningProgram, startProgram } from "../kit/program.ts";
import { collectCall, enrolledAgent, type Ran, tellTaleBytes, toolUse } from "../kit/replica-rig.ts";
import { type ScriptedAgentOptions, type ScriptedHandAgent, textResult } from "../kit/scripted-hand-agent.ts";
import { ScriptedHarness } from "../kit/scripted-harness.ts";
import { startServer, type TestServer } from "../kit/server.ts";
import { startTcpRelay } from "../kit/tcp-relay.ts";

const message = { type: "user.message", payload: '{"content":[{"type":"text","text":"go"}]}' };
let database: TestDatabase;
let a: TestServer;
let harnessKey = "";
let agentId = "";
const cleanups: (() => Promise<void> | void)[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  a = await startServer({ databaseUrl: database.url, peers: true });
  harnessKey = await a.localKey("harness");
  const { agent } = await a.client(AgentService).createAgent({ spec: { name: "t" } });
  agentId = agent?.id ?? "";
  await a.client(EnvironmentService).createEnvironment({ spec: { name: "default" }, makeDefault: true });
});
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});
afterAll(async () => {
  await a?.stop();
  await database?.drop();
});

async function reaches(count: number): Promise<void> {
  const pattern = new RegExp(`^tendon_peer_replicas ${count}$`, "m");
  await eventually(async () => pattern.test(await (await a.fetch("/metrics")).text()), { withinMs: 60_000 });
}

interface Other {
  readonly url: string;
  readonly program: RunningProgram;
}

/** Another replica as a program that a test can kill, and that A can reach. */
async function startOther(): Promise<Other> {
  const dataDir = await mkdtemp(join(tmpdir(), "tendon-replica-"));
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const program = startProgram("server", {
    TENDON_DATABASE_URL: database.url,
    TENDON_DATABASE_POOL: "4",
    TENDON_DATA_DIR: dataDir,
    TENDON_PORT: String(port),
    TENDON_PEER_URL: url,
  });
  cleanups.push(async () => {
    await program.end("SIGKILL");
    expect(hasProcesses(program)).toBe(false);
    // As if it had been gone for long: the next test's replicas are the ones it starts.
    await database
      .pool()
      .query("update replicas set seen_at = now() - interval '1 hour' where peer_url = $1", [url]);
    await rm(dataDir, { recursive: true, force: true });
  });
  await eventually(async () => (await fetch(`${url}/readyz`)).ok, { withinMs: 60_000 });
  await reaches(1);
  return { url, program };
}

async function agentAt(url: string, options: Partial<ScriptedAgentOptions>): Promise<ScriptedHandAgent> {
  const agent = await enrolledAgent({ url: a.url, admin: a.client(AdminService) }, options);
  cleanups.push(() => agent.disconnect());
  await agent.connect(url);
  return agent;
}

async function brain() {
  // With room for its own session alone, and there before it: a brain of the same test gets another one.
  const harness = new ScriptedHarness(a.client(HarnessService, harnessKey), { capacity: 1 });
  await harness.live();
  const { session } = await a.client(SessionService).createSession({ agentId, initialEvents: [message] });
  const sessionId = session?.id ?? "";
  cleanups.push(async () => {
    await a.client(SessionService).archiveSession({ sessionId, interrupt: true });
    harness.die();
  });
  const lease = (await harness.assigned(sessionId, { withinMs: 60_000 })).lease as LeaseProof;
  return { sessionId, lease };
}

const bytes = tellTaleBytes(700_000);

/** A call on A, of an agent at the other replica, that has written a part of its output and waits. */
async function callInTheMiddle(url: string) {
  let goOn = () => {};
  const gate = new Promise<void>((resolve) => {
    goOn = resolve;
  });
  const agent = await agentAt(url, {
    run: async (call) => {
      call.write(bytes.subarray(0, 400_000));
      await gate;
      call.write(bytes.subarray(400_000));
      return textResult("the one result");
    },
  });
  const { sessionId, lease } = await brain();
  const call = await toolUse(a.client(SessionService, harnessKey), sessionId, lease);
  let seenBytes = 0;
  const running = collectCall(a.client(HandService, harnessKey).execute(call), () => {
    seenBytes += 1;
  });
  running.catch(() => {});
  await eventually(() => seenBytes > 0);
  return { agent, sessionId, call, running, goOn };
}

async function expectOnce(ran: Ran, agent: ScriptedHandAgent, sessionId: string): Promise<void> {
  expect(ran.gaps).toEqual([]);
  expect(ran.output.equals(bytes)).toBe(true);
  expect(ran.result?.content).toContain("the one result");
  expect([...agent.runs.values()]).toEqual([1]);
  const { rows } = await database
    .pool()
    .query("select 1 from events where session_id = $1 and type = 'agent.tool_result'", [sessionId]);
  expect(rows).toHaveLength(1);
}

describe("the replica that holds the agent", () => {
  test("is killed in the middle of a call: the agent comes to A, one result, every byte once (X1, X2)", async () => {
    const other = await startOther();
    const { agent, sessionId, running, goOn } = await callInTheMiddle(other.url);
    await other.program.end("SIGKILL");
    await eventually(() => agent.ended !== undefined);
    goOn();
    await agent.disconnect();
    await agent.connect(a.url);
    await expectOnce(await running, agent, sessionId);
  });

  test("is killed and the agent goes to a third one: A goes on following there (X2)", async () => {
    const other = await startOther();
    const { agent, sessionId, running, goOn } = await callInTheMiddle(other.url);
    await other.program.end("SIGKILL");
    const third = await startServer({ databaseUrl: database.url, peers: true });
    cleanups.unshift(() => third.stop());
    await agent.disconnect();
    await agent.connect(third.url);
    goOn();
    await expectOnce(await running, agent, sessionId);
  });

  test("hangs: the agent comes to A and the call ends there; awake again, it does no harm (H3)", async () => {
    const other = await startOther();
    const { agent, sessionId, running, goOn } = await callInTheMiddle(other.url);
    process.kill(other.program.pid, "SIGSTOP");
    try {
      await agent.disconnect();
      await agent.connect(a.url);
      goOn();
      await expectOnce(await running, agent, sessionId);
    } finally {
      process.kill(other.program.pid, "SIGCONT");
    }
    const { sessionId: again, lease } = await brain();
    agent.run = () => textResult("still here");
    const call = await toolUse(a.client(SessionService, harnessKey), again, lease);
    const ran = await collectCall(a.client(HandService, harnessKey).execute(call));
    expect(ran.result?.content).toContain("still here");
    expect(await other.program.end("SIGTERM")).toBe(0);
    // It has done all that it ever will.
    expect(agent.ended).toBeUndefined();
  });

  test("hangs while a hand is made over it: the agent comes to A and makes it there, as the same hand", async () => {
    const other = await startOther();
    let asked = 0;
    const agent = await agentAt(other.url, {
      onProvision: () => {
        asked += 1;
        return asked === 1 ? new Promise(() => {}) : Promise.resolve({});
      },
    });
    const provisioned = a.client(HandService).provision({ requestId: `hang-${Date.now()}` });
    provisioned.catch(() => {});
    await eventually(() => asked === 1);
    process.kill(other.program.pid, "SIGSTOP");
    try {
      await agent.disconnect();
      await agent.connect(a.url);
      const { hand } = await provisioned;
      expect(hand?.state).toBe(HandState.READY);
      expect([...agent.hands]).toEqual([hand?.id]);
    } finally {
      process.kill(other.program.pid, "SIGCONT");
    }
  });

  test("stops in good order: the agent is told, and the call goes on at A (X2)", async () => {
    const other = await startOther();
    const { agent, sessionId, running, goOn } = await callInTheMiddle(other.url);
    const ended = other.program.end("SIGTERM");
    await eventually(() => agent.heard.some((kind) => kind.case === "draining"));
    await agent.disconnect();
    await agent.connect(a.url);
    expect(await ended).toBe(0);
    goOn();
    await expectOnce(await running, agent, sessionId);
    await reaches(0);
  });
});

describe("the way between two replicas", () => {
  /** Another replica that A reaches over a relay; agents reach it directly. */
  async function startBehindRelay() {
    const port = await freePort();
    const relay = await startTcpRelay(port);
    cleanups.push(() => relay.close());
    const url = `http://127.0.0.1:${relay.port}`;
    const other = await startServer({ databaseUrl: database.url, peers: { port, url } });
    cleanups.push(() => other.stop());
    await reaches(1);
    return { other, relay };
  }

  test("breaks again and again: the call is followed on, every byte once", async () => {
    const { other, relay } = await startBehindRelay();
    const { agent, sessionId, running, goOn } = await callInTheMiddle(other.url);
    for (let time = 0; time < 5; time += 1) {
      const before = relay.connections;
      relay.cut();
      await eventually(() => relay.connections > before);
    }
    goOn();
    await expectOnce(await running, agent, sessionId);
  });

  test("goes dead without a word: a call still gets its result, from the store, and nothing else runs (X3)", async () => {
    const { other, relay } = await startBehindRelay();
    const agent = await agentAt(other.url, {});
    const { sessionId, lease } = await brain();
    const call = (text: string) => toolUse(a.client(SessionService, harnessKey), sessionId, lease, { text });
    const hands = a.client(HandService, harnessKey);
    expect((await collectCall(hands.execute(await call("first")))).result?.content).toContain("first");
    relay.freeze();
    const ran = await collectCall(hands.execute(await call("second")));
    expect(ran.result?.content).toContain("second");
    expect([...agent.runs.values()]).toEqual([1, 1]);
  });
});

/** Three replicas on one database: brains, hand agents and watchers are wherever they like (L4, L5, X1–X3). */
import { randomUUID } from "node:crypto";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { Event, LeaseProof } from "../../proto/gen/tendon/v1/event_pb.js";
import { ExecutionOutcome, HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { HarnessService } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { PeerService } from "../../proto/gen/tendon/v1/peer_service_pb.js";
import {
  ProxyService,
  type ProxyServiceConnectResponse,
} from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import { SessionService, type WatchEventsResponse } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { gate } from "../kit/fake-messages-api.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import {
  collectCall,
  enrolledAgent,
  expectOnceInOrder,
  tellTaleBytes,
  toolUse,
  untilShownWhole,
} from "../kit/replica-rig.ts";
import { RoundsClock } from "../kit/rounds-clock.ts";
import { type ScriptedCall, type ScriptedHandAgent, textResult } from "../kit/scripted-hand-agent.ts";
import { ScriptedHarness } from "../kit/scripted-harness.ts";
import { startServer, type TestServer } from "../kit/server.ts";

const message = { type: "user.message", payload: '{"content":[{"type":"text","text":"go"}]}' };
/** Of the servers that are told. */
const clock = new RoundsClock();
let database: TestDatabase;
let a: TestServer;
let b: TestServer;
let c: TestServer;
let adminKey = "";
let harnessKey = "";
let agentId = "";
const agents: ScriptedHandAgent[] = [];
const harnesses: ScriptedHarness[] = [];
const sessionIds: string[] = [];
const watches: AbortController[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  a = await startServer({ databaseUrl: database.url, peers: true });
  adminKey = a.adminKey;
  harnessKey = await a.localKey("harness");
  b = await startServer({ databaseUrl: database.url, peers: true, clock });
  c = await startServer({ databaseUrl: database.url, peers: true, clock });
  const { agent } = await a.client(AgentService).createAgent({ spec: { name: "t" } });
  agentId = agent?.id ?? "";
  await a.client(EnvironmentService).createEnvironment({ spec: { name: "default" }, makeDefault: true });
  for (const server of [a, b, c])
    await eventually(async () => (await metric(server, "tendon_peer_replicas")) === 2);
});
afterEach(async () => {
  clock.isHeld = false;
  for (const watch of watches.splice(0)) watch.abort();
  for (const sessionId of sessionIds.splice(0)) {
    await a.client(SessionService).archiveSession({ sessionId, interrupt: true });
  }
  for (const harness of harnesses.splice(0)) harness.die();
  for (const agent of agents.splice(0)) await agent.disconnect();
  await eventually(async () => {
    const { harnesses: left, handAgentsOnline } = await a.client(AdminService).getStatus({});
    const wanted = await metric(b, "tendon_previews_wanted_elsewhere");
    return left.length === 0 && handAgentsOnline === 0 && wanted === 0;
  });
});
afterAll(async () => {
  for (const server of [a, b, c]) await server?.stop();
  await database?.drop();
});

async function metric(server: TestServer, name: string): Promise<number> {
  const text = await (await server.fetch("/metrics")).text();
  return Number(new RegExp(`^${name} (\\d+)`, "m").exec(text)?.[1]);
}

async function agentAt(
  server: TestServer,
  run?: (call: ScriptedCall) => Promise<ReturnType<typeof textResult>> | ReturnType<typeof textResult>,
): Promise<ScriptedHandAgent> {
  const agent = await enrolledAgent(
    { url: server.url, admin: server.client(AdminService, adminKey) },
    run === undefined ? {} : { run },
  );
  agents.push(agent);
  await agent.connect();
  return agent;
}

/** A session whose brain is connected to this replica. */
async function brainAt(server: TestServer) {
  const harness = new ScriptedHarness(server.client(HarnessService, harnessKey));
  harnesses.push(harness);
  await harness.live();
  const { session } = await a.client(SessionService).createSession({ agentId, initialEvents: [message] });
  const sessionId = session?.id ?? "";
  sessionIds.push(sessionId);
  const lease = (await harness.assigned(sessionId, { withinMs: 60_000 })).lease as LeaseProof;
  const sessions = server.client(SessionService, harnessKey);
  const hands = server.client(HandService, harnessKey);
  return { harness, sessionId, lease, sessions, hands };
}

/** Watches until the test ends. */
function watch(server: TestServer, sessionId: string, previews = false) {
  const stop = new AbortController();
  watches.push(stop);
  const told: WatchEventsResponse["kind"][] = [];
  const client = server.client(SessionService, adminKey);
  const over = (async () => {
    try {
      for await (const { kind } of client.watchEvents({ sessionId, previews }, { signal: stop.signal }))
        told.push(kind);
      return undefined;
    } catch (error) {
      return error;
    }
  })();
  const positions = () =>
    told.flatMap((kind) => (kind.case === "event" ? [Number(kind.value.position)] : []));
  const previewText = () =>
    told
      .flatMap((kind) => (kind.case === "preview" ? [kind.value.kind] : []))
      .map((kind) => (kind.case === "text" || kind.case === "output" ? kind.value.text : ""))
      .join("");
  return { told, over, positions, previewText };
}

describe("watching on another replica", () => {
  test("events and previews of a brain on B reach watchers on A and C, in order and once (L4, L5)", async () => {
    const { harness, sessionId, lease, sessions } = await brainAt(b);
    const seen = [watch(a, sessionId, true), watch(c, sessionId, true)];
    const silent = watch(a, sessionId, false);
    for (const { told } of [...seen, silent]) await eventually(() => told.length > 0);
    const say = (eventId: string, text: string) => {
      const value = { eventId, index: 0, text };
      harness.say({
        case: "previews",
        value: { lease, sessionId, previews: [{ kind: { case: "text", value } }] },
      });
    };
    await eventually(async () => (await metric(b, "tendon_previews_wanted_elsewhere")) === 2);
    const wordsOf = (message: number) => Array.from({ length: 50 }, (_, word) => `${message}.${word} `);
    await untilShownWhole(seen, async (message) => {
      const eventId = newId("event");
      for (const word of wordsOf(message)) say(eventId, word);
      return wordsOf(message).join("");
    });
    for (const one of seen) expectOnceInOrder(one.previewText());
    const payload = '{"content":[{"type":"text","text":"done"}]}';
    for (let index = 0; index < 20; index += 1) {
      await sessions.emitEvents({ sessionId, lease, events: [{ type: "agent.message", payload }] });
    }
    for (const one of seen) await eventually(() => one.positions().at(-1) === 21);
    await eventually(() => silent.positions().at(-1) === 21);
    expect(silent.positions()).toEqual(Array.from({ length: 21 }, (_, index) => index + 1));
    expect(silent.previewText()).toBe("");
    for (const one of seen) {
      const positions = one.positions();
      expect(positions).toEqual(positions.map((_, index) => positions[0]! + index));
    }
  });

  test("output of a hand on B that a brain on A uses is shown once, on A, B and C (L5)", async () => {
    const linesOf = (call: unknown) => Array.from({ length: 5 }, (_, line) => `${call}.${line}\n`);
    await agentAt(b, (call) => {
      for (const line of linesOf(call.input.call)) call.write(line);
      return textResult("end");
    });
    const { sessionId, lease, sessions, hands } = await brainAt(a);
    const seen = [a, b, c].map((server) => watch(server, sessionId, true));
    for (const { told } of seen) await eventually(() => told.length > 0);
    await eventually(async () => (await metric(b, "tendon_previews_wanted_elsewhere")) === 2);
    const calls = await untilShownWhole(seen, async (call) => {
      await collectCall(hands.execute(await toolUse(sessions, sessionId, lease, { call })));
      return linesOf(call).join("");
    });
    for (const one of seen) {
      const results = () => one.told.filter(({ value }) => (value as Event)?.type === "agent.tool_result");
      await eventually(() => results().length === calls);
      expectOnceInOrder(one.previewText());
    }
  });

  test("a watcher that goes from replica to replica gets every position once while two replicas append (L4)", async () => {
    const { session } = await a.client(SessionService).createSession({ agentId });
    const sessionId = session?.id ?? "";
    sessionIds.push(sessionId);
    const total = 120;
    const appending = [a, b].map(async (server) => {
      const client = server.client(SessionService, adminKey);
      for (let index = 0; index < total / 2; index += 1) {
        await client.emitEvents({ sessionId, events: [{ type: "acme.tick", payload: "{}" }] });
      }
    });
    const positions: number[] = [];
    for (let hop = 0; positions.length < total; hop += 1) {
      const server = [a, b, c][hop % 3]!;
      const after = BigInt(positions.length);
      let left = 10;
      for await (const { kind } of server
        .client(SessionService, adminKey)
        .watchEvents({ sessionId, afterPosition: after })) {
        if (kind.case !== "event") continue;
        positions.push(Number(kind.value.position));
        left -= 1;
        if (left === 0 || positions.length === total) break;
      }
    }
    await Promise.all(appending);
    expect(positions).toEqual(Array.from({ length: total }, (_, index) => index + 1));
  });
});

describe("hands on another replica", () => {
  test("a call on A runs once on an agent at B: every byte once, one result (X1, X3)", async () => {
    const bytes = tellTaleBytes(3 * 1024 * 1024 + 17);
    const agent = await agentAt(b, (call) => {
      for (let at = 0; at < bytes.length; at += 100_000) call.write(bytes.subarray(at, at + 100_000));
      return textResult("all of it");
    });
    const { sessionId, lease, sessions, hands } = await brainAt(a);
    const call = await toolUse(sessions, sessionId, lease);
    const ran = await collectCall(hands.execute(call));
    expect(ran.gaps).toEqual([]);
    expect(ran.output.equals(bytes)).toBe(true);
    expect(ran.result?.content).toContain("all of it");
    expect([...agent.runs.values()]).toEqual([1]);
    // Whoever asks again, anywhere, gets the same result and nothing runs.
    for (const server of [a, b, c]) {
      const again = await collectCall(server.client(HandService, harnessKey).execute(call));
      expect(again.result).toEqual(ran.result);
    }
    expect([...agent.runs.values()]).toEqual([1]);
    await eventually(() => agent.journal.size === 0);
  });

  test("short calls, many at a time, bring all of their output before their result", async () => {
    const agent = await agentAt(b, (call) => {
      call.write(`output of ${call.key}`);
      return textResult(call.key);
    });
    const { sessionId, lease, sessions, hands } = await brainAt(a);
    const calls = [];
    for (let index = 0; index < 40; index += 1)
      calls.push(await toolUse(sessions, sessionId, lease, { index }));
    const first = await collectCall(hands.execute(calls[0]!));
    const all = [
      first,
      ...(await Promise.all(calls.slice(1).map((call) => collectCall(hands.execute(call))))),
    ];
    for (const [index, ran] of all.entries()) {
      const key = `${sessionId}/${calls[index]!.executionId}`;
      expect(ran.output.toString()).toBe(`output of ${key}`);
      expect(ran.result?.content).toContain(key);
    }
    expect([...agent.runs.values()].every((runs) => runs === 1)).toBe(true);
    expect(agent.runs.size).toBe(40);
  });

  test("two who follow on A and C get the same bytes, and one who comes later gets them from where he asks", async () => {
    const bytes = tellTaleBytes(64 * 1024);
    const { open, opened } = gate();
    await agentAt(b, async (call) => {
      call.write(bytes.subarray(0, 40_000));
      await opened;
      call.write(bytes.subarray(40_000));
      return textResult("end");
    });
    const { sessionId, lease, sessions, hands } = await brainAt(a);
    const call = await toolUse(sessions, sessionId, lease);
    const started = gate();
    const here = collectCall(hands.execute(call), () => started.open());
    await started.opened;
    const followed = gate();
    const there = collectCall(c.client(HandService, harnessKey).execute(call), () => followed.open());
    await followed.opened;
    const joined = gate();
    const late = collectCall(
      c.client(HandService, harnessKey).execute({ ...call, fromOffset: 30_000n }),
      () => joined.open(),
    ).then(({ output }) => output);
    // Who comes when the call is over is given its result alone.
    await joined.opened;
    open();
    expect((await here).output.equals(bytes)).toBe(true);
    expect((await there).output.equals(bytes)).toBe(true);
    expect((await late).equals(bytes.subarray(30_000))).toBe(true);
  });

  test("a hand is made, used, and given back over another replica; a call on it is cancelled there (X1c)", async () => {
    const agent = await agentAt(
      b,
      (call) =>
        new Promise((resolve) => {
          call.write("runs");
          call.signal.addEventListener("abort", () =>
            resolve(textResult("stopped", { isError: true, outcome: ExecutionOutcome.CANCELLED })),
          );
        }),
    );
    const hands = a.client(HandService);
    const { hand } = await hands.provision({ requestId: randomUUID() });
    expect([hand?.state, hand?.handAgentId]).toEqual([HandState.READY, agent.handAgentId]);
    expect(agent.hands.size).toBe(1);
    const started = gate();
    const call = { handId: hand!.id, executionId: newId("event"), name: "bash", input: "{}" };
    const running = collectCall(hands.execute(call), () => started.open());
    await started.opened;
    await c.client(HandService, adminKey).cancelExecution({ executionId: call.executionId });
    const ran = await running;
    expect([ran.output.toString(), ran.result?.outcome]).toEqual(["runs", ExecutionOutcome.CANCELLED]);
    const released = await a.client(HandService).releaseHand({ handId: hand!.id });
    expect(released.hand?.state).toBe(HandState.RELEASED);
    expect(agent.hands.size).toBe(0);
  });

  test("an agent that changes the replica while it runs a call goes on being followed on A (X2)", async () => {
    const bytes = tellTaleBytes(300_000);
    const { open, opened } = gate();
    const agent = await agentAt(b, async (call) => {
      call.write(bytes.subarray(0, 200_000));
      await opened;
      call.write(bytes.subarray(200_000));
      return textResult("end");
    });
    const { sessionId, lease, sessions, hands } = await brainAt(a);
    const started = gate();
    const running = collectCall(hands.execute(await toolUse(sessions, sessionId, lease)), () =>
      started.open(),
    );
    await started.opened;
    await agent.disconnect();
    await agent.connect(c.url);
    await agent.disconnect();
    await agent.connect(a.url);
    await agent.disconnect();
    await agent.connect(c.url);
    open();
    const ran = await running;
    expect(ran.gaps).toEqual([]);
    expect(ran.output.equals(bytes)).toBe(true);
    expect([...agent.runs.values()]).toEqual([1]);
  });

  test("a call that was bound and never sent is sent by the replica that holds the agent (X3)", async () => {
    const agent = await agentAt(b);
    const { sessionId, lease, sessions, hands } = await brainAt(a);
    await collectCall(hands.execute(await toolUse(sessions, sessionId, lease, { text: "first" })));
    const call = await toolUse(sessions, sessionId, lease, { text: "left behind" });
    // As a replica leaves it that dies between binding and sending.
    await database.pool().query(
      `insert into executions (execution_key, workspace_id, session_id, execution_id, hand_id, hand_agent_id, journal_id,
         owner_number, name, input, input_hash, timeout_ms, answers_tool_use)
       select $1, workspace_id, session_id, $2, hand_id, hand_agent_id, journal_id, owner_number, name, $3, input_hash, timeout_ms, true
       from executions where session_id = $4`,
      [`${sessionId}/${call.executionId}`, call.executionId, call.input, sessionId],
    );
    const ran = await collectCall(hands.execute(call));
    expect(ran.result?.content).toContain("left behind");
    expect([...agent.runs.values()]).toEqual([1, 1]);
  });
});

describe("what one replica has done, others act on at once", () => {
  test("a hand agent that is revoked on A is cut off B", async () => {
    const agent = await agentAt(b);
    clock.isHeld = true;
    await a.client(AdminService).revokeHandAgent({ handAgentId: agent.handAgentId });
    await eventually(() => agent.ended !== undefined);
    clock.isHeld = false;
    await expect(agent.connect()).rejects.toMatchObject({ reason: "HAND_AGENT_REVOKED" });
  });

  test("a session that is archived on A: its watchers on B hear the end, its harness on C loses the lease", async () => {
    const { harness, sessionId, lease } = await brainAt(c);
    harness.renews = false;
    const watcher = watch(b, sessionId);
    await eventually(() => watcher.positions().length === 1);
    clock.isHeld = true;
    await a.client(SessionService).archiveSession({ sessionId, interrupt: true });
    await eventually(() => harness.all("leaseLost").some(({ leaseId }) => leaseId === lease.leaseId));
    expect(await watcher.over).toBeUndefined();
  });
});

test("the end of a session on A reaches proxies at B", async () => {
  const call = b.client(ProxyService, await b.localKey("proxy")).connect();
  const heard: ProxyServiceConnectResponse["kind"][] = [];
  const over = (async () => {
    for await (const { kind } of call.responses) heard.push(kind);
  })().catch(() => {});
  // RFC 8037's example key and its thumbprint.
  const publicJwk = '{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}';
  const sealingKeys = [{ keyId: "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k", publicJwk }];
  const value = { instanceId: newId("proxy"), protocolVersion: 1, url: "http://127.0.0.1:7401", sealingKeys };
  await call.send({ kind: { case: "hello", value } });
  await eventually(() => heard.length > 0);
  const { session } = await a.client(SessionService).createSession({ agentId });
  clock.isHeld = true;
  await a.client(SessionService).archiveSession({ sessionId: session?.id ?? "" });
  const forgotten = () =>
    heard.flatMap((kind) => (kind.case === "forgetSession" ? [kind.value.sessionId] : []));
  await eventually(() => forgotten().includes(session?.id ?? ""));
  call.cancel();
  await over;
});

describe("who may call a replica", () => {
  const command = { command: { kind: { case: "stopExecution" as const, value: { executionKey: "x" } } } };

  test("another replica's key, and no other key", async () => {
    const ask = (key: string) =>
      b.client(PeerService, key).forwardCommand({ handAgentId: "hagt_nobody", ...command });
    await expect(ask("tk_peer_made_up_by_somebody")).rejects.toMatchObject({ reason: "UNAUTHENTICATED" });
    await expect(ask("")).rejects.toMatchObject({ reason: "UNAUTHENTICATED" });
    await expect(ask(adminKey)).rejects.toMatchObject({ reason: "ROLE_NOT_ALLOWED" });
    await expect(ask(harnessKey)).rejects.toMatchObject({ reason: "ROLE_NOT_ALLOWED" });
    await expect(ask(await a.localKey("peer"))).rejects.toMatchObject({ reason: "NO_HAND_AGENT" });
    const sessions = b.client(SessionService, await a.localKey("peer"));
    await expect(sessions.listSessions({})).rejects.toMatchObject({ reason: "ROLE_NOT_ALLOWED" });
  });

  test("one hop: a replica that does not hold the agent refuses, also when it knows who does", async () => {
    const agent = await agentAt(b);
    const asA = c.client(PeerService, await a.localKey("peer"));
    await expect(asA.forwardCommand({ handAgentId: agent.handAgentId, ...command })).rejects.toMatchObject({
      reason: "NO_HAND_AGENT",
    });
    const old = { handAgentId: agent.handAgentId, generation: agent.generation + 1n, ...command };
    await expect(b.client(PeerService, await a.localKey("peer")).forwardCommand(old)).rejects.toMatchObject({
      reason: "NO_HAND_AGENT",
    });
    const welcome = { kind: { case: "draining" as const, value: {} } };
    await expect(
      b
        .client(PeerService, await a.localKey("peer"))
        .forwardCommand({ handAgentId: agent.handAgentId, command: welcome }),
    ).rejects.toMatchObject({ reason: "INVALID_FIELD" });
  });
});

import { describe, expect, test } from "vitest";
import { HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { HandTiming } from "../../server/hand/timing.ts";
import { eventually } from "../kit/eventually.ts";
import { collectExecution as collect, gate, textOfResult as textOf } from "../kit/execution-stream.ts";
import type { HandRig, RigSession } from "../kit/hand-rig.ts";
import {
  DEFAULT_TOOLS,
  type ScriptedAgentOptions,
  type ScriptedHandAgent,
  textResult,
} from "../kit/scripted-hand-agent.ts";
import { useHandRigs } from "../kit/use-hand-rig.ts";

const rigs = useHandRigs();

function startRig(timing: Partial<HandTiming> = {}): Promise<HandRig> {
  return rigs.start({ timing: { parkEveryMs: 50, spareUnusedMs: 50, ...timing } });
}

/** An agent with files of its own for each hand: `write` keeps the text, `read` gives it back. */
async function startAgent(
  rig: HandRig,
  capacityHands: number,
  options: Partial<ScriptedAgentOptions> = {},
): Promise<ScriptedHandAgent> {
  const files = new Map<string, string>();
  const agent: ScriptedHandAgent = await rig.agent({
    greeting: { capacityHands },
    run: ({ handId, input, resumed }) => {
      if (typeof input.text === "string") files.set(handId, input.text);
      return textResult(`${resumed ? "[new shell] " : ""}${files.get(handId) ?? "no file"}`);
    },
    // As the real one does.
    onProvision: async () =>
      agent.hands.size - agent.parked.size >= capacityHands
        ? { reason: "LIMIT_EXCEEDED", message: "full" }
        : {},
    ...options,
  });
  await agent.connect();
  return agent;
}

async function call(rig: HandRig, session: RigSession, input: Record<string, unknown> = {}): Promise<string> {
  const { result } = await collect(rig.harness.execute(await session.toolUse("bash", input)));
  return textOf(result);
}

/** As if its last call had ended so long ago. */
async function usedLongAgo(rig: HandRig, session: RigSession, agoMs: number): Promise<void> {
  const at = `now() - ${agoMs} * interval '1 millisecond'`;
  await rig.pool.query(`update hands set last_used_at = ${at} where session_id = $1`, [session.id]);
  await rig.pool.query(`update executions set bound_at = ${at}, finished_at = ${at} where session_id = $1`, [
    session.id,
  ]);
}

async function parkedOf(session: RigSession): Promise<string[]> {
  return (await session.events("hand.parked")).map(({ payload }) => String(payload.detail));
}

describe("a hand that is not used", () => {
  test("is parked after its environment's idle timeout; the next call resumes it with its files (H5, R16)", async () => {
    const rig = await startRig();
    const agent = await startAgent(rig, 3);
    const session = await rig.session(await rig.environment({ idleTimeoutMs: "60000" }));
    const lasting = await rig.session();
    expect(await call(rig, session, { text: "kept" })).toBe("kept");
    await call(rig, lasting, { text: "other" });
    await usedLongAgo(rig, session, 61_000);
    await eventually(async () => (await parkedOf(session)).length === 1);
    expect(await parkedOf(session)).toEqual(["idle for 1 min"]);
    expect([agent.parked.size, agent.hands.size]).toEqual([1, 2]);
    const { hands } = await rig.client.listHands({ sessionId: session.id });
    expect(hands[0]).toMatchObject({ state: HandState.PARKED, stateDetail: "idle for 1 min" });
    const { handAgents } = await rig.client.listHandAgents({});
    expect(handAgents.find(({ id }) => id === agent.handAgentId)).toMatchObject({ hands: 1 });
    // An agent that comes back with it tells the log nothing new, and why it was parked still stands.
    await agent.disconnect();
    await agent.connect();
    expect(await call(rig, lasting)).toBe("other");
    expect((await rig.client.listHands({ sessionId: session.id })).hands[0]?.stateDetail).toContain("idle");
    expect(await call(rig, session)).toBe("[new shell] kept");
    expect(agent.parked.size).toBe(0);
    await usedLongAgo(rig, session, 61_000);
    await eventually(async () => (await parkedOf(session)).length === 2);
    expect(await parkedOf(lasting)).toEqual([]);
  });

  test("stays while a call runs in it, however long, and for the timeout after its end", async () => {
    const rig = await startRig();
    const { open, opened } = gate<ReturnType<typeof textResult>>();
    const agent = await startAgent(rig, 3, { run: () => opened });
    const session = await rig.session();
    const idle = await rig.session(await rig.environment({ idleTimeoutMs: "200" }));
    const ran = call(rig, session);
    await eventually(() => agent.runs.size === 1);
    // Not before its call is there.
    await rig.pool.query("update hands set idle_timeout_ms = 200 where session_id = $1", [session.id]);
    const request = { requestId: "r", sessionId: idle.id, lease: idle.lease };
    const made = await rig.harness.provision(request);
    // The other one, younger and never used, is parked; so the running one would have been.
    await eventually(async () => (await parkedOf(idle)).length === 1);
    expect(agent.parked.has(made.hand!.id)).toBe(true);
    expect(await parkedOf(session)).toEqual([]);
    const ended = performance.now();
    open(textResult("done"));
    expect(await ran).toBe("done");
    await eventually(async () => (await parkedOf(session)).length === 1);
    expect(performance.now() - ended).toBeGreaterThan(190);
  });

  test("is released when it stayed parked for too long, and the next call is told (H2)", async () => {
    const rig = await startRig({ keepParkedMs: 400 });
    const agent = await startAgent(rig, 3);
    const session = await rig.session(await rig.environment({ idleTimeoutMs: "60000" }));
    await call(rig, session, { text: "kept" });
    await usedLongAgo(rig, session, 61_000);
    await eventually(async () => (await session.events("hand.released")).length === 1);
    expect((await session.events("hand.released"))[0]?.payload.detail).toBe("it was parked for 400 ms");
    await eventually(() => agent.hands.size === 0);
    expect(await call(rig, session)).toMatch(
      /^Note: the environment that earlier calls ran in was released.*\nno file$/,
    );
    expect(await call(rig, session)).not.toContain("Note");
  });

  test("is released with its session, also parked (H1)", async () => {
    const rig = await startRig();
    const agent = await startAgent(rig, 3);
    const session = await rig.session(await rig.environment({ idleTimeoutMs: "60000" }));
    await call(rig, session);
    await usedLongAgo(rig, session, 61_000);
    await eventually(() => agent.parked.size === 1);
    await eventually(async () => (await parkedOf(session)).length === 1);
    await rig.area.control.releaseSession(session.id);
    expect(agent.hands.size).toBe(0);
    expect(await session.events("hand.released")).toHaveLength(1);
  });

  test("is parked once where two replicas look, by the one that its agent is connected to", async () => {
    const first = await startRig();
    await startRig();
    const agent = await startAgent(first, 3);
    const environmentId = await first.environment({ idleTimeoutMs: "60000" });
    const sessions = await Promise.all(Array.from({ length: 3 }, () => first.session(environmentId)));
    for (const session of sessions) await call(first, session);
    for (const session of sessions) await usedLongAgo(first, session, 61_000);
    for (const session of sessions) await eventually(async () => (await parkedOf(session)).length > 0);
    for (const session of sessions) expect(await parkedOf(session)).toHaveLength(1);
    // A look that began before the first was over may ask once more; that changes nothing.
    const asked = agent.heard.flatMap((kind) => (kind.case === "park" ? [kind.value.handId] : []));
    expect(new Set(asked).size).toBe(3);
  });
});

describe("when all places are taken", () => {
  test("ten sessions one after the other work on three places; the first one's file is still there (H5)", async () => {
    const rig = await startRig();
    const agent = await startAgent(rig, 3);
    const sessions: RigSession[] = [];
    for (let index = 0; index < 10; index += 1) {
      const session = await rig.session();
      sessions.push(session);
      expect(await call(rig, session, { text: `file ${index}` })).toBe(`file ${index}`);
      expect(await call(rig, session)).toBe(`file ${index}`);
      await session.rest();
    }
    expect(await parkedOf(sessions[0]!)).toEqual(["made room for another session"]);
    // Seven are parked; an agent that kept five at most would give up the two that were parked first.
    const excess = await rig.store.hands.excessParked(5, 10);
    expect(excess.map(({ sessionId }) => sessionId)).toEqual([sessions[0]!.id, sessions[1]!.id]);
    await sessions[0]!.wake();
    expect(await call(rig, sessions[0]!)).toBe("[new shell] file 0");
    expect(agent.hands.size).toBe(10);
    expect(agent.mostPlaced).toBe(3);
  });

  test("six running sessions wait for three places and take none from each other; all finish", async () => {
    const rig = await startRig();
    const agent = await startAgent(rig, 3);
    const sessions = await Promise.all(Array.from({ length: 6 }, () => rig.session()));
    await Promise.all(
      sessions.map(async (session, index) => {
        for (let round = 0; round < 3; round += 1) {
          expect(await call(rig, session, { text: `${index}.${round}` })).toBe(`${index}.${round}`);
        }
        await session.rest();
      }),
    );
    expect(agent.mostPlaced).toBe(3);
    for (const session of sessions) {
      const events = await session.events();
      const lastResult = events.findLastIndex(({ type }) => type === "agent.tool_result");
      const parked = events.findIndex(({ type }) => type === "hand.parked");
      if (parked !== -1) expect(parked).toBeGreaterThan(lastResult);
    }
    expect(agent.parked.size).toBe(3);
  });

  test("a parked hand waits for a place too, and says so when there is none in time", async () => {
    const rig = await startRig();
    await startAgent(rig, 1);
    const environmentId = await rig.environment();
    const first = await rig.session(environmentId);
    await call(rig, first, { text: "kept" });
    await first.rest();
    const second = await rig.session();
    await call(rig, second);
    await first.wake();
    await rig.limitProvisioning(environmentId, 500);
    const refused = await collect(rig.harness.execute(await first.toolUse("bash", {})));
    expect(refused.result.failure?.reason).toBe("NO_HAND_AGENT");
    expect(textOf(refused.result)).toContain("parked with its files");
    const [hand] = (await rig.client.listHands({ sessionId: first.id })).hands;
    expect(hand?.state).toBe(HandState.PARKED);
    await rig.limitProvisioning(environmentId, 60_000);
    await second.rest();
    expect(await call(rig, first)).toBe("[new shell] kept");
  });

  test("a hand with background processes makes room last, and its log says that they were ended", async () => {
    const rig = await startRig();
    const agent = await startAgent(rig, 2);
    const busy = await rig.session();
    const { hand } = await collect(rig.harness.execute(await busy.toolUse("bash", {})));
    const left = [{ pid: 7n, executionId: "e", command: "serve" }];
    agent.leftProcesses.set(hand!, left);
    agent.say({
      case: "handReport",
      value: { handId: hand!, state: HandState.READY, detail: "", driver: "process", leftProcesses: left },
    } as never);
    await eventually(
      async () => (await rig.client.getHand({ handId: hand! })).hand?.leftProcesses.length === 1,
    );
    await busy.rest();
    const plain = await rig.session();
    await call(rig, plain);
    await plain.rest();
    await usedLongAgo(rig, busy, 20 * 60_000);
    await usedLongAgo(rig, plain, 60_000);
    const third = await rig.session();
    await call(rig, third);
    expect([await parkedOf(busy), await parkedOf(plain)]).toEqual([[], ["made room for another session"]]);
    const fourth = await rig.session();
    await call(rig, fourth);
    const detail = "made room for another session; 1 background process was ended";
    expect(await parkedOf(busy)).toEqual([detail]);
    const { hand: parked } = await rig.client.getHand({ handId: hand! });
    expect(parked).toMatchObject({ stateDetail: detail, leftProcesses: [] });
  });

  test("hands of drivers that cannot park keep their places", async () => {
    const rig = await startRig();
    const agent = await startAgent(rig, 1, {
      greeting: { capacityHands: 1, drivers: [{ name: "process", available: true, tools: DEFAULT_TOOLS }] },
    });
    const environmentId = await rig.environment({ idleTimeoutMs: "50" });
    const first = await rig.session(environmentId);
    await call(rig, first);
    await first.rest();
    await rig.limitProvisioning(environmentId, 1_000);
    const second = await rig.session(environmentId);
    expect(await call(rig, second)).toContain("is full");
    expect(agent.heard.some(({ case: kind }) => kind === "park")).toBe(false);
  });

  test("a call that comes while its hand is being parked runs, and the hand stays ready", async () => {
    const rig = await startRig();
    const agent = await startAgent(rig, 3);
    const session = await rig.session(await rig.environment({ idleTimeoutMs: "60000" }));
    await call(rig, session, { text: "kept" });
    // As if its answer were slow: the call is bound after the agent has parked, before the server has noted it.
    let release = () => {};
    agent.beforeParkAnswer = () => new Promise<void>((resolve) => (release = resolve));
    await usedLongAgo(rig, session, 61_000);
    await eventually(() => agent.parked.size === 1);
    expect(await call(rig, session)).toBe("[new shell] kept");
    agent.beforeParkAnswer = undefined;
    release();
    expect(await call(rig, session)).toBe("kept");
    expect(await parkedOf(session)).toEqual([]);
  });
});

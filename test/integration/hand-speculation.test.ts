/** What the server does with hands that were asked for ahead of their calls (H4). */
import { afterAll, beforeAll, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import { HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "../kit/eventually.ts";
import { HandRig, type RigSession } from "../kit/hand-rig.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import type { ScriptedHandAgent } from "../kit/scripted-hand-agent.ts";

let database: TestDatabase;
let rig: HandRig;
let agent: ScriptedHandAgent;

beforeAll(async () => {
  database = await createTestDatabase();
  rig = new HandRig({ pool: database.pool() });
  await rig.start();
  agent = await rig.agent();
  await agent.connect();
});
afterAll(async () => {
  await rig?.stop();
  await database?.drop();
});

async function running(): Promise<RigSession> {
  const session = await rig.session();
  await session.append("session.status_running", {});
  return session;
}

const idle = (session: RigSession, type = "end_turn") =>
  session.append("session.status_idle", { stop_reason: { type } });

async function guess(session: RigSession, requestId: string = newId("event")): Promise<string> {
  const { id: sessionId, lease } = session;
  const { hand } = await rig.harness.provision({ requestId, sessionId, speculative: true, lease });
  return hand!.id;
}

async function call(session: RigSession): Promise<void> {
  for await (const _ of rig.harness.execute(await session.toolUse("echo", {}))) {
    // Until it has ended.
  }
}

async function stateOf(handId: string): Promise<HandState> {
  return (await rig.client.getHand({ handId })).hand!.state;
}

/** Others' hands, made after these, have been given back: these were looked at and kept. */
async function afterSweeps(): Promise<void> {
  for (let n = 0; n < 2; n += 1) {
    const session = await running();
    const handId = await guess(session);
    await idle(session);
    await eventually(async () => (await stateOf(handId)) === HandState.RELEASED);
  }
}

test("a hand that nothing has used is released when the turn is over, not before, and its session is told so", async () => {
  const session = await running();
  const waits = await running();
  const handId = await guess(session);
  const waiting = await guess(waits);
  await idle(waits, "requires_action");
  await afterSweeps();
  expect(await stateOf(handId)).toBe(HandState.READY);
  // Its calls may be allowed yet.
  expect(await stateOf(waiting)).toBe(HandState.READY);
  // A client may take for ever, a guess does not wait for that.
  await database
    .pool()
    .query(
      "update sessions set updated_at = clock_timestamp() - interval '11 minutes' where session_id = $1",
      [waits.id],
    );
  await eventually(async () => (await stateOf(waiting)) === HandState.RELEASED);
  await idle(session);
  const [released] = await eventually(async () => {
    const events = await session.events("hand.released");
    return events.length > 0 ? events : undefined;
  });
  expect(released?.payload).toMatchObject({ hand_id: handId, slot: "", unused: true });
  await eventually(() => !agent.hands.has(handId));
});

test("a hand that was used, or that somebody asked for meanwhile, is kept", async () => {
  const [used, asked, given, plain] = await Promise.all([running(), running(), running(), running()]);
  const ids = [await guess(used), await guess(asked), await guess(given)];
  await call(used);
  await rig.client.provision({ requestId: newId("request"), sessionId: asked.id });
  const to = await running();
  await rig.client.handOver({ requestId: newId("request"), handId: ids[2]!, toSessionId: to.id });
  const { hand } = await rig.client.provision({ requestId: newId("request"), sessionId: plain.id });
  await Promise.all([used, asked, given, plain, to].map((session) => idle(session)));
  await afterSweeps();
  for (const handId of [...ids, hand!.id]) expect(await stateOf(handId)).toBe(HandState.READY);
});

test("a guess for a slot that has a hand finds that hand, and takes nothing from it", async () => {
  const session = await running();
  const { hand } = await rig.client.provision({ requestId: newId("request"), sessionId: session.id });
  expect(await guess(session)).toBe(hand!.id);
  await idle(session);
  await afterSweeps();
  expect(await stateOf(hand!.id)).toBe(HandState.READY);
});

test("the same guess again, and the call itself while the hand is being made, find the one hand (H1)", async () => {
  const session = await running();
  let open = () => {};
  const held = new Promise<void>((resolve) => {
    open = resolve;
  });
  let asked = 0;
  agent.onProvision = async () => {
    asked += 1;
    await held;
    return {};
  };
  const requestId = newId("event");
  const guesses = [guess(session, requestId), guess(session, requestId), guess(session)];
  const ran = call(session);
  await eventually(() => asked === 1);
  open();
  const ids = new Set(await Promise.all(guesses));
  await ran;
  agent.onProvision = undefined;
  expect(ids.size).toBe(1);
  await idle(session);
  await afterSweeps();
  // The call has asked for it and used it.
  expect(await stateOf([...ids][0]!)).toBe(HandState.READY);
  const { hands } = await rig.client.listHands({ sessionId: session.id, includeEnded: true });
  expect(hands).toHaveLength(1);
});

test("the call of a turn that begins just then gets a new hand, and is told of nothing that it lost", async () => {
  const session = await running();
  const first = await guess(session);
  await idle(session);
  await eventually(async () => (await stateOf(first)) === HandState.RELEASED);
  await session.append("session.status_running", {});
  await call(session);
  const [result] = await session.events("agent.tool_result");
  expect(JSON.stringify(result?.payload)).not.toContain("Note:");
});

test("a guess decides nothing about who runs the calls of a self-hosted environment: the first call does, or whoever asks for a hand", async () => {
  const environmentId = await rig.environment({ selfHosted: true });
  const willing = await rig.agent({ greeting: { labels: { self_hosted: environmentId } } });
  await willing.connect();
  const served = async ({ id }: RigSession) => {
    const { rows } = await database
      .pool()
      .query<{ served_by: string }>("select served_by from session_servers where session_id = $1", [id]);
    return rows.map((row) => row.served_by);
  };
  const open = async () => {
    const session = await rig.session(environmentId);
    await session.append("session.status_running", {});
    return session;
  };
  const [vain, called, asked] = [await open(), await open(), await open()];
  for (const session of [vain, called, asked]) {
    await guess(session);
    expect(await served(session)).toEqual([]);
  }
  await call(called);
  expect(await served(called)).toEqual(["hand_agent"]);
  await rig.client.provision({ requestId: newId("request"), sessionId: asked.id });
  expect(await served(asked)).toEqual(["hand_agent"]);
  await idle(vain);
  await eventually(async () => (await vain.events("hand.released")).length === 1);
  expect(await served(vain)).toEqual([]);
  await willing.disconnect();
  // The workers' calls from now on: nothing has decided otherwise.
  const kinds: (string | undefined)[] = [];
  for await (const { kind } of rig.harness.execute(await vain.toolUse("echo", {}))) kinds.push(kind.case);
  expect(kinds).toEqual(["offered"]);
});

/** Hands pass from session to session (H6): a scripted hand agent at a real hands area over a real database. */
import { beforeEach, expect, test } from "vitest";
import { HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import { standingOf } from "../../server/store/postgres/log-standing.ts";
import { eventually } from "../kit/eventually.ts";
import { collectExecution as collect, gate, textOfResult as textOf } from "../kit/execution-stream.ts";
import type { HandRig, RigSession } from "../kit/hand-rig.ts";
import { type ScriptedHandAgent, textResult } from "../kit/scripted-hand-agent.ts";
import { useHandRig } from "../kit/use-hand-rig.ts";

let rig: HandRig;
let agent: ScriptedHandAgent;
let giver: RigSession;
let taker: RigSession;
let handId: string;

useHandRig((fresh) => {
  rig = fresh;
});
beforeEach(async () => {
  agent = await rig.agent({ run: ({ handId: id, ownerNumber }) => textResult(`${id} ${ownerNumber}`) });
  await agent.connect();
  [giver, taker] = [await rig.session(), await rig.session()];
  handId = await provision(giver);
});

let requests = 0;
const nextRequest = () => `request ${++requests}`;

async function provision(session: RigSession, slot = ""): Promise<string> {
  const request = { requestId: nextRequest(), sessionId: session.id, slot, lease: session.lease };
  return (await rig.harness.provision(request)).hand!.id;
}

async function call(session: RigSession, slot = "") {
  const { result } = await collect(rig.harness.execute(await session.toolUse("echo", {}, slot)));
  return textOf(result!);
}

function handOver(extra: Record<string, unknown> = {}) {
  const request = { requestId: nextRequest(), handId, toSessionId: taker.id, lease: giver.lease, ...extra };
  return rig.harness.handOver(request);
}

const reasonOf = (promise: Promise<unknown>) =>
  promise.then(
    () => "no error",
    (error: { reason: string }) => error.reason,
  );
const payloads = async (session: RigSession) =>
  (await session.events("hand.handed_over")).map(({ payload }) => payload);

test("both logs say it, the owner number grows, the new owner goes on where the old one was, and both are told (H6)", async () => {
  expect(await call(giver)).toBe(`${handId} 1`);
  const { hand } = await handOver({ toSlot: "workshop" });
  expect(hand).toMatchObject({
    id: handId,
    sessionId: taker.id,
    slot: "workshop",
    ownerNumber: 2n,
    state: HandState.READY,
  });
  const facts = { hand_id: handId, owner_number: 2 };
  expect(await payloads(giver)).toEqual([
    { ...facts, slot: "", to_session_id: taker.id, to_slot: "workshop" },
  ]);
  expect(await payloads(taker)).toMatchObject([
    { ...facts, slot: "workshop", from_session_id: giver.id, from_slot: "", driver: "process" },
  ]);
  // Watchers of both are told at once.
  const announced = rig.announced.filter(({ sessionId }) => [giver.id, taker.id].includes(sessionId));
  expect(new Set(announced.map(({ sessionId }) => sessionId))).toEqual(new Set([giver.id, taker.id]));
  const received = await call(taker, "workshop");
  expect(received).toContain("handed over to this session");
  expect(received).toContain(`${handId} 2`);
  expect(await call(taker, "workshop")).toBe(`${handId} 2`);
  // The old owner gets another one, and is told that it is not the same (H2).
  const after = await call(giver);
  expect(after).toContain("was handed over to another session");
  expect(after).not.toContain(handId);
  expect(await call(giver)).not.toContain("Note:");
  await eventually(() =>
    agent.heard.some((kind) => kind.case === "ownerChanged" && kind.value.ownerNumber === 2n),
  );
});

test("a repeat gets the first answer and changes nothing, whatever came after; another content is refused", async () => {
  const requestId = nextRequest();
  await handOver({ requestId });
  const back = { requestId: nextRequest(), handId, toSessionId: giver.id, lease: taker.lease };
  await rig.harness.handOver(back);
  const again = await handOver({ requestId });
  expect(again.hand).toMatchObject({ sessionId: taker.id, slot: "", ownerNumber: 2n });
  expect((await rig.client.getHand({ handId })).hand).toMatchObject({ sessionId: giver.id, ownerNumber: 3n });
  expect((await payloads(giver)).length).toBe(2);
  expect((await payloads(taker)).length).toBe(2);
  expect(await reasonOf(handOver({ requestId, toSlot: "other" }))).toBe("REQUEST_ID_REUSED");
  await rig.pool.query("delete from sessions where session_id = $1", [taker.id]);
  expect((await handOver({ requestId })).hand).toMatchObject({ sessionId: taker.id, ownerNumber: 2n });
});

test("it is refused while a call runs, to a slot that is taken, to archived, foreign and unknown sessions, and without the lease", async () => {
  const running = gate();
  agent.run = async () => {
    await running.opened;
    return textResult("done");
  };
  const slow = collect(rig.harness.execute(await giver.toolUse("echo", {})));
  await eventually(() => agent.journal.size > 0);
  expect(await reasonOf(handOver())).toBe("HAND_NOT_READY");
  running.open(undefined);
  await slow;
  await provision(taker, "taken");
  expect(await reasonOf(handOver({ toSlot: "taken" }))).toBe("SLOT_OCCUPIED");
  expect(await reasonOf(handOver({ toSlot: "mcp" }))).toBe("INVALID_FIELD");
  expect(await reasonOf(handOver({ toSlot: "a__b" }))).toBe("INVALID_FIELD");
  expect(await reasonOf(handOver({ toSessionId: giver.id }))).toBe("INVALID_FIELD");
  expect(await reasonOf(handOver({ toSessionId: "sesn_none" }))).toBe("NOT_FOUND");
  expect(await reasonOf(handOver({ handId: "hand_none" }))).toBe("NOT_FOUND");
  expect(await reasonOf(handOver({ lease: taker.lease }))).toBe("LEASE_FENCED");
  expect(await reasonOf(handOver({ lease: undefined }))).toBe("INVALID_FIELD");
  const elsewhere = rig.hands({ kind: "client", keyId: "apikey_x", workspaceId: "wrkspc_other" });
  const foreign = { requestId: nextRequest(), handId, toSessionId: taker.id };
  expect(await reasonOf(elsewhere.handOver(foreign))).toBe("NOT_FOUND");
  const stale = giver.lease;
  await giver.takeOver();
  expect(await reasonOf(handOver({ lease: stale }))).toBe("LEASE_FENCED");
  await rig.pool.query("update sessions set archived_at = now() where session_id = $1", [taker.id]);
  expect(await reasonOf(handOver())).toBe("SESSION_ARCHIVED");
  await rig.pool.query("update sessions set archived_at = null where session_id = $1", [taker.id]);
  // A thread that works in its tree's hands would never come to it.
  const share = "update sessions set hands_session_id = $2 where session_id = $1";
  await rig.pool.query(share, [taker.id, giver.id]);
  expect(await reasonOf(handOver())).toBe("INVALID_FIELD");
  await rig.pool.query(share, [taker.id, null]);
  await rig.admin.releaseHand({ handId });
  expect(await reasonOf(handOver())).toBe("HAND_RELEASED");
  expect([...(await payloads(giver)), ...(await payloads(taker))]).toEqual([]);
});

test("a call that was on its way when its hand was handed over does not run in the other session's hand", async () => {
  // The hand is known to be the slot's; before the call is bound it becomes another session's.
  await call(giver);
  const use = await giver.toolUse("echo", {});
  const ordered = { ...use, handId };
  await handOver();
  expect(await reasonOf(collect(rig.harness.execute(ordered)))).toBe("NOT_FOUND");
  const bound = await rig.store.executions.bind({
    call: {
      executionKey: `${giver.id}/${use.executionId}`,
      workspaceId: rig.workspaceId,
      timeoutMs: 1_000,
      answersToolUse: true,
      ...use,
    },
    handId,
    handAgentId: agent.handAgentId,
    journalId: agent.journalId,
    lease: giver.lease,
    event: undefined,
  });
  expect(bound.kind).toBe("hand_gone");
});

test("a transaction that dies between the two logs leaves the hand with its owner, and one whose answer was lost with the other (H6)", async () => {
  const holder = await rig.pool.connect();
  try {
    await holder.query("begin");
    // Both logs are written in the order of the sessions' ids: the later one is held, so it stops half-way.
    const later = [giver.id, taker.id].sort()[1]!;
    await holder.query("select 1 from sessions where session_id = $1 for update", [later]);
    const requestId = nextRequest();
    const dying = handOver({ requestId }).then(
      () => "done",
      () => "failed",
    );
    const waiting = await eventually(async () => {
      const { rows } = await rig.pool.query<{ pid: number }>(
        `select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%sessions%'`,
      );
      return rows[0]?.pid;
    });
    await rig.pool.query("select pg_terminate_backend($1)", [waiting]);
    await holder.query("rollback");
    // Whether it was tried again inside or not, there is one owner, and both logs agree.
    const outcome = await dying;
    const { hand } = await rig.client.getHand({ handId });
    expect(hand!.sessionId).toBe(outcome === "done" ? taker.id : giver.id);
    expect((await payloads(giver)).length).toBe(outcome === "done" ? 1 : 0);
    expect((await payloads(taker)).length).toBe(outcome === "done" ? 1 : 0);
    // The caller asks again.
    expect((await handOver({ requestId })).hand).toMatchObject({ sessionId: taker.id, ownerNumber: 2n });
    expect([(await payloads(giver)).length, (await payloads(taker)).length]).toEqual([1, 1]);
  } finally {
    holder.release();
  }
});

test("of many at once one wins, and every log tells of what happened to it", async () => {
  const sessions = await Promise.all(Array.from({ length: 6 }, () => rig.session()));
  const results = await Promise.all(
    sessions.map((session) =>
      rig.client.handOver({ requestId: nextRequest(), handId, toSessionId: session.id }).then(
        () => session,
        () => undefined,
      ),
    ),
  );
  const { hand } = await rig.client.getHand({ handId });
  // Every winner took it from the one before; the hand is the last one's.
  const winners = results.filter((session) => session !== undefined);
  expect(winners.length).toBeGreaterThan(0);
  expect(Number(hand!.ownerNumber)).toBe(1 + winners.length);
  for (const session of winners) {
    const said = await payloads(session);
    const has = said.at(-1)!.to_session_id === undefined;
    expect(has).toBe(hand!.sessionId === session.id);
  }
});

test("a parked hand stays parked and is the new owner's; an agent that was away is told when it comes back", async () => {
  await rig.pool.query("update hands set state = 'parked', parked_at = now() where hand_id = $1", [handId]);
  agent.parked.add(handId);
  await agent.disconnect();
  const { hand } = await rig.client.handOver({ requestId: nextRequest(), handId, toSessionId: taker.id });
  expect(hand).toMatchObject({ state: HandState.PARKED, ownerNumber: 2n });
  await agent.connect();
  const told = await eventually(() => agent.heard.find((kind) => kind.case === "ownerChanged"));
  expect(told).toMatchObject({ value: { handId, ownerNumber: 2n } });
  expect(await call(taker)).toContain(`${handId} 2`);
});

test("a database that was set back goes on under the number that the hand's agent knows", async () => {
  await agent.disconnect();
  agent.ownerNumbers.set(handId, 7n);
  await agent.connect();
  await eventually(async () => (await rig.client.getHand({ handId })).hand!.ownerNumber === 7n);
  expect(await call(giver)).toBe(`${handId} 7`);
});

test("a hand from outside sessions is given to one, with its files, and is the session's from then on", async () => {
  const { hand } = await rig.client.provision({ requestId: nextRequest() });
  const request = { requestId: nextRequest(), handId: hand!.id, toSessionId: taker.id, toSlot: "given" };
  expect(await reasonOf(rig.harness.handOver({ ...request, lease: giver.lease }))).toBe("ROLE_NOT_ALLOWED");
  await rig.client.handOver(request);
  expect((await payloads(taker))[0]).not.toHaveProperty("from_session_id");
  expect(await call(taker, "given")).toContain(`${hand!.id} 2`);
  await rig.pool.query("update sessions set archived_at = now() where session_id = $1", [taker.id]);
  await eventually(
    async () => (await rig.client.getHand({ handId: hand!.id })).hand!.state === HandState.RELEASED,
  );
});

test("a hand that was given away is none of those that a copy of the log would miss", async () => {
  await handOver({ toSlot: "x" });
  expect((await standingOf(rig.pool, giver.id)).liveHands).toEqual([]);
  expect((await standingOf(rig.pool, taker.id)).liveHands).toEqual([{ handId, slot: "x" }]);
});

test("several named hands of one session are told apart, and each call goes to its own", async () => {
  const named = await Promise.all(["a", "b", "c"].map((slot) => provision(giver, slot)));
  expect(new Set([...named, handId]).size).toBe(4);
  for (const [index, slot] of ["a", "b", "c"].entries())
    expect(await call(giver, slot)).toBe(`${named[index]} 1`);
  expect(await call(giver)).toBe(`${handId} 1`);
  expect(await provision(giver, "a")).toBe(named[0]);
  const { hands } = await rig.client.listHands({ sessionId: giver.id });
  expect(hands.map(({ slot }) => slot).sort()).toEqual(["", "a", "b", "c"]);
});

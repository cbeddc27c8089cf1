/** A session and its threads at two replicas: it makes no difference whose harness runs which of them (X1–X3, L1). */
import { afterAll, beforeAll, expect, it } from "vitest";
import { payloadOf } from "../../harness/event-payload.ts";
import type { LoopTurn } from "../../harness/loops/loop.ts";
import { SessionStatus, StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { ThreadService } from "../../proto/gen/tendon/v1/thread_service_pb.js";
import { type Brains, startBrains } from "../kit/brains.ts";
import { eventually } from "../kit/eventually.ts";
import { puppetLoop } from "../kit/puppet-loop.ts";
import { startServer, type TestServer } from "../kit/server.ts";
import { expectWhole, payloads, TreeRig } from "../kit/tree-rig.ts";

/** A loop that only the harness of the other replica has: agents with it run there, all others at the rig's own server. */
const THERE = { loop: "puppet-there" } as const;

let rig: TreeRig;
let other: TestServer;
let brains: Brains;
beforeAll(async () => {
  rig = await TreeRig.start({}, true);
  other = await startServer({ databaseUrl: rig.database.url, peers: true });
  const loops = [{ ...puppetLoop(rig.puppets), name: THERE.loop }];
  brains = await startBrains({ url: other.url, key: await rig.server.localKey("harness"), loops });
  await eventually(async () =>
    /^tendon_peer_replicas 1$/m.test(await (await rig.server.fetch("/metrics")).text()),
  );
});
afterAll(async () => {
  await brains?.stop();
  await other?.stop();
  await rig?.stop();
});

const sessionsThere = () => other.client(SessionService, rig.server.adminKey);
const threadsThere = () => other.client(ThreadService, rig.server.adminKey);

const create = (agent: string, message: string) => ({ name: "thread_create", input: { agent, message } });
const wait = { name: "thread_wait" };

function textsOf({ history }: LoopTurn, type: string): string[] {
  return history
    .filter((event) => event.type === type)
    .map((event) => (payloadOf(event).content as { text: string }[]).map(({ text }) => text).join(" "));
}
const received = (turn: LoopTurn) => textsOf(turn, "agent.thread_message_received");
const threadIn = (turn: LoopTurn) => textsOf(turn, "agent.tool_result")[0]?.match(/sthr_\w+/)?.[0];

/** Works until it is stopped, and tells that it does and that it was. */
function endless(working: Set<string>, stopped: string[]) {
  return (_request: number, turn: LoopTurn, signal: AbortSignal) =>
    new Promise<never>((_, reject) => {
      signal.addEventListener("abort", () => {
        stopped.push(turn.sessionId);
        reject(signal.reason);
      });
      working.add(turn.sessionId);
    });
}

async function replicaOf(sessionId: string): Promise<string> {
  const query = "select lease_replica_id as id from sessions where session_id = $1";
  return (await rig.database.pool().query<{ id: string }>(query, [sessionId])).rows[0]!.id;
}

it("threads are made, sent messages and waited for across replicas, in both directions", async () => {
  const replicas = new Map<string, string>();
  const here = async ({ sessionId }: LoopTurn) => replicas.set(sessionId, await replicaOf(sessionId));
  const deep = await rig.agent("deep", async (_request, turn) => {
    await here(turn);
    return { say: `deep ${received(turn).at(-1)}` };
  });
  const middle = await rig.agent(
    "middle",
    async (request, turn) => {
      await here(turn);
      if (request === 1) return { calls: [create("deep", received(turn)[0]!)] };
      if (request === 2) return { calls: [wait] };
      return { say: `middle ${received(turn).at(-1)}` };
    },
    { ...THERE, members: [deep] },
  );
  const lead = await rig.agent(
    "lead",
    async (request, turn) => {
      await here(turn);
      if (request === 1) return { calls: [create("middle", "one")] };
      if (request === 2 || request === 4) return { calls: [wait] };
      const send = { name: "thread_send", input: { to: threadIn(turn), message: "two" } };
      return request === 3 ? { calls: [send] } : { say: received(turn).join(", ") };
    },
    { members: [middle], multiagent: { maxDepth: 2 } },
  );
  const sessionId = await rig.talk(lead);
  await rig.rested(sessionId, StopReason.END_TURN);
  const log = await rig.log(sessionId);
  expectWhole(log);
  expect(payloads(log, "agent.message").at(-1)).toMatchObject({
    content: [{ text: "middle deep one, middle two" }],
  });
  const threads = await rig.threadsOf(sessionId);
  expect(threads.map(({ agent }) => agent?.spec?.name).sort()).toEqual(["deep", "middle"]);
  for (const { id } of threads) expectWhole(await rig.log(id));
  const at = (name: string) => replicas.get(threads.find(({ agent }) => agent?.spec?.name === name)!.id);
  expect(at("deep")).toBe(replicas.get(sessionId));
  expect(at("middle")).not.toBe(replicas.get(sessionId));
  // The other replica tells the same.
  const told = await sessionsThere().getEvents({ sessionId, limit: 1_000 });
  expect(told.events.map(({ id }) => id)).toEqual(log.map(({ id }) => id));
});

it("thread_stop ends a thread that works at the other replica, and its model request with it", async () => {
  const [working, stopped] = [new Set<string>(), [] as string[]];
  const child = await rig.agent("endless", endless(working, stopped), THERE);
  const lead = await rig.agent(
    "stopper",
    async (request, turn) => {
      const thread = threadIn(turn);
      if (request === 1) return { calls: [create("endless", "never ends")] };
      if (request > 2) return { say: "Stopped." };
      await eventually(() => working.has(thread!));
      return { calls: [{ name: "thread_stop", input: { thread } }] };
    },
    { members: [child] },
  );
  const sessionId = await rig.talk(lead);
  const { tree } = await rig.rested(sessionId, StopReason.END_TURN);
  expect(tree).toMatchObject({ threads: 1, liveThreads: 0, running: 0 });
  const [thread] = await rig.threadsOf(sessionId);
  expect(thread!.status).toBe(SessionStatus.TERMINATED);
  await eventually(() => stopped.length === 1);
  expect(stopped).toEqual([thread!.id]);
});

it("a tree is stopped, goes on, and is archived by a client of either replica", async () => {
  const [working, stopped] = [new Set<string>(), [] as string[]];
  const work = endless(working, stopped);
  const near = await rig.agent("near", work);
  const far = await rig.agent("far", work, THERE);
  const lead = await rig.agent(
    "boss",
    (request) => {
      if (request === 1) return { calls: [create("near", "a"), create("far", "b")] };
      return request === 2 ? { calls: [wait] } : { say: `words ${request}` };
    },
    { members: [near, far] },
  );
  const sessionId = await rig.talk(lead);
  await eventually(() => working.size === 2);
  await rig.rested(sessionId, StopReason.WAITING_FOR_THREADS);
  const threads = await rig.threadsOf(sessionId);
  expect(threads.map(({ status }) => status)).toEqual([SessionStatus.RUNNING, SessionStatus.RUNNING]);
  const ids = threads.map(({ id }) => id).sort();
  const { sessionIds } = await threadsThere().stopTree({ sessionId });
  expect(sessionIds.sort()).toEqual([sessionId, ...ids].sort());
  for (const id of [sessionId, ...ids]) await rig.rested(id, StopReason.END_TURN);
  await eventually(() => stopped.length === 2);
  expect(stopped.sort()).toEqual(ids);
  await rig.say(sessionId, "more");
  await eventually(async () => payloads(await rig.log(sessionId), "agent.message").length > 0);
  await rig.rested(sessionId, StopReason.END_TURN);
  expectWhole(await rig.log(sessionId));
  await sessionsThere().archiveSession({ sessionId, interrupt: true });
  for (const id of [sessionId, ...ids]) expect((await rig.get(id)).status).toBe(SessionStatus.TERMINATED);
});

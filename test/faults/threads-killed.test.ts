/** Harnesses and servers that die while threads are made, waited for and heard: each is made once, and says what it says once. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { ThreadService } from "../../proto/gen/tendon/v1/thread_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import {
  type FakeMessagesApi,
  type MessagesRequest,
  startFakeMessagesApi,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import { callEnds, FaultPlatform } from "../kit/fault-platform.ts";
import { isWholeRun } from "../kit/fault-trials.ts";
import { payloads, userMessage } from "../kit/tree-rig.ts";

const THREADS = 3;
const TIMEOUT_MS = 300_000;

/** By answers so far. A thread answers its task at once. */
function script({ messages }: MessagesRequest) {
  const words = messages.flatMap(({ content }) => content.map(({ text }) => String(text)));
  const task = words.find((text) => text.startsWith("task "));
  if (task !== undefined && !words.includes("lead")) return turn([`did ${task}`]);
  const answers = messages.filter(({ role }) => role === "assistant").length;
  if (answers === 0) {
    const create = (n: number) => toolUse("thread_create", { agent: "self", message: `task ${n}` });
    return turn(Array.from({ length: THREADS }, (_, n) => create(n)));
  }
  if (answers === 1) return turn([toolUse("thread_wait", {})]);
  const heard = words.filter((text) => text.startsWith("did task")).toSorted();
  return turn([`heard: ${heard.join(", ")}`]);
}

let api: FakeMessagesApi;
let faults: FaultPlatform;
let agentId = "";
beforeAll(async () => {
  api = await startFakeMessagesApi({ script });
  faults = await FaultPlatform.start({
    // What a dead server held is free once its leases have run out.
    server: { TENDON_LEASE_TTL_MS: "5000" },
    harness: { ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url, TENDON_MODEL: "claude-test" },
  });
  const names = ["thread_create", "thread_wait"];
  const { agent } = await faults.platform.client(AgentService).createAgent({
    spec: {
      name: "lead",
      tools: [{ kind: { case: "brainToolset", value: { names } } }],
      multiagent: { agents: [{ kind: { case: "self", value: true } }] },
    },
  });
  agentId = agent!.id;
}, TIMEOUT_MS);
afterAll(async () => {
  await faults.stop();
  await api.stop();
  expect(api.refusals).toEqual([]);
}, TIMEOUT_MS);

async function stopReason(sessionId: string): Promise<StopReason | undefined> {
  const { session } = await faults.sessions.getSession({ sessionId }, { deadlineMs: 30_000 });
  return session?.hasWork ? undefined : session?.stopReason;
}

const times = (bounded: number[], whole: number[]) => (isWholeRun ? whole : bounded);
const DEATHS = [
  ...times([], [1, 2, 3, 4]).map((n) => ["harness", `harness.before_brain_call=kill@${n}`] as const),
  ...times([1, 4], [1, 2, 3, 4]).map((n) => ["harness", `harness.brain_call_done=kill@${n}`] as const),
  ...times([2], [1, 2, 3, 4, 5, 6]).map((n) => ["server", `server.tree_news_told=kill@${n}`] as const),
];

describe("threads", () => {
  test.each(DEATHS)(
    "are made once and heard once when the %s dies at %s",
    async (program, point) => {
      const doomed = await faults.restart(program, point);
      const { session } = await faults.sessions.createSession({
        agentId,
        initialEvents: [userMessage("lead")],
      });
      await doomed.ended;
      await faults.platform.start(program);
      const sessionId = session!.id;
      await eventually(async () => (await stopReason(sessionId)) === StopReason.END_TURN, {
        withinMs: 60_000,
      });
      const log = await faults.events(sessionId);
      const own = log.filter(({ threadId }) => threadId === "");
      expect(callEnds(log).filter(({ isError }) => isError)).toEqual([]);
      expect(payloads(own, "session.thread_created")).toHaveLength(THREADS);
      expect(payloads(own, "agent.thread_message_received")).toHaveLength(THREADS);
      expect(payloads(own, "agent.message").at(-1)).toMatchObject({
        content: [{ text: "heard: did task 0, did task 1, did task 2" }],
      });
      const { threads } = await faults.platform
        .client(ThreadService)
        .listThreads({ sessionId, wholeTree: true, includeArchived: true });
      expect(threads).toHaveLength(THREADS);
      for (const { id } of threads) {
        const said = await faults.events(id);
        callEnds(said);
        expect(payloads(said, "agent.thread_message_received")).toHaveLength(1);
        expect(log.filter(({ threadId, type }) => threadId === id && /_idle$/.test(type))).toHaveLength(1);
      }
    },
    TIMEOUT_MS,
  );
});

/** When the work towards an outcome is judged where threads do part of it: real server and harness, brains that are puppets, a grader faked at its wire. */
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { OutcomeResult, SessionStatus, StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { eventually } from "../kit/eventually.ts";
import {
  type FakeMessagesApi,
  type Gate,
  gate,
  startFakeMessagesApi,
  type Turn,
} from "../kit/fake-messages-api.ts";
import { definition, isGraders, verdict, wordsOf } from "../kit/outcome-session.ts";
import type { Puppet } from "../kit/puppet-loop.ts";
import { expectWhole, payloads, TreeRig } from "../kit/tree-rig.ts";

let api: FakeMessagesApi;
let rig: TreeRig;
/** What the grader says in the running test, in turn; its last answer again and again. */
let verdicts: Turn[] = [];
let judged = 0;

beforeAll(async () => {
  api = await startFakeMessagesApi({
    script: (request) => {
      expect(isGraders(request)).toBe(true);
      judged += 1;
      return verdicts[Math.min(judged, verdicts.length) - 1]!;
    },
  });
  rig = await TreeRig.start({}, false, { url: api.url, apiKey: api.apiKey });
});
afterEach(() => {
  judged = 0;
});
afterAll(async () => {
  await rig?.stop();
  await api?.stop();
  expect(api.refusals).toEqual([]);
});

const { type, ...outcome } = definition("Paint a ball.");
const create = (agent: string, message = "paint") => ({ name: "thread_create", input: { agent, message } });

async function work(agentId: string, more: object = {}): Promise<string> {
  const initialEvents = [{ type, payload: JSON.stringify(outcome) }];
  return (await rig.sessions.createSession({ agentId, initialEvents, ...more })).session!.id;
}

/** A thread's agent that says `words` once the gate is open. */
const says =
  (words: string, until?: Gate): Puppet =>
  async (_request, _turn, signal) => {
    const aborted = new Promise<never>((_, reject) =>
      signal.addEventListener("abort", () => reject(signal.reason), { once: true }),
    );
    if (until !== undefined) await Promise.race([until.opened, aborted]);
    return words === "" ? {} : { say: words };
  };

/** Notes what a session does from now on; nothing is sent, for lack of a proxy. */
async function listen(endpointId: string): Promise<void> {
  const types = ["session.status_run_started", "session.status_idled", "session.requires_action"];
  await rig.database.pool().query(
    `insert into webhook_endpoints (endpoint_id, workspace_id, url, name, description, enabled_events)
       select $1, workspace_id, 'https://example.com/', '', '', $2 from workspaces`,
    [endpointId, types],
  );
}

/** Says no more of the session to the endpoint afterwards. */
async function told(endpointId: string, sessionId: string): Promise<string[]> {
  const pool = rig.database.pool();
  const { rows } = await pool.query<{ type: string }>(
    "select type from webhook_events where lane = $1 and $2 = any(endpoint_ids) order by number",
    [sessionId, endpointId],
  );
  await pool.query("delete from webhook_endpoints where endpoint_id = $1", [endpointId]);
  return rows.map((row) => row.type);
}

/** Copies of a session and a thread of it that wait for ever, and are looked at before them; what is returned takes them away. */
async function waitBeside(sessionId: string, threadId: string, count: number): Promise<() => Promise<void>> {
  const pool = rig.database.pool();
  const { rows } = await pool.query<{ name: string }>(
    "select column_name as name from information_schema.columns where table_name = 'sessions' and is_generated = 'NEVER'",
  );
  const columns = rows.map(({ name }) => name);
  const copy = (of: string, change: string) =>
    pool.query(
      `insert into sessions (${columns.join()}) select ${columns.map((name) => `c.${name}`).join()}
         from sessions s, generate_series(1, $2) n, lateral jsonb_populate_record(s, ${change}) c where s.session_id = $1`,
      [of, count],
    );
  const still = "'status', 'idle', 'lease_id', null, 'work_position', 0";
  await copy(sessionId, `jsonb_build_object(${still}, 'session_id', 'sesn_00' || n)`);
  const ids = "'session_id', 'sthr_00' || n, 'root_session_id', 'sesn_00' || n";
  await copy(threadId, `jsonb_build_object(${still}, ${ids})`);
  await pool.query(
    "insert into outcome_waits (session_id, event_id, since_position) select session_id, 'sevt_0', 1 from sessions where session_id like 'sesn_00%'",
  );
  return async () => void (await pool.query("delete from sessions where session_id ~ '^(sesn|sthr)_00'"));
}

const waits = (sessionId: string) => rig.rested(sessionId, StopReason.WAITING_FOR_THREADS);
const ends = (sessionId: string) => rig.rested(sessionId, StopReason.END_TURN);

/** One start and one end for each iteration, the last of them with this result. */
async function expectJudged(sessionId: string, results: readonly string[]): Promise<void> {
  const log = await rig.log(sessionId);
  expectWhole(log);
  const starts = log.filter((event) => event.type === "span.outcome_evaluation_start");
  const found = payloads(log, "span.outcome_evaluation_end");
  expect(found.map(({ result }) => result)).toEqual(results);
  expect(found.map((end) => end.outcome_evaluation_start_id)).toEqual(starts.map(({ id }) => id));
  expect(judged).toBe(results.length);
}

it("is judged when no thread works any more, with what they said; a message on the way is heard, and a revision may begin others", async () => {
  verdicts = [verdict(false, true), verdict(true, true)];
  const gates = [gate(), gate()];
  let painters = 0;
  const painter = await rig.agent("painter", (...args) => says("It is painted.", gates[painters++])(...args));
  const lead = await rig.agent(
    "lead",
    (_request, { history }) => {
      const newest = history.findLast((event) =>
        /^(user\.message|agent\.(thread_message_received|tool_result))$/.test(event.type),
      )!;
      const isTask = newest.type === "user.message" && !newest.payload.includes("hurry");
      return isTask ? { calls: [create("painter")] } : { say: `After ${newest.type}.` };
    },
    { members: [painter] },
  );
  const sessionId = await work(lead);
  const waiting = await waits(sessionId);
  expect(waiting.outcomeEvaluations).toMatchObject([{ result: OutcomeResult.RUNNING }]);
  const [row] = (
    await rig.database
      .pool()
      .query<{ lease_id: string | null }>("select lease_id from sessions where session_id = $1", [sessionId])
  ).rows;
  expect(row!.lease_id).toBeNull();
  await rig.say(sessionId, "hurry");
  await eventually(async () => payloads(await rig.log(sessionId), "agent.message").length === 2);
  await waits(sessionId);
  expect(judged).toBe(0);
  gates[0]!.open();
  // It was not good enough: another one paints, and is waited for as well.
  await eventually(async () => (await rig.threadsOf(sessionId)).length === 2);
  await waits(sessionId);
  expect(judged).toBe(1);
  expect(wordsOf(api.requests.at(-1)!)).toContain("thread painter: It is painted.");
  gates[1]!.open();
  const done = await ends(sessionId);
  expect(done.outcomeEvaluations).toMatchObject([{ result: OutcomeResult.SATISFIED, iteration: 1 }]);
  await expectJudged(sessionId, ["needs_revision", "satisfied"]);
});

it("is judged though the last thread ends without a word: the server tells the log, which nobody holds", async () => {
  verdicts = [verdict(true, true)];
  const until = gate();
  const silent = await rig.agent("silent", says("", until));
  const lead = await rig.agent(
    "trusting",
    (request) => (request === 1 ? { calls: [create("silent"), create("silent")] } : { say: "Started." }),
    { members: [silent] },
  );
  const sessionId = await work(lead);
  await waits(sessionId);
  const [stopped] = await rig.threadsOf(sessionId);
  await rig.threads.stopThread({ threadId: stopped!.id });
  await eventually(async () =>
    (await rig.log(sessionId)).some((event) => event.type === "session.thread_status_terminated"),
  );
  expect(judged).toBe(0);
  until.open();
  await ends(sessionId);
  expect(payloads(await rig.log(sessionId), "brain.threads_rested")).toMatchObject([
    { outcome_id: expect.stringMatching(/^outc_/) },
  ]);
  await expectJudged(sessionId, ["satisfied"]);
});

it("is judged once, by whoever comes, where harness and server die while it waits for a thread of a thread (E2)", async () => {
  verdicts = [verdict(true, true)];
  const until = gate();
  const grandchild = await rig.agent("grandchild", says("", until));
  const child = await rig.agent(
    "child",
    (request) => (request === 1 ? { calls: [create("grandchild")] } : {}),
    { members: [grandchild] },
  );
  const lead = await rig.agent(
    "grandparent",
    (request) => (request === 1 ? { calls: [create("child")] } : { say: "Started." }),
    { members: [child], multiagent: { maxDepth: 2 } },
  );
  const sessionId = await work(lead);
  const [first] = await eventually(async () => {
    const threads = await rig.threadsOf(sessionId);
    return threads.length === 2 ? threads : undefined;
  });
  await ends(first!.id);
  await waits(sessionId);
  await rig.restart();
  expect((await rig.get(sessionId)).stopReason).toBe(StopReason.WAITING_FOR_THREADS);
  expect(judged).toBe(0);
  // What it waits for happens while no harness is there.
  await rig.stopHarness();
  const { threads } = rig;
  for (const { id } of await rig.threadsOf(sessionId)) await threads.stopThread({ threadId: id });
  await eventually(async () => payloads(await rig.log(sessionId), "brain.threads_rested").length === 1);
  expect((await rig.get(sessionId)).hasWork).toBe(true);
  await rig.startHarness();
  await ends(sessionId);
  until.open();
  await expectJudged(sessionId, ["satisfied"]);
});

it("waits for a thread that asks a client, ends with an interrupt, and is not judged after that", async () => {
  verdicts = [verdict(true, true)];
  const crowded = gate();
  const custom = { name: "ask_user", description: "asks", inputSchema: `{"type":"object"}` };
  const asker = await rig.agent("asker", () => ({ calls: [{ name: "ask_user" }] }), {
    tools: [{ kind: { case: "custom", value: custom } }],
  });
  const lead = await rig.agent(
    "asked",
    async (request, turn, signal) => {
      if (request === 2) await says("", crowded)(request, turn, signal);
      return request === 1 ? { calls: [create("asker")] } : { say: "Started." };
    },
    { members: [asker] },
  );
  await listen("whep_asks");
  const sessionId = await work(lead);
  const thread = await eventually(async () => (await rig.threadsOf(sessionId))[0]);
  await rig.rested(thread.id, StopReason.REQUIRES_ACTION);
  const leave = await waitBeside(sessionId, thread.id, 250);
  crowded.open();
  await waits(sessionId);
  // Who looks at the session alone is told that something is to be answered, though the thread asked before it rested, and
  // though more wait than are looked at at once.
  await eventually(async () => payloads(await rig.log(sessionId), "session.threads_ask").length === 1);
  await leave();
  await rig.sessions.emitEvents({ sessionId, events: [{ type: "user.interrupt" }] });
  const done = await ends(sessionId);
  expect(done.outcomeEvaluations).toMatchObject([{ result: OutcomeResult.INTERRUPTED }]);
  await ends(thread.id);
  // Nobody waits for the tree any more.
  await eventually(
    async () => (await rig.database.pool().query("select 1 from outcome_waits")).rowCount === 0,
  );
  await rig.say(sessionId, "hello");
  await eventually(async () => payloads(await rig.log(sessionId), "agent.message").length === 2);
  await ends(sessionId);
  const log = await rig.log(sessionId);
  expect(payloads(log, "brain.threads_rested")).toEqual([]);
  expect(payloads(log, "span.outcome_evaluation_end").map(({ result }) => result)).toEqual(["interrupted"]);
  expect(judged).toBe(0);
  // It rested already when the interrupt ended what it waited for.
  const runs = ["session.status_run_started", "session.status_idled"];
  expect(await told("whep_asks", sessionId)).toEqual([...runs, "session.requires_action", ...runs]);
});

it("rests at the budget with its threads, and is judged once more of it lets them end", async () => {
  verdicts = [verdict(true, true)];
  const until = gate();
  const costly = await rig.agent("costly", async (request, turn, signal) => {
    if (request > 1) return { say: "Twice." };
    await says("", until)(request, turn, signal);
    return { calls: [{ name: "thread_list" }], usage: { outputTokens: 500 } };
  });
  const lead = await rig.agent(
    "bounded",
    (request) => (request === 1 ? { calls: [create("costly")] } : { say: "Started." }),
    { members: [costly] },
  );
  const sessionId = await work(lead, { budget: { maxTokens: 100n } });
  await waits(sessionId);
  until.open();
  await rig.rested(sessionId, StopReason.BUDGET_REACHED);
  expect(judged).toBe(0);
  await rig.sessions.updateSession({ sessionId, budget: { maxTokens: 1_000_000n } });
  await ends(sessionId);
  await expectJudged(sessionId, ["satisfied"]);
  expect((await rig.get(sessionId)).status).toBe(SessionStatus.IDLE);
});

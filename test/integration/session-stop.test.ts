import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { HandAgent } from "../../hand-agent/hand-agent.ts";
import type { LoopTurn } from "../../harness/loops/loop.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { SessionStatus, StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { eventually } from "../kit/eventually.ts";
import { agentInProcess, makeAgentDir } from "../kit/hand-agent-program.ts";
import { promised } from "../kit/promised.ts";
import { expectWhole, payloads, TreeRig } from "../kit/tree-rig.ts";

let rig: TreeRig;
let handAgent: HandAgent;
let agentDir: Awaited<ReturnType<typeof makeAgentDir>>;
beforeAll(async () => {
  rig = await TreeRig.start({ TENDON_DATABASE_POOL: "20" });
  const { secret } = await rig.admin.createJoinToken({});
  agentDir = await makeAgentDir();
  const capacity = TOOL_SESSIONS + 4;
  handAgent = agentInProcess({ url: rig.server.url, dataDir: agentDir.path, joinToken: secret, capacity });
  await handAgent.start();
});
afterAll(async () => {
  await handAgent.stop();
  await agentDir.remove();
  await rig.stop();
});

const TOOL_SESSIONS = 8;
const TREES = 12;
const THREADS = 3;
const PLAIN_SESSIONS = 200 - TOOL_SESSIONS - TREES * (1 + THREADS);

const handTools = [{ kind: { case: "handToolset" as const, value: {} } }];
const endless = (_request: number, _turn: LoopTurn, signal: AbortSignal) =>
  new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));

async function agents() {
  const thinker = await rig.agent("thinker", endless);
  const runner = await rig.agent(
    "runner",
    (request) =>
      request === 1 ? { calls: [{ name: "bash", input: { command: "sleep 600" } }] } : { say: "." },
    { tools: handTools },
  );
  const lead = await rig.agent(
    "leader",
    (request) => {
      const create = { name: "thread_create", input: { agent: "thinker", message: "think" } };
      if (request === 1) return { calls: Array.from({ length: THREADS }, () => create) };
      if (request === 2) return { calls: [{ name: "thread_wait" }] };
      return { say: "never asked" };
    },
    { members: [thinker] },
  );
  return { thinker, runner, lead };
}

async function count(sql: string): Promise<number> {
  const { rows } = await rig.database.pool().query<{ n: number }>(sql);
  return Number(rows[0]!.n);
}

const WORKING = `select count(*) as n from sessions where status in ('running', 'rescheduling')
  or work_position > rested_position or exists (select from thread_waits w where w.session_id = sessions.session_id)`;
const OPEN_CALLS = "select count(*) as n from executions where finished_at is null";

describe("stopping everything", () => {
  it("takes less than 10 s for 200 sessions with models, tools and threads at work, and nothing goes on by itself", async () => {
    const { thinker, runner, lead } = await agents();
    const many = (n: number, agentId: string) => Array.from({ length: n }, () => agentId);
    const wanted = [...many(PLAIN_SESSIONS, thinker), ...many(TOOL_SESSIONS, runner), ...many(TREES, lead)];
    const ids: string[] = [];
    while (wanted.length > 0) {
      ids.push(...(await Promise.all(wanted.splice(0, 20).map((agentId) => rig.talk(agentId)))));
    }
    await eventually(
      async () => (await count(WORKING)) === 200 && (await count(OPEN_CALLS)) === TOOL_SESSIONS,
      { withinMs: 60_000, everyMs: 200 },
    );
    await eventually(async () => (await count("select count(*) as n from thread_waits")) === TREES);
    // It waits for the end of the turn, and would begin another one.
    await rig.say(ids[0]!, "and then this");

    const startedMs = performance.now();
    const { sessionIds } = await rig.admin.stopSessions({}, { deadlineMs: 60_000 });
    await eventually(async () => (await count(WORKING)) === 0, { everyMs: 100 });
    expect(performance.now() - startedMs).toBeLessThan(promised(10_000));

    expect(sessionIds).toHaveLength(200);
    expect(await count(OPEN_CALLS)).toBe(0);
    const requests = "select count(*) as n from events where type = 'span.model_request_start'";
    const before = await count(requests);
    const leadId = ids.at(-1)!;
    const log = await rig.log(leadId);
    expectWhole(log);
    expect(payloads(log, "session.status_idle").at(-1)).toMatchObject({
      stop_reason: { type: "end_turn" },
      keeps_queued: true,
      interrupted: { event_id: expect.any(String) },
    });
    const tool = await rig.log(ids[PLAIN_SESSIONS]!);
    expectWhole(tool);
    expect(payloads(tool, "agent.tool_result")[0]).toMatchObject({ is_error: true });
    // Two rounds of whoever looks for work, and of what threads have to say.
    const later = performance.now() + 2_500;
    await eventually(() => performance.now() > later);
    expect(await count(WORKING)).toBe(0);
    expect(await count(requests)).toBe(before);
  });

  it("of one tree leaves others alone, and a new message goes on with what had waited", async () => {
    const thinker = await rig.agent("ponderer", endless);
    let asked = 0;
    const brief = await rig.agent("brief", async (request, turn, signal) => {
      asked = request;
      return request === 1 ? endless(request, turn, signal) : { say: `answer ${request}` };
    });
    const other = await rig.talk(thinker);
    const sessionId = await rig.talk(brief, "first");
    await eventually(async () => (await rig.get(sessionId)).status === SessionStatus.RUNNING && asked === 1);
    await rig.say(sessionId, "second");
    expect((await rig.threads.stopTree({ sessionId })).sessionIds).toEqual([sessionId]);
    await rig.rested(sessionId, StopReason.END_TURN);
    expect(asked).toBe(1);
    expect((await rig.get(other)).status).toBe(SessionStatus.RUNNING);
    await rig.say(sessionId, "third");
    await eventually(async () => payloads(await rig.log(sessionId), "agent.message").length === 1);
    const consumed = payloads(await rig.log(sessionId), "brain.inputs_consumed").at(-1)!;
    expect(consumed.event_ids).toHaveLength(2);
    await rig.threads.stopTree({ sessionId: other });
    for (const id of [sessionId, other]) await rig.rested(id, StopReason.END_TURN);
  });

  it("holds a session that rested already: what a thread says after it starts nothing until somebody says something", async () => {
    const reporter = await rig.agent("reporter", (request) => ({ say: `report ${request}` }));
    const lead = await rig.agent(
      "told",
      (request) =>
        request === 1
          ? { calls: [{ name: "thread_create", input: { agent: "reporter", message: "m" } }] }
          : { say: "." },
      { members: [reporter] },
    );
    const sessionId = await rig.talk(lead);
    const typesOf = async (type: string) => (await rig.log(sessionId)).filter((event) => event.type === type);
    await eventually(async () => {
      const heard = (await typesOf("agent.thread_message_received")).length === 1;
      // Idle with work is heard and not yet answered: the request for that would be taken for one after the stop.
      const { status, stopReason, hasWork } = await rig.get(sessionId);
      return heard && status === SessionStatus.IDLE && stopReason === StopReason.END_TURN && !hasWork;
    });
    const before = (await typesOf("span.model_request_start")).length;
    const stop = { type: "user.interrupt", payload: JSON.stringify({ keeps_queued: true }) };
    await rig.sessions.emitEvents({ sessionId, events: [stop] });
    const [thread] = await rig.threadsOf(sessionId);
    await rig.say(thread!.id, "again");
    await eventually(async () => (await typesOf("agent.thread_message_received")).length === 2);
    await eventually(async () => !(await rig.get(sessionId)).hasWork);
    expect(await typesOf("span.model_request_start")).toHaveLength(before);
    await rig.say(sessionId, "go on");
    await eventually(async () => (await typesOf("span.model_request_start")).length === before + 1);
    expect(payloads(await rig.log(sessionId), "brain.inputs_consumed").at(-1)!.event_ids).toHaveLength(2);
    await rig.rested(sessionId, StopReason.END_TURN);
  });

  it("may be asked for by a client, of its own workspace", async () => {
    const { secret } = await rig.admin.createApiKey({ name: "c", role: Role.CLIENT });
    const client = rig.server.client(AdminService, secret);
    const thinker = await rig.agent("stopped by a client", endless);
    const sessionId = await rig.talk(thinker);
    await eventually(async () => (await rig.get(sessionId)).status === SessionStatus.RUNNING);
    expect((await client.stopSessions({})).sessionIds).toEqual([sessionId]);
    await rig.rested(sessionId, StopReason.END_TURN);
    const { workspace } = await rig.admin.createWorkspace({ name: "not the client's" });
    await expect(client.stopSessions({ workspaceId: workspace!.id })).rejects.toMatchObject({
      reason: "NOT_FOUND",
    });
  });
});

describe("who ends a tree", () => {
  it("deletes a session with what a thread made in the moment in which it was ended itself", async () => {
    const make = (agent: string, message: string) => ({ name: "thread_create", input: { agent, message } });
    const deep = await rig.agent(
      "late",
      (request, turn) =>
        request === 1 && turn.history.some(({ payload }) => payload.includes('"go deeper"'))
          ? { calls: [make("self", "stay")] }
          : { say: "." },
      { members: ["self"] },
    );
    const lead = await rig.agent(
      "lates",
      (request) => (request === 1 ? { calls: [make("late", "go deeper")] } : { say: "." }),
      { members: [deep], multiagent: { maxDepth: 2 } },
    );
    const sessionId = await rig.talk(lead);
    await eventually(async () => (await rig.get(sessionId)).tree?.threads === 2);
    const [middle] = await rig.threadsOf(sessionId);
    // Whoever ends a tree looks who is there before it ends the first.
    await rig.database
      .pool()
      .query("update sessions set archived_at = clock_timestamp() where session_id = $1", [middle!.id]);
    await rig.sessions.deleteSession({ sessionId, interrupt: true });
    const left = await rig.database
      .pool()
      .query("select session_id from sessions where root_session_id = $1", [sessionId]);
    expect(left.rows).toEqual([]);
  });
});

describe("threads and hands", () => {
  it("share the files of the tree, or have a hand of their own", async () => {
    const told: Record<string, string> = {};
    const bash = (command: string) => ({ calls: [{ name: "bash", input: { command } }] });
    const helper = await rig.agent(
      "helper",
      (request, turn) => {
        if (request === 1) return bash("cat note 2>/dev/null || echo nothing; echo seen > reply");
        const result = turn.history.filter(({ type }) => type === "agent.tool_result").at(-1)!;
        told[turn.sessionId] = (JSON.parse(result.payload) as { content: { text: string }[] })
          .content[0]!.text;
        return { say: "read" };
      },
      { tools: handTools },
    );
    let reply = "";
    const threadTools = [
      ...handTools,
      { kind: { case: "brainToolset" as const, value: { names: ["thread_create", "thread_wait"] } } },
    ];
    const create = (hands: string) => ({
      name: "thread_create",
      input: { agent: "helper", message: "m", hands },
    });
    const lead = await rig.agent(
      "writer",
      (request, turn) => {
        if (request === 1) return bash("echo from the lead > note");
        if (request === 2) return { calls: [create("shared"), create("own")] };
        if (request === 3) return { calls: [{ name: "thread_wait" }] };
        if (request === 4) return bash("cat reply");
        const result = turn.history.filter(({ type }) => type === "agent.tool_result").at(-1)!;
        reply = result.payload;
        return { say: "." };
      },
      { members: [helper], tools: threadTools },
    );
    const sessionId = await rig.talk(lead);
    await rig.rested(sessionId, StopReason.END_TURN, 60_000);
    expect(Object.values(told).sort()).toEqual([
      expect.stringContaining("from the lead"),
      expect.stringContaining("nothing"),
    ]);
    expect(reply).toContain("seen");
    expect(
      await count("select count(*) as n from hands where state = 'ready' and session_id like 'sthr_%'"),
    ).toBe(1);
    await rig.sessions.archiveSession({ sessionId, interrupt: true });
    await eventually(
      async () =>
        (await count(
          `select count(*) as n from hands where state in ('ready', 'parked') and (session_id like 'sthr_%' or session_id = '${sessionId}')`,
        )) === 0,
    );
  });
});

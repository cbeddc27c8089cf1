import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { payloadOf } from "../../harness/event-payload.ts";
import type { LoopTurn } from "../../harness/loops/loop.ts";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { SessionStatus, StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { eventually } from "../kit/eventually.ts";
import { expectWhole, payloads, TreeRig } from "../kit/tree-rig.ts";

let rig: TreeRig;
beforeAll(async () => {
  rig = await TreeRig.start();
});
afterAll(() => rig.stop());

/** Texts that a loop's turn has been told by threads. */
function heard({ history }: LoopTurn): string[] {
  const consumed = new Set(
    history
      .filter(({ type }) => type === "brain.inputs_consumed")
      .flatMap((event) => payloadOf(event).event_ids as string[]),
  );
  return history
    .filter(({ type, id }) => type === "agent.thread_message_received" && consumed.has(id))
    .map((event) => (payloadOf(event).content as { text: string }[]).map(({ text }) => text).join(" "));
}

function results({ history }: LoopTurn): string[] {
  return history
    .filter(({ type }) => type === "agent.tool_result")
    .map((event) => (payloadOf(event).content as { text: string }[]).map(({ text }) => text).join(" "));
}

const create = (agent: string, message: string) => ({ name: "thread_create", input: { agent, message } });

/** Of threads whose puppet is this, which works until it is stopped. */
const working = new Set<string>();
function endless(_request: number, { sessionId }: LoopTurn, signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason));
    working.add(sessionId);
  });
}

describe("a session that makes threads", () => {
  it("has other agents work beside it, waits without a lease, and reads what they say in the same turn", async () => {
    const child = await rig.agent("reader", (_request, turn) => ({ say: `read: ${heard(turn)[0]}` }));
    let told: string[] = [];
    let waited = "";
    const lead = await rig.agent(
      "lead",
      (request, turn) => {
        if (request === 1) return { calls: [create("reader", "one"), create(child, "two")] };
        if (request === 2) return { calls: [{ name: "thread_wait" }] };
        told = heard(turn);
        waited = results(turn).at(-1)!;
        return { say: "All read." };
      },
      { members: [child] },
    );
    const sessionId = await rig.talk(lead);
    const session = await rig.rested(sessionId, StopReason.END_TURN);
    expect(told.sort()).toEqual(["read: one", "read: two"]);
    expect(waited).toMatch(/has ended its turn[\s\S]*has ended its turn/);
    expect(session.tree).toMatchObject({ threads: 2, liveThreads: 2, running: 0 });
    expect(session.tree!.usage!.modelRequests).toBe(5n);
    const log = await rig.log(sessionId);
    expectWhole(log);
    expect(payloads(log, "session.thread_created")).toHaveLength(2);
    expect(payloads(log, "agent.thread_message_sent")).toHaveLength(2);
    const shown = log.filter(({ threadId }) => threadId !== "").map(({ type }) => type);
    expect(shown.sort()).toEqual([
      ...Array(2).fill("session.thread_status_idle"),
      ...Array(2).fill("session.thread_status_running"),
    ]);
    const [thread] = await rig.threadsOf(sessionId);
    expect(thread).toMatchObject({ rootSessionId: sessionId, parentSessionId: sessionId });
    expect(payloads(await rig.log(thread!.id), "agent.thread_message_received")[0]).toMatchObject({
      content: [{ type: "text", text: expect.stringMatching(/one|two/) }],
      from_agent_name: "lead",
      from_session_thread_id: sessionId.replace("sesn_", "sthr_"),
    });
  });

  it("rests while it waits for threads: nobody holds it, and it goes on with whoever is there then", async () => {
    let [isAtWork, mayEnd] = [false, false];
    const child = await rig.agent("slow", async () => {
      isAtWork = true;
      await eventually(() => mayEnd);
      return { say: "slowly done" };
    });
    const lead = await rig.agent(
      "patient",
      (request, turn) => {
        if (request === 1) return { calls: [create("slow", "take your time")] };
        if (request === 2) return { calls: [{ name: "thread_wait" }] };
        return { say: heard(turn).join() };
      },
      { members: [child] },
    );
    const sessionId = await rig.talk(lead);
    await eventually(() => isAtWork);
    const waiting = await rig.rested(sessionId, StopReason.WAITING_FOR_THREADS);
    expect(waiting.tree).toMatchObject({ running: 1 });
    const { rows } = await rig.database
      .pool()
      .query<{ lease_id: string | null }>("select lease_id from sessions where session_id = $1", [sessionId]);
    expect(rows[0]!.lease_id).toBeNull();
    mayEnd = true;
    await rig.rested(sessionId, StopReason.END_TURN);
    expect(payloads(await rig.log(sessionId), "agent.message").at(-1)).toMatchObject({
      content: [{ text: "slowly done" }],
    });
  });

  it("is woken by what a thread says at the end of a turn, and sends it another message", async () => {
    let isStarted = false;
    const child = await rig.agent("echo", async (_request, turn) => {
      // Not before the request that ends the first turn: with that one it would be heard, and nobody woken.
      await eventually(() => isStarted);
      return { say: `echo ${heard(turn).at(-1)}` };
    });
    const lead = await rig.agent(
      "asker",
      (request, turn) => {
        if (request === 1) return { calls: [create("echo", "first")] };
        isStarted = true;
        if (request === 2) return { say: "Started." };
        const thread = (payloadOf(turn.history.find(({ type }) => type === "agent.thread_message_received")!)
          .from_session_thread_id as string)!;
        if (heard(turn).length === 1 && request === 3)
          return { calls: [{ name: "thread_send", input: { to: thread, message: "second" } }] };
        return { say: `Heard: ${heard(turn).join(", ")}` };
      },
      { members: [child] },
    );
    const sessionId = await rig.talk(lead);
    await eventually(async () =>
      (await rig.log(sessionId)).some(({ payload }) => payload.includes("Heard: echo first, echo second")),
    );
    const [thread] = await rig.threadsOf(sessionId);
    expectWhole(await rig.log(thread!.id));
    expect(payloads(await rig.log(thread!.id), "agent.thread_message_received")).toHaveLength(2);
  });

  it("may call only the agents that it names, as deep and as many as its bounds say", async () => {
    const texts: string[] = [];
    const member = await rig.agent(
      "member",
      (request, turn) => {
        if (request === 1) return { calls: [create("self", "deeper")] };
        texts.push(results(turn).at(-1)!);
        return { say: "." };
      },
      { members: ["self"] },
    );
    const lead = await rig.agent(
      "bounded",
      (request, turn) => {
        if (request === 1) return { calls: [create("stranger", "hi"), create("member", "a")] };
        if (request === 2) return { calls: [{ name: "thread_wait" }] };
        if (request === 3) return { calls: [create("member", "b"), create("member", "c")] };
        // It may be asked once more, when a thread has said something meanwhile, and is shown the same again.
        if (request === 4) texts.push(...results(turn));
        return { say: "." };
      },
      { members: [member], multiagent: { maxLiveThreads: 2 } },
    );
    const sessionId = await rig.talk(lead);
    await rig.rested(sessionId, StopReason.END_TURN);
    expect(texts.join("\n")).toMatch(/may not call "stranger"; it may call "member"/);
    expect(texts.join("\n")).toMatch(/nested 1 deep/);
    expect(texts.filter((text) => /2 threads at once/.test(text))).toHaveLength(1);
    expect(await rig.threadsOf(sessionId)).toHaveLength(2);
  });

  it("makes one thread for one call, however often the call is run (X1)", async () => {
    const child = await rig.agent("once", () => ({ say: "." }));
    const lead = await rig.agent("repeats", () => ({ say: "." }), { members: [child] });
    const sessionId = await rig.talk(lead);
    await rig.rested(sessionId, StopReason.END_TURN);
    await rig.stopHarness();
    try {
      const pool = rig.database.pool();
      await pool.query(
        "update sessions set lease_id = 'lease_t', lease_epoch = 99, lease_expires_at = clock_timestamp() + interval '1 hour' where session_id = $1",
        [sessionId],
      );
      const harness = rig.harnessThreads(await rig.server.localKey("harness"));
      const request = {
        sessionId,
        lease: { leaseId: "lease_t", epoch: 99n },
        requestId: "sevt_call",
        agent: "once",
        message: "hi",
      };
      const made = await Promise.all([1, 2, 3].map(() => harness.createThread(request)));
      expect(new Set(made.map(({ thread }) => thread!.id)).size).toBe(1);
      expect(payloads(await rig.log(sessionId), "session.thread_created")).toHaveLength(1);
      const { id: threadId } = made[0]!.thread!;
      const { agent: _, ...call } = request;
      const send = (requestId: string) => harness.sendToThread({ ...call, requestId, threadId });
      await send("sevt_s");
      await rig.threads.stopThread({ threadId });
      await send("sevt_s");
      await expect(send("sevt_t")).rejects.toMatchObject({ reason: "THREAD_STOPPED" });
      const stale = { ...request, requestId: "sevt_other", lease: { leaseId: "lease_t", epoch: 98n } };
      await expect(harness.createThread(stale)).rejects.toMatchObject({ reason: "LEASE_FENCED" });
      // While an interrupt waits, nothing is made behind the back of whoever stops the tree.
      await rig.sessions.emitEvents({ sessionId, events: [{ type: "user.interrupt" }] });
      const late = { ...request, requestId: "sevt_late" };
      await expect(harness.createThread(late)).rejects.toMatchObject({ reason: "INTERRUPTED" });
      await expect(send("sevt_u")).rejects.toMatchObject({ reason: "INTERRUPTED" });
      // What was made before is still the answer, also when nothing could be made of it any more.
      await rig.server.client(AgentService).archiveAgent({ agentId: child });
      expect((await harness.createThread(request)).thread!.id).toBe(threadId);
      await pool.query("update sessions set lease_id = null where session_id = $1", [sessionId]);
    } finally {
      await rig.startHarness();
    }
  });

  it("ends a thread for good with thread_stop, which frees its place", async () => {
    const child = await rig.agent("endless", endless);
    const lead = await rig.agent(
      "stopper",
      (request, turn) => {
        const id = results(turn)[0]?.match(/sthr_\w+/)?.[0];
        if (request === 1) return { calls: [create("endless", "never ends")] };
        if (request === 2) return { calls: [{ name: "thread_stop", input: { thread: id } }] };
        if (request === 3) return { calls: [create("endless", "again")] };
        return { say: results(turn).join("\n") };
      },
      { members: [child], multiagent: { maxLiveThreads: 1 } },
    );
    const sessionId = await rig.talk(lead);
    const session = await rig.rested(sessionId, StopReason.END_TURN);
    expect(session.tree).toMatchObject({ threads: 2, liveThreads: 1 });
    const log = await rig.log(sessionId);
    expect(log.map(({ type }) => type)).toContain("session.thread_status_terminated");
    await rig.threads.stopTree({ sessionId });
    await eventually(async () => (await rig.get(sessionId)).tree!.running === 0);
  });
});

describe("what holds for sessions", () => {
  it("holds for threads: hashes, export, and forks, which are sessions of their own", async () => {
    const { workspaces } = await rig.admin.listWorkspaces({});
    const workspaceId = workspaces[0]!.id;
    await rig.admin.updateWorkspace({ workspaceId, tamperEvident: true });
    const child = await rig.agent("hashed", () => ({ say: "hashed words" }));
    const lead = await rig.agent(
      "hasher",
      (request) => (request === 1 ? { calls: [create("hashed", "a")] } : { say: "." }),
      { members: [child] },
    );
    const sessionId = await rig.talk(lead);
    await rig.admin.updateWorkspace({ workspaceId, tamperEvident: false });
    const thread = await eventually(async () => (await rig.threadsOf(sessionId))[0]);
    await rig.rested(thread.id, StopReason.END_TURN);
    expect((await rig.get(thread.id)).tamperEvident).toBe(true);
    const { rows } = await rig.database
      .pool()
      .query<{ n: number }>("select count(*) as n from events where session_id = $1 and hash is null", [
        thread.id,
      ]);
    expect(Number(rows[0]!.n)).toBe(0);
    let lines = "";
    for await (const { chunk } of rig.sessions.exportSession({ sessionId: thread.id })) {
      lines += Buffer.from(chunk).toString("utf8");
    }
    expect(lines).toContain("hashed words");
    const { session: fork } = await rig.sessions.forkSession({ sessionId: thread.id });
    expect(fork).toMatchObject({ rootSessionId: "", forkedFromSessionId: thread.id });
    expect(fork!.id).toMatch(/^sesn_/);
    await rig.say(fork!.id, "more");
    await eventually(async () => payloads(await rig.log(fork!.id), "agent.message").length === 2);
    expect(await rig.threadsOf(fork!.id)).toEqual([]);
  });

  it("nests as deep as the root allows; the root's log tells of threads of threads", async () => {
    const nested = await rig.agent(
      "nested",
      (request, turn) => {
        if (turn.history.some(({ payload }) => payload.includes('"go deeper"')) && request === 1)
          return { calls: [create("self", "stay")] };
        return request === 2 ? { calls: [{ name: "thread_wait" }] } : { say: `told ${heard(turn).join()}` };
      },
      { members: ["self"] },
    );
    const lead = await rig.agent(
      "surface",
      (request, turn) => {
        if (request === 1) return { calls: [create("nested", "go deeper")] };
        return request === 2 ? { calls: [{ name: "thread_wait" }] } : { say: heard(turn).join() };
      },
      { members: [nested], multiagent: { maxDepth: 2 } },
    );
    const sessionId = await rig.talk(lead);
    const session = await rig.rested(sessionId, StopReason.END_TURN);
    expect(session.tree).toMatchObject({ threads: 2 });
    const log = await rig.log(sessionId);
    expect(payloads(log, "agent.message").at(-1)).toMatchObject({
      content: [{ text: "told go deeper,told stay" }],
    });
    const shown = log.filter(({ type, threadId }) => type === "session.thread_created" && threadId !== "");
    expect(shown).toHaveLength(1);
    const { threads } = await rig.threads.listThreads({ sessionId });
    expect(threads).toHaveLength(1);
    expect(shown[0]!.threadId).toBe(threads[0]!.id);
  });

  it("ends a wait whose time is over, and says who still works", async () => {
    const child = await rig.agent("tardy", endless);
    const lead = await rig.agent(
      "hasty",
      async (request, turn) => {
        if (request === 1) return { calls: [create("tardy", "a")] };
        const [thread] = /sthr_\w+/.exec(results(turn)[0]!)!;
        await eventually(() => working.has(thread));
        if (request === 2) return { calls: [{ name: "thread_wait", input: { timeout_seconds: 0.2 } }] };
        return { say: results(turn).at(-1)! };
      },
      { members: [child] },
    );
    const sessionId = await rig.talk(lead);
    await rig.rested(sessionId, StopReason.END_TURN);
    expect(JSON.stringify(payloads(await rig.log(sessionId), "agent.message").at(-1))).toMatch(
      /works[\s\S]*time is over/,
    );
    await rig.threads.stopTree({ sessionId });
  });

  it("ends threads whose root ended while its server died", async () => {
    const child = await rig.agent("orphan", () => ({ say: "." }));
    const lead = await rig.agent(
      "parent",
      (request) => (request === 1 ? { calls: [create("orphan", "a")] } : { say: "." }),
      { members: [child] },
    );
    const sessionId = await rig.talk(lead);
    const thread = await eventually(async () => (await rig.threadsOf(sessionId))[0]);
    await rig.rested(thread.id, StopReason.END_TURN);
    // What a server that dies in the middle of archiving leaves.
    await rig.database
      .pool()
      .query("update sessions set archived_at = clock_timestamp() where session_id = $1", [sessionId]);
    await eventually(async () => (await rig.get(thread.id)).status === SessionStatus.TERMINATED, {
      withinMs: 60_000,
    });
  });
});

describe("clients of a session with threads", () => {
  it("are shown what a thread asks, answer in the session's log, and the thread goes on", async () => {
    const custom = { name: "ask_user", description: "asks", inputSchema: `{"type":"object"}` };
    const child = await rig.agent(
      "curious",
      (request, turn) =>
        request === 1 ? { calls: [{ name: "ask_user" }] } : { say: `told ${answersOf(turn)}` },
      { tools: [{ kind: { case: "custom", value: custom } }] },
    );
    const lead = await rig.agent(
      "hub",
      (request, turn) => {
        if (request === 1) return { calls: [create("curious", "ask")] };
        if (request === 2) return { calls: [{ name: "thread_wait" }] };
        return { say: heard(turn).join() };
      },
      { members: [child] },
    );
    const sessionId = await rig.talk(lead);
    const ask = await eventually(async () =>
      (await rig.log(sessionId)).find(({ type }) => type === "agent.custom_tool_use"),
    );
    const [thread] = await rig.threadsOf(sessionId);
    expect(ask.threadId).toBe(thread!.id);
    const fileId = await rig.file("a blue ball");
    const document = { type: "document", source: { type: "file", file_id: fileId } };
    const content = [{ type: "text", text: "blue" }, document];
    const payload = JSON.stringify({ custom_tool_use_id: ask.id, content });
    await rig.sessions.emitEvents({ sessionId, events: [{ type: "user.custom_tool_result", payload }] });
    await rig.rested(sessionId, StopReason.END_TURN);
    const log = await rig.log(sessionId);
    expectWhole(log);
    expect(payloads(log, "agent.message").at(-1)).toMatchObject({
      content: [{ text: "told blue: a blue ball" }],
    });
    const answer = log.find(({ type }) => type === "user.custom_tool_result")!;
    expect(answer.threadId).toBe(thread!.id);
    expect((await rig.log(thread!.id)).filter(({ id }) => id === answer.id)).toHaveLength(1);
  });

  it("interrupt all threads with one that names none, and one thread with one that names it", async () => {
    const child = await rig.agent("busy", endless);
    const lead = await rig.agent(
      "boss",
      (request, turn) => {
        if (request === 1) return { calls: [create("busy", "a"), create("busy", "b")] };
        if (request === 2) return { calls: [{ name: "thread_wait" }] };
        return { say: results(turn).at(-1)! };
      },
      { members: [child] },
    );
    const sessionId = await rig.talk(lead);
    await rig.rested(sessionId, StopReason.WAITING_FOR_THREADS);
    const [first, second] = await rig.threadsOf(sessionId);
    await eventually(() => working.has(first!.id) && working.has(second!.id));
    expect((await rig.get(sessionId)).tree?.running).toBe(2);
    const one = { type: "user.interrupt", payload: JSON.stringify({ session_thread_id: first!.id }) };
    await rig.sessions.emitEvents({ sessionId, events: [one] });
    await rig.rested(first!.id, StopReason.END_TURN);
    expect((await rig.get(second!.id)).status).toBe(SessionStatus.RUNNING);
    await rig.sessions.emitEvents({ sessionId, events: [{ type: "user.interrupt" }] });
    await rig.rested(second!.id, StopReason.END_TURN);
    await rig.rested(sessionId, StopReason.END_TURN);
    expectWhole(await rig.log(sessionId));
  });

  it("archive and delete a session with all of its threads; threads are not listed as sessions", async () => {
    const child = await rig.agent("kept", () => ({ say: "." }));
    const lead = await rig.agent(
      "owner",
      (request) => (request === 1 ? { calls: [create("kept", "a"), create("kept", "b")] } : { say: "." }),
      { members: [child] },
    );
    const sessionId = await rig.talk(lead);
    await eventually(async () => (await rig.threadsOf(sessionId)).length === 2);
    const threads = await rig.threadsOf(sessionId);
    const { sessions } = await rig.sessions.listSessions({ pageSize: 100 });
    expect(sessions.some(({ id }) => id.startsWith("sthr_"))).toBe(false);
    await rig.sessions.archiveSession({ sessionId, interrupt: true });
    for (const { id } of threads) expect((await rig.get(id)).status).toBe(SessionStatus.TERMINATED);
    await rig.sessions.deleteSession({ sessionId });
    const ids = [sessionId, ...threads.map(({ id }) => id)];
    for (const id of ids) await expect(rig.get(id)).rejects.toMatchObject({ reason: "NOT_FOUND" });
    const left = await rig.database.pool().query("select 1 from events where session_id = any($1)", [ids]);
    expect(left.rowCount).toBe(0);
  });
});

function answersOf({ history }: LoopTurn): string {
  return history
    .filter(({ type }) => type === "user.custom_tool_result")
    .map((event) => {
      const [said, document] = payloadOf(event).content as { text: string; source: { data: string } }[];
      return `${said!.text}: ${document!.source.data}`;
    })
    .join();
}

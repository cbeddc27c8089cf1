/** The work queue of a self-hosted environment, when calls in it are answered before a worker took them. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { eventually } from "../kit/eventually.ts";
import { followInstructions, toolUse, turn } from "../kit/fake-messages-api.ts";
import { startWorkerRig, type WorkerRig } from "../kit/worker-rig.ts";

let rig: WorkerRig;

beforeAll(async () => {
  rig = await startWorkerRig({
    script: (request) => {
      const last = JSON.stringify(request.messages.at(-1));
      if (last.includes("two calls"))
        return turn(["one", "two"].map((word) => toolUse("bash", { command: `echo ${word}` })));
      if (last.includes("a thread and a call"))
        return turn([
          toolUse("thread_create", { agent: "self", message: "run: echo of a thread" }),
          toolUse("bash", { command: "echo of the session" }),
        ]);
      return followInstructions(request);
    },
  });
}, 120_000);
afterAll(() => rig?.stop());

/** A session whose calls wait in the queue of an environment of its own. */
async function waiting(words: string, calls = 1) {
  const environmentId = await rig.environment();
  const worker = rig.as((await rig.key(environmentId)).key);
  const sessionId = await rig.session(environmentId, words);
  const open = await eventually(async () => {
    const made = (await rig.events(sessionId)).filter(
      ({ type, name }) => type === "agent.tool_use" && name === "bash",
    );
    return made.length === calls ? made : undefined;
  });
  const { work } = rig.client.beta.environments;
  // In the queue, too, not in the log alone.
  const offered = "select from worker_calls where session_id = $1 and offered_at is not null";
  await eventually(async () => (await rig.database.pool().query(offered, [sessionId])).rowCount === calls);
  const states = async () =>
    (await worker.beta.environments.work.list(environmentId)).data.map(({ state }) => state);
  const poll = (more = {}) =>
    worker.beta.environments.work.poll(environmentId, { reclaim_older_than_ms: 0, ...more });
  return {
    environmentId,
    worker,
    sessionId,
    calls: open,
    stats: () => work.stats(environmentId),
    states,
    poll,
  };
}

type Waiting = Awaited<ReturnType<typeof waiting>>;

const EMPTY = { depth: 0, pending: 0, oldest_queued_at: null };

async function isOver({ stats, states, poll }: Waiting): Promise<void> {
  expect(await stats()).toMatchObject(EMPTY);
  expect(await states()).toEqual(["stopped"]);
  expect(await poll()).toBeNull();
}

const interrupt = (sessionId: string) =>
  rig.client.beta.sessions.events.send(sessionId, { events: [{ type: "user.interrupt" }] });

function answer(sessionId: string, { id, session_thread_id }: Waiting["calls"][number]) {
  const event = {
    type: "user.tool_result" as const,
    tool_use_id: id,
    content: [{ type: "text" as const, text: "hello" }],
    ...(typeof session_thread_id === "string" && { session_thread_id }),
  };
  return rig.client.beta.sessions.events.send(sessionId, { events: [event] });
}

describe("an item whose calls are answered before a worker took it", () => {
  it("is over with an interrupt, and a poll that waits is given the next call at once", async () => {
    const at = await waiting("run: echo first");
    const [first] = (await at.worker.beta.environments.work.list(at.environmentId)).data;
    await interrupt(at.sessionId);
    await rig.idle(at.sessionId, "end_turn");
    await isOver(at);
    const polled = eventually(() => at.poll({ block_ms: 999 }));
    await rig.say(at.sessionId, "run: echo second");
    expect((await polled)!.data.id).toBe(at.sessionId);
    expect((await polled)!.id).not.toBe(first!.id);
    expect(await rig.calls(at.sessionId, 2)).toHaveLength(2);
  });

  it("is over with a client's answer to the last of them, and not before", async () => {
    const at = await waiting("two calls", 2);
    await answer(at.sessionId, at.calls[0]!);
    expect(await at.stats()).toMatchObject({ depth: 1 });
    expect(await at.poll()).not.toBeNull();
    await answer(at.sessionId, at.calls[1]!);
    await isOver(at);
  });

  it("is nobody's to acknowledge though it was given out", async () => {
    const at = await waiting("run: echo hello");
    const work = (await at.poll())!;
    expect(await at.stats()).toMatchObject({ pending: 1 });
    await interrupt(at.sessionId);
    await rig.idle(at.sessionId, "end_turn");
    await isOver(at);
    const ack = at.worker.beta.environments.work.ack(work.id, { environment_id: at.environmentId });
    await expect(ack).rejects.toMatchObject({ status: 409 });
  });

  it("waits for the calls of threads, too, until these are answered or their threads archived", async () => {
    const at = await waiting("a thread and a call", 2);
    const ofThread = at.calls.find(({ session_thread_id }) => typeof session_thread_id === "string")!;
    await answer(at.sessionId, at.calls.find((call) => call !== ofThread)!);
    expect(await at.stats()).toMatchObject({ depth: 1 });
    expect(await at.poll()).toMatchObject({ data: { id: at.sessionId } });
    await rig.client.beta.sessions.threads.archive(ofThread.session_thread_id as string, {
      session_id: at.sessionId,
    });
    await eventually(async () => (await at.states()).join() === "stopped");
    await isOver(at);
  });
});

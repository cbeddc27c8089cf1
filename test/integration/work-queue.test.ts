/** The work queue of self-hosted environments, route by route, by the official client. */
import Anthropic, { toFile } from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { sessionFaults } from "../kit/declared-shapes.ts";
import { eventually } from "../kit/eventually.ts";
import { followInstructions, toolUse, turn } from "../kit/fake-messages-api.ts";
import { startServer } from "../kit/server.ts";
import { type SeenEvent, startWorkerRig, type WorkerRig } from "../kit/worker-rig.ts";

let rig: WorkerRig;

beforeAll(async () => {
  rig = await startWorkerRig({
    script: (request) => {
      const last = JSON.stringify(request.messages.at(-1));
      if (last.includes("make a thread"))
        return turn([toolUse("thread_create", { agent: "self", message: "run: echo of a thread" })]);
      if (last.includes("works on it")) return turn([toolUse("thread_wait", {})]);
      return followInstructions(request);
    },
  });
}, 120_000);
afterAll(() => rig?.stop());

type Work = Anthropic.Beta.Environments.BetaSelfHostedWork;

/** A session whose call waits in the queue of an environment of its own. */
async function waiting(words = "run: echo hello") {
  const environmentId = await rig.environment();
  const { key } = await rig.key(environmentId);
  const sessionId = await rig.session(environmentId, words);
  await rig.idle(sessionId, "requires_action");
  const [call] = await rig.calls(sessionId, 1);
  return { environmentId, key, sessionId, callId: call!.id, worker: rig.as(key) };
}

type Waiting = Awaited<ReturnType<typeof waiting>>;

const poll = (at: Waiting, more: object = {}) =>
  at.worker.beta.environments.work.poll(at.environmentId, more);

function tokenOf({ secret }: Work): string {
  return (JSON.parse(Buffer.from(secret!, "base64url").toString()) as { sessions_token: string })
    .sessions_token;
}

/** The item is given out and accepted, and has its first heartbeat. */
async function claimed(at: Waiting, ttlSeconds?: number) {
  const work = (await poll(at))!;
  const named = { environment_id: at.environmentId };
  await at.worker.beta.environments.work.ack(work.id, named);
  const holder = rig.as(tokenOf(work));
  const first = await holder.beta.environments.work.heartbeat(work.id, {
    ...named,
    expected_last_heartbeat: "NO_HEARTBEAT",
    ...(ttlSeconds !== undefined && { desired_ttl_seconds: ttlSeconds }),
  });
  const beat = (expected: string) =>
    holder.beta.environments.work.heartbeat(work.id, { ...named, expected_last_heartbeat: expected });
  const stop = (force = true) => holder.beta.environments.work.stop(work.id, { ...named, force });
  return { work, holder, first, beat, stop };
}

const result = (callId: string, text: string) => ({
  events: [
    {
      type: "user.tool_result" as const,
      tool_use_id: callId,
      content: [{ type: "text" as const, text }],
      is_error: false,
    },
  ],
});

const ofType = (events: readonly SeenEvent[], type: string) => events.filter((event) => event.type === type);

/** As if its worker had not been heard from for the time of its lease. */
async function loseLease({ id }: Work): Promise<void> {
  await rig.database
    .pool()
    .query("update work_items set lease_expires_at = clock_timestamp() where work_id = $1", [id]);
}

describe("environment keys", () => {
  it("are shown once, differ, are listed without what is secret, and open nothing once they are revoked", async () => {
    const environmentId = await rig.environment();
    const path = `/v1/environments/${environmentId}/keys`;
    const first = await rig.key(environmentId);
    expect(first).toEqual({
      type: "environment_key",
      id: expect.stringMatching(/^envkey_/),
      environment_id: environmentId,
      key: expect.any(String),
      created_at: expect.any(String),
      expires_at: null,
    });
    const second = await rig.client.post<{ id: string; key: string; expires_at: string }>(path, {
      body: { name: "host b", expires_in_seconds: 3600 },
    });
    expect(second.key).not.toBe(first.key);
    expect(Date.parse(second.expires_at)).toBeGreaterThan(Date.now());
    const { data } = await rig.client.get<{ data: { id: string }[] }>(path);
    expect(data.map(({ id }) => id)).toEqual([second.id, first.id]);
    expect(JSON.stringify(data)).not.toContain(first.key);
    const worker = rig.as(first.key);
    expect(await worker.beta.environments.work.poll(environmentId)).toBeNull();
    await rig.client.delete(`${path}/${first.id}`);
    await expect(worker.beta.environments.work.poll(environmentId)).rejects.toMatchObject({ status: 401 });
    expect(await rig.as(second.key).beta.environments.work.poll(environmentId)).toBeNull();
    await expect(rig.client.delete(`${path}/envkey_nobody`)).rejects.toMatchObject({ status: 404 });
  });

  it("are only for self-hosted environments", async () => {
    const cloud = await rig.environment("cloud");
    await expect(rig.key(cloud)).rejects.toMatchObject({ status: 400 });
    await expect(rig.key("env_nobody")).rejects.toMatchObject({ status: 404 });
  });
});

describe("an item of work", () => {
  it("goes from queued over starting and active to stopped, and is somebody's all the while", async () => {
    const at = await waiting();
    const named = { environment_id: at.environmentId };
    const { work: queue } = rig.client.beta.environments;
    expect(await queue.stats(at.environmentId)).toMatchObject({
      type: "work_queue_stats",
      depth: 1,
      pending: 0,
    });
    const work = (await poll(at, { block_ms: 999, "Anthropic-Worker-ID": "one" }))!;
    expect(work).toMatchObject({
      type: "work",
      environment_id: at.environmentId,
      data: { type: "session", id: at.sessionId },
      state: "queued",
      acknowledged_at: null,
      metadata: {},
    });
    expect(await queue.stats(at.environmentId)).toMatchObject({ depth: 0, pending: 1, workers_polling: 1 });
    // Given out and not acknowledged: nobody else's until it has been so for long enough.
    expect(await poll(at, { reclaim_older_than_ms: 60_000 })).toBeNull();
    const again = (await poll(at, { reclaim_older_than_ms: 0 }))!;
    expect(again.id).toBe(work.id);
    expect(again.secret).not.toBe(work.secret);
    expect(await at.worker.beta.environments.work.ack(work.id, named)).toMatchObject({
      state: "starting",
      secret: null,
    });
    expect(await poll(at, { reclaim_older_than_ms: 0 })).toBeNull();
    const holder = rig.as(tokenOf(again)).beta.environments.work;
    const beat = (expected: string) =>
      holder.heartbeat(work.id, { ...named, expected_last_heartbeat: expected });
    const first = await beat("NO_HEARTBEAT");
    expect(first).toMatchObject({
      type: "work_heartbeat",
      lease_extended: true,
      state: "active",
      ttl_seconds: 90,
    });
    // Its answer was lost: the same holder says the same again.
    expect((await beat("NO_HEARTBEAT")).last_heartbeat).toBe(first.last_heartbeat);
    const second = await beat(first.last_heartbeat);
    expect(second.last_heartbeat).not.toBe(first.last_heartbeat);
    await expect(beat("something else")).rejects.toMatchObject({
      status: 412,
      error: {
        error: {
          details: {
            error_code: "heartbeat_precondition_failed",
            current_state: {
              last_heartbeat: second.last_heartbeat,
              lease_extended: false,
              state: "active",
              ttl_seconds: 90,
            },
          },
        },
      },
    });
    // The other one that was given it came too late.
    const late = rig.as(tokenOf(work)).beta.environments.work;
    const stale = { ...named, expected_last_heartbeat: second.last_heartbeat };
    await expect(late.heartbeat(work.id, stale)).rejects.toMatchObject({ status: 412 });
    await expect(late.stop(work.id, { ...named, force: true })).rejects.toMatchObject({ status: 409 });
    expect((await queue.stop(work.id, named)).state).toBe("stopping");
    expect(await beat("whatever")).toMatchObject({ state: "stopping", lease_extended: false });
    expect((await holder.stop(work.id, { ...named, force: true })).state).toBe("stopped");
    expect(await beat("whatever")).toMatchObject({ state: "stopped", lease_extended: false });
    await expect(holder.stop(work.id, { ...named, force: true })).rejects.toMatchObject({ status: 409 });
    expect(await queue.retrieve(work.id, named)).toMatchObject({
      state: "stopped",
      acknowledged_at: expect.any(String),
      started_at: expect.any(String),
      latest_heartbeat_at: expect.any(String),
      stop_requested_at: expect.any(String),
      stopped_at: expect.any(String),
    });
  });

  it("that stops without having seen the call leaves it to the next item", async () => {
    const at = await waiting();
    const { work, stop } = await claimed(at);
    await stop();
    const next = (await poll(at))!;
    expect(next.id).not.toBe(work.id);
    expect(ofType(await rig.events(at.sessionId), "user.tool_result")).toEqual([]);
  });

  it("has metadata that operators merge, and a list for workers", async () => {
    const at = await waiting();
    const work = (await poll(at))!;
    const named = { environment_id: at.environmentId };
    const { work: queue } = rig.client.beta.environments;
    await queue.update(work.id, { ...named, metadata: { a: "1", b: "2" } });
    const changed = await queue.update(work.id, { ...named, metadata: { a: null, c: "3" } });
    expect(changed.metadata).toEqual({ b: "2", c: "3" });
    await expect(queue.update(work.id, { ...named, metadata: { d: "x".repeat(513) } })).rejects.toMatchObject(
      {
        status: 400,
        error: { error: { details: { error_code: "invalid_metadata" } } },
      },
    );
    const listed: string[] = [];
    for await (const item of at.worker.beta.environments.work.list(at.environmentId, { limit: 1 }))
      listed.push(item.id);
    expect(listed).toEqual([work.id]);
    await expect(queue.retrieve("work_nobody", named)).rejects.toMatchObject({ status: 404 });
  });

  it.each(["block_ms=0", "block_ms=1000", "block_ms=soon", "reclaim_older_than_ms=-1"])(
    "is not polled with %s",
    async (query) => {
      const environmentId = await rig.environment();
      const { key } = await rig.key(environmentId);
      const call = rig.as(key).get(`/v1/environments/${environmentId}/work/poll?${query}`);
      await expect(call).rejects.toMatchObject({ status: 400 });
    },
  );
});

describe("a call in the queue", () => {
  it("is shown to who holds the item alone, and its answer lets the turn go on", async () => {
    const at = await waiting();
    expect(ofType(await rig.events(at.sessionId, at.worker), "agent.tool_use")).toEqual([]);
    const { holder } = await claimed(at);
    expect(ofType(await rig.events(at.sessionId, holder), "agent.tool_use")).toMatchObject([
      { id: at.callId },
    ]);
    expect(await holder.beta.sessions.retrieve(at.sessionId)).toMatchObject({
      id: at.sessionId,
      resources: [],
    });
    await holder.beta.sessions.events.send(at.sessionId, result(at.callId, "hello"));
    const events = await rig.idle(at.sessionId, "end_turn");
    expect(JSON.stringify(ofType(events, "agent.message"))).toContain("hello");
    // Repeated, late and with other words: nothing changes, and nobody is asked to try again.
    for (const words of ["hello", "other"]) {
      const { data } = await holder.beta.sessions.events.send(at.sessionId, result(at.callId, words));
      expect(data).toMatchObject([{ type: "user.tool_result", content: [{ text: "hello" }] }]);
    }
    await expect(
      holder.beta.sessions.events.send(at.sessionId, result("sevt_nobody", "hello")),
    ).rejects.toMatchObject({ status: 400 });
    expect(ofType(await rig.events(at.sessionId), "user.tool_result")).toHaveLength(1);
  });

  it("is answered with a file of the workspace in vain: its key does not open that", async () => {
    const at = await waiting();
    const { holder } = await claimed(at);
    const file = await toFile(Buffer.from("only for others"), "others.txt");
    const { id } = await rig.client.beta.files.upload({ file });
    const content = [
      { type: "text" as const, text: "look" },
      { type: "document" as const, source: { type: "file" as const, file_id: id } },
    ];
    const answer = { type: "user.tool_result" as const, tool_use_id: at.callId, content };
    await holder.beta.sessions.events.send(at.sessionId, { events: [answer] });
    await rig.idle(at.sessionId, "end_turn");
    const told = rig.api.requests.at(-1)!.body.toString();
    expect(told).toContain("[document left out: its source is of type");
    expect(told).not.toContain("only for others");
  });

  it("has a result of its own when its holder was not heard from, before the item is offered again (X1, X3)", async () => {
    const at = await waiting();
    const { work, holder, first, beat, stop } = await claimed(at);
    expect(ofType(await rig.events(at.sessionId, holder), "agent.tool_use")).toHaveLength(1);
    await loseLease(work);
    const next = (await eventually(() => poll(at)))!;
    expect(next.id).toBe(work.id);
    const [answer] = ofType(await rig.events(at.sessionId), "user.tool_result");
    expect(answer).toMatchObject({
      tool_use_id: at.callId,
      is_error: true,
      outcome: "unknown",
      failure: { part: "client", reason: "WORKER_LOST" },
    });
    // Back again: it can neither keep nor end what is another one's, and what it found out comes too late.
    await expect(beat(first.last_heartbeat)).rejects.toMatchObject({ status: 412 });
    await expect(stop()).rejects.toMatchObject({ status: 409 });
    await holder.beta.sessions.events.send(at.sessionId, result(at.callId, "late"));
    const after = await rig.client.beta.environments.work.retrieve(work.id, {
      environment_id: at.environmentId,
    });
    expect(after.state).toBe("queued");
    expect(ofType(await rig.events(at.sessionId), "user.tool_result")).toEqual([answer]);
    // A new call is shown to the new holder, and not to who comes back.
    await rig.idle(at.sessionId, "end_turn");
    await at.worker.beta.environments.work.ack(work.id, { environment_id: at.environmentId });
    await rig.say(at.sessionId, "run: echo second");
    const [, second] = await rig.calls(at.sessionId, 2);
    const seen = ofType(await rig.events(at.sessionId, rig.as(tokenOf(next))), "agent.tool_use");
    expect(seen.map(({ id }) => id)).toContain(second!.id);
    expect(ofType(await rig.events(at.sessionId, holder), "agent.tool_use")).toEqual([]);
  });

  it("is lost after the time to live that its holder wanted", async () => {
    const at = await waiting();
    const { work } = await claimed(at, 1);
    expect((await eventually(() => poll(at)))!.id).toBe(work.id);
    expect(ofType(await rig.events(at.sessionId), "user.tool_result")).toHaveLength(1);
  });

  it("that is interrupted gets its result at once, and the worker's comes too late (X3)", async () => {
    const at = await waiting();
    const { holder } = await claimed(at);
    await rig.client.beta.sessions.events.send(at.sessionId, { events: [{ type: "user.interrupt" }] });
    const events = await rig.idle(at.sessionId, "end_turn");
    expect(ofType(events, "user.tool_result")).toMatchObject([{ tool_use_id: at.callId, is_error: true }]);
    expect(ofType(events, "agent.tool_result")).toEqual([]);
    await holder.beta.sessions.events.send(at.sessionId, result(at.callId, "late"));
    expect(ofType(await rig.events(at.sessionId), "user.tool_result")).toHaveLength(1);
  });

  it("goes with its session: the worker of an archived one hears that it stopped, that of a deleted one that there is none", async () => {
    const at = await waiting();
    const { holder, beat } = await claimed(at);
    await rig.client.beta.sessions.archive(at.sessionId);
    expect(await beat("whatever")).toMatchObject({ state: "stopped", lease_extended: false });
    expect((await holder.beta.sessions.retrieve(at.sessionId)).status).toBe("terminated");
    await holder.beta.sessions.events.send(at.sessionId, result(at.callId, "late"));
    await rig.client.beta.sessions.delete(at.sessionId);
    await expect(beat("whatever")).rejects.toMatchObject({ status: 401 });
  });

  it("of a thread is in the log that workers read, and its answer goes to the thread", async () => {
    const environmentId = await rig.environment();
    const { key } = await rig.key(environmentId);
    const sessionId = await rig.session(environmentId, "make a thread");
    const [call] = await eventually(async () => {
      const calls = ofType(await rig.events(sessionId), "agent.tool_use").filter(
        ({ name }) => name === "bash",
      );
      return calls.length > 0 ? calls : undefined;
    });
    const at: Waiting = { environmentId, key, sessionId, callId: call!.id, worker: rig.as(key) };
    const { holder } = await claimed(at);
    // What the brain runs itself is none of a worker's business.
    expect(ofType(await rig.events(sessionId, holder), "agent.tool_use")).toMatchObject([
      { id: at.callId, session_thread_id: expect.stringMatching(/^sthr_/) },
    ]);
    await holder.beta.sessions.events.send(sessionId, result(at.callId, "of a thread"));
    const events = await rig.idle(sessionId, "end_turn");
    expect(ofType(events, "user.tool_result")).toMatchObject([
      { session_thread_id: call!.session_thread_id },
    ]);
    expect(JSON.stringify(ofType(events, "agent.thread_message_received"))).toContain("of a thread");
  });

  it("may be polled, seen and answered at another replica", async () => {
    const at = await waiting();
    const other = await startServer({ databaseUrl: rig.database.url });
    try {
      const there = (token: string) =>
        new Anthropic({ baseURL: other.url, authToken: token, apiKey: null, maxRetries: 0 });
      const elsewhere = { ...at, worker: there(at.key) };
      const work = (await poll(elsewhere))!;
      const named = { environment_id: at.environmentId };
      await at.worker.beta.environments.work.ack(work.id, named);
      const holder = there(tokenOf(work));
      expect(ofType(await rig.events(at.sessionId, holder), "agent.tool_use")).toHaveLength(1);
      await holder.beta.sessions.events.send(at.sessionId, result(at.callId, "hello"));
      await rig.idle(at.sessionId, "end_turn");
      expect(await poll(at, { reclaim_older_than_ms: 0 })).toBeNull();
    } finally {
      await other.stop();
    }
  });

  it("stays in the queue of an archived environment, which makes no more keys", async () => {
    const at = await waiting();
    await rig.client.beta.environments.archive(at.environmentId);
    expect((await poll(at))!.data.id).toBe(at.sessionId);
    await expect(rig.key(at.environmentId)).rejects.toMatchObject({ status: 400 });
  });
});

describe("who may do what", () => {
  it("is as the routes say, for every kind of credential", async () => {
    const at = await waiting();
    const { work, holder } = await claimed(at);
    const other = await waiting();
    const { environmentId: env, sessionId } = at;
    const item = `/v1/environments/${env}/work/${work.id}`;
    const callers = { api: rig.client, key: at.worker, token: holder, otherKey: other.worker };
    const get = (path: string) => (client: Anthropic) => client.get(path);
    const post = (path: string, body: object) => (client: Anthropic) => client.post(path, { body });
    const memory = "/v1/memory_stores/memstore_x/memories";
    // Statuses of an API key, the environment's key, the item's token, and the key of another environment.
    const table: [string, (client: Anthropic) => Promise<unknown>, number[]][] = [
      ["poll", get(`/v1/environments/${env}/work/poll`), [403, 200, 403, 404]],
      ["ack", post(`${item}/ack`, {}), [403, 409, 409, 404]],
      ["heartbeat", post(`${item}/heartbeat?expected_last_heartbeat=no`, {}), [403, 412, 412, 404]],
      ["list", get(`/v1/environments/${env}/work`), [200, 200, 403, 404]],
      ["stats", get(`/v1/environments/${env}/work/stats`), [200, 200, 403, 404]],
      ["retrieve", get(item), [200, 403, 403, 403]],
      ["update", post(item, { metadata: {} }), [200, 403, 403, 403]],
      ["session", get(`/v1/sessions/${sessionId}`), [200, 200, 200, 404]],
      ["another session", get(`/v1/sessions/${other.sessionId}`), [200, 404, 404, 200]],
      ["events", get(`/v1/sessions/${sessionId}/events`), [200, 200, 200, 404]],
      ["a message", post(`/v1/sessions/${sessionId}/events`, { events: [message] }), [200, 400, 400, 404]],
      [
        "an unknown answer",
        post(`/v1/sessions/${sessionId}/events`, result("sevt_no", "")),
        [400, 400, 400, 404],
      ],
      ["change of the session", post(`/v1/sessions/${sessionId}`, { title: "t" }), [200, 403, 403, 403]],
      ["sessions", get("/v1/sessions"), [200, 403, 403, 403]],
      ["agents", get("/v1/agents"), [200, 403, 403, 403]],
      ["environment", get(`/v1/environments/${env}`), [200, 403, 403, 403]],
      ["keys", get(`/v1/environments/${env}/keys`), [200, 403, 403, 403]],
      ["vaults", get("/v1/vaults"), [200, 403, 403, 403]],
      ["memories", get(memory), [404, 403, 404, 403]],
      ["stop", post(`${item}/stop`, { force: true }), [200, 409, 409, 404]],
    ];
    for (const [what, run, expected] of table) {
      const statuses: number[] = [];
      for (const client of Object.values(callers)) {
        statuses.push(
          await run(client).then(
            () => 200,
            (error: { status: number }) => error.status,
          ),
        );
      }
      expect([what, ...statuses]).toEqual([what, ...expected]);
    }
  });
});

const message = { type: "user.message", content: [{ type: "text", text: "hello" }] };

it("says all that was said here as the official client declares it", async () => {
  expect(await sessionFaults(rig.client)).toEqual([]);
});

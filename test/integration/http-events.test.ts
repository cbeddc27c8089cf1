/** What a session says over HTTP, and its threads: streams and histories. */
import type Anthropic from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { sessionFaults } from "../kit/declared-shapes.ts";
import { eventually } from "../kit/eventually.ts";
import { gate, text, toolUse, turn } from "../kit/fake-messages-api.ts";
import { HttpRig, say, TOOLSET, untilIdle } from "../kit/http-rig.ts";
import type { Platform } from "../kit/platform.ts";

let rig: HttpRig;
let platform: Platform;
let client: Anthropic;
const shown = gate();
/** Until then a child works. */
const done = gate();

beforeAll(async () => {
  rig = await HttpRig.start(({ messages }) => {
    const last = JSON.stringify(messages.at(-1));
    if (last.includes("make a thread")) {
      const message = last.includes("that asks") ? "run it" : "be the child";
      return turn([toolUse("thread_create", { agent: "self", message })]);
    }
    if (last.includes("works on it")) return turn([toolUse("thread_wait", {})]);
    if (last.includes("be the child")) return turn([text("Done.")], { before: { end: done.opened } });
    // Whoever wants to see text form has to see it before there is more.
    if (last.includes("say something"))
      return turn([text("Hello from the model.")], { before: { end: shown.opened } });
    if (!last.includes("run it")) return turn([text("Hello from the model.")]);
    return turn([toolUse("bash", { command: "echo made by $((40 + 2))" })]);
  });
  ({ platform, client } = rig);
});

afterAll(async () => {
  shown.open();
  done.open();
  await rig?.stop();
});

const newSession = () => rig.newSession();
const http = (path: string, init?: RequestInit) => rig.http(path, init);

describe("the event stream", () => {
  it("goes on after the frame that a client saw last, without a gap and without a repeat (L4)", async () => {
    const { id } = await newSession();
    const path = `/v1/sessions/${id}/events/stream`;
    await client.beta.sessions.events.send(id, { events: [say("one")] });
    const all = await untilIdle(await http(path, { headers: { "last-event-id": "0" } }));
    const cut = all[3]!;
    const rest = await untilIdle(await http(path, { headers: { "last-event-id": cut.id! } }));
    const from = all.findIndex(({ id: frame }) => Number(frame) > Number(cut.id));
    expect(rest).toEqual(all.slice(from));
    const known = all.findIndex(({ event }) => event === "span.model_request_start");
    const { id: eventId } = JSON.parse(all[known]!.data!) as { id: string };
    expect(await untilIdle(await http(`${path}?after=${eventId}`))).toEqual(all.slice(known + 1));
  });

  it("tells how the primary thread stands too, before what is told of the session, alike in the history and its pages", async () => {
    const session = await newSession();
    const path = `/v1/sessions/${session.id}/events/stream`;
    await client.beta.sessions.events.send(session.id, { events: [say("one")] });
    const all = await untilIdle(await http(path, { headers: { "last-event-id": "0" } }));
    const told = all.map(({ data }) => JSON.parse(data!) as { id: string; type: string });
    const [running, idle] = told.filter(({ type }) => type.startsWith("session.thread_status_"));
    const [primary] = (await client.beta.sessions.threads.list(session.id)).data;
    const named = { session_thread_id: primary!.id, agent_name: "helper" };
    expect(running).toMatchObject({ type: "session.thread_status_running", ...named });
    expect(idle).toMatchObject({ ...named, stop_reason: { type: "end_turn" }, stop_details: null });
    const types = told.map(({ type }) => type);
    const at = (one: object) => told.indexOf(one as never);
    expect(types[at(running!) + 1]).toBe("session.status_running");
    expect(types.slice(at(idle!) + 1)).toEqual(["session.usage", "session.status_idle"]);
    // Who goes on after one of them misses nothing.
    for (const one of [running!, idle!]) {
      const rest = await untilIdle(await http(`${path}?after=${one.id}`));
      expect(rest.map(({ data }) => data)).toEqual(all.slice(at(one) + 1).map(({ data }) => data));
    }
    const pages = async (query: Anthropic.Beta.Sessions.EventListParams) => {
      const found: unknown[] = [];
      for await (const event of client.beta.sessions.events.list(session.id, query)) found.push(event);
      return found;
    };
    const history = await pages({});
    expect(history.map((event) => (event as { id: string }).id)).toEqual([
      ...new Set(told.map(({ id }) => id)),
    ]);
    for (const limit of [1, 2, 3]) {
      expect(await pages({ limit })).toEqual(history);
      expect(await pages({ limit, order: "desc" })).toEqual(history.toReversed());
    }
    const only = ["session.thread_status_idle" as const, "session.usage" as const];
    const some = history.filter((event) => only.includes((event as { type: (typeof only)[0] }).type));
    expect(await pages({ types: only, limit: 1 })).toEqual(some);
    expect(await pages({ types: only.slice(0, 1), order: "desc", limit: 1 })).toEqual(some.slice(0, 1));
  });

  it("says at once of a client's own events that they are over: no brain takes them in", async () => {
    const { id } = await newSession();
    await http(`/v1/sessions/${id}/events`, {
      method: "POST",
      body: JSON.stringify({ events: [{ type: "acme.noted", session_thread_id: "mine" }] }),
    });
    const [event] = (await client.beta.sessions.events.list(id)).data as unknown[];
    expect(event).toMatchObject({
      type: "acme.noted",
      processed_at: expect.any(String),
      session_thread_id: "mine",
    });
  });

  it("shows what is forming to those who ask for it, and only that", async () => {
    const { id } = await newSession();
    const query = { event_deltas: ["agent.message" as const] };
    const stream = await client.beta.sessions.events.stream(id, query);
    await client.beta.sessions.events.send(id, { events: [say("say something")] });
    let forming = "";
    let said = "";
    for await (const event of stream) {
      if (event.type === "event_delta" && event.delta.content?.type === "text")
        forming += event.delta.content.text;
      if (forming === "Hello from the model.") shown.open();
      if (event.type === "agent.message") said = JSON.stringify(event.content);
      if (event.type === "session.status_idle") break;
    }
    expect(forming).toBe("Hello from the model.");
    expect(said).toContain(forming);
  });

  it("ends with session.deleted when the session is deleted", async () => {
    const { id } = await newSession();
    const stream = await client.beta.sessions.events.stream(id);
    await client.beta.sessions.delete(id);
    const types: string[] = [];
    for await (const { type } of stream) types.push(type);
    expect(types.at(-1)).toBe("session.deleted");
  });
});

describe("threads over HTTP", () => {
  it("are listed below their session with the primary one, have events of their own, and are archived", async () => {
    const agent = await client.beta.agents.create({
      name: "lead",
      model: "claude-test",
      tools: [TOOLSET],
      multiagent: { type: "coordinator", agents: [{ type: "self" }] },
    });
    const environment = await client.beta.environments.create({ name: `env ${agent.id}` });
    const session = await client.beta.sessions.create({
      agent: agent.id,
      environment_id: environment.id,
      initial_events: [say("make a thread")],
    });
    const contract = platform.client(SessionService);
    const WAITING = StopReason.WAITING_FOR_THREADS;
    await eventually(
      async () => (await contract.getSession({ sessionId: session.id })).session?.stopReason === WAITING,
    );
    // Who waits for a thread is running, also in lists.
    const listed = async (status: "idle" | "running") =>
      (await client.beta.sessions.list({ statuses: [status] })).data.some(({ id }) => id === session.id);
    expect([await listed("running"), await listed("idle")]).toEqual([true, false]);
    done.open();
    const path = `/v1/sessions/${session.id}/events/stream`;
    const frames = await untilIdle(await http(path, { headers: { "last-event-id": "0" } }));
    expect(frames.map(({ event }) => event)).toContain("session.thread_created");
    expect(frames.filter(({ event }) => event === "session.status_idle")).toHaveLength(1);
    expect(frames.at(-1)!.data).toContain('"end_turn"');
    const threads = (await client.beta.sessions.threads.list(session.id)).data;
    expect(threads).toMatchObject([
      { type: "session_thread", session_id: session.id, parent_thread_id: null, status: "idle" },
      {
        type: "session_thread",
        session_id: session.id,
        parent_thread_id: threads[0]!.id,
        agent: { name: "lead" },
      },
    ]);
    const paged: string[] = [];
    for await (const { id } of client.beta.sessions.threads.list(session.id, { limit: 1 })) paged.push(id);
    expect(paged).toEqual(threads.map(({ id }) => id));
    const idle = await client.beta.sessions.threads.list(session.id, { statuses: ["idle"], limit: 1 });
    expect(idle.data.map(({ id }) => id)).toEqual([threads[0]!.id]);
    const child = threads[1]!.id;
    const events = (await client.beta.sessions.threads.events.list(child, { session_id: session.id })).data;
    expect(JSON.stringify(events)).toContain("be the child");
    // In its own words, and under the ids by which the session tells it.
    const own = events.filter(({ type }) => /^session\.(thread_)?status_/.test(type));
    expect(own.map(({ type }) => type)).toEqual([
      "session.thread_status_running",
      "session.thread_status_idle",
    ]);
    for (const { id } of own) expect(frames.filter(({ data }) => data?.includes(`"${id}"`))).toHaveLength(1);
    expect(session.agent.multiagent).toMatchObject({
      type: "coordinator",
      agents: [{ type: "agent", id: agent.id, version: 1, name: "lead", tools: expect.any(Array) }],
    });
    const retrieved = await client.beta.sessions.threads.retrieve(child, { session_id: session.id });
    expect({ ...retrieved, stats: null }).toEqual({ ...threads[1], stats: null });
    const archived = await client.beta.sessions.threads.archive(child, { session_id: session.id });
    expect(archived.status).toBe("terminated");
    const other = client.beta.sessions.threads.retrieve(child, { session_id: (await newSession()).id });
    await expect(other).rejects.toMatchObject({ status: 404 });
  });
});

describe("a thread that asks", () => {
  it("has its session wait for the client, idle with what is to be answered, and run again afterwards", async () => {
    const asks = { name: "bash" as const, permission_policy: { type: "always_ask" as const } };
    const tools = [
      { ...TOOLSET, configs: [asks] },
      { type: "tendon_brain_toolset", names: ["thread_create", "thread_wait"] },
    ];
    const agent = await client.beta.agents.create({
      name: "careful",
      model: "claude-test",
      tools: tools as never,
      multiagent: { type: "coordinator", agents: [{ type: "self" }] },
    });
    const environment = await client.beta.environments.create({ name: `env ${agent.id}` });
    const { id } = await client.beta.sessions.create({ agent: agent.id, environment_id: environment.id });
    const stream = await client.beta.sessions.events.stream(id);
    await client.beta.sessions.events.send(id, { events: [say("make a thread that asks")] });
    const statuses: string[] = [];
    for await (const event of stream) {
      if (event.type === "session.status_running") statuses.push("running");
      if (event.type !== "session.status_idle") continue;
      statuses.push(event.stop_reason.type);
      if (event.stop_reason.type !== "requires_action") break;
      const asking = await client.beta.sessions.retrieve(id);
      expect(asking.status).toBe("idle");
      const events = event.stop_reason.event_ids.map((tool_use_id) => ({
        type: "user.tool_confirmation" as const,
        tool_use_id,
        result: "allow" as const,
      }));
      await client.beta.sessions.events.send(id, { events });
    }
    expect(statuses.slice(0, 3)).toEqual(["running", "requires_action", "running"]);
    expect(statuses.at(-1)).toBe("end_turn");
    const idle = (await client.beta.sessions.events.list(id, { types: ["session.status_idle"] })).data;
    expect(idle).toMatchObject([
      { stop_reason: { type: "requires_action" } },
      { stop_reason: { type: "end_turn" } },
    ]);
  });
});

it("says all that was said here as the official client declares it", async () => {
  expect(await sessionFaults(client)).toEqual([]);
});

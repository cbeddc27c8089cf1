import Anthropic from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { sessionFaults } from "../kit/declared-shapes.ts";
import { eventually } from "../kit/eventually.ts";
import {
  type FakeMessagesApi,
  gate,
  startFakeMessagesApi,
  text,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import type { Platform } from "../kit/platform.ts";
import { BAD_READS, BAD_WRITES } from "./fixtures/bad-requests.ts";

const TOOLSET = { type: "agent_toolset_20260401" as const };

let api: FakeMessagesApi;
let platform: Platform;
let client: Anthropic;
const shown = gate();
/** Until then a child works. */
const done = gate();

beforeAll(async () => {
  api = await startFakeMessagesApi({
    script: ({ messages }) => {
      const last = JSON.stringify(messages.at(-1));
      if (last.includes("make a thread"))
        return turn([
          toolUse("thread_create", {
            agent: "self",
            message: last.includes("that asks") ? "run it" : "be the child",
          }),
        ]);
      if (last.includes("works on it")) return turn([toolUse("thread_wait", {})]);
      if (last.includes("be the child")) return turn([text("Done.")], { before: { end: done.opened } });
      // Whoever wants to see text form has to see it before there is more.
      if (last.includes("say something"))
        return turn([text("Hello from the model.")], { before: { end: shown.opened } });
      if (!last.includes("run it")) return turn([text("Hello from the model.")]);
      return turn([toolUse("bash", { command: "echo made by $((40 + 2))" })]);
    },
  });
  platform = await startDatabasePlatform({
    env: { harness: { ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url } },
  });
  client = new Anthropic({ baseURL: platform.url, apiKey: platform.adminKey, maxRetries: 0 });
});

afterAll(async () => {
  shown.open();
  done.open();
  await platform?.stop();
  await api?.stop();
});

const say = (words: string) => ({
  type: "user.message" as const,
  content: [{ type: "text" as const, text: words }],
});

async function newSession() {
  const agent = await client.beta.agents.create({ name: "helper", model: "claude-test", tools: [TOOLSET] });
  const environment = await client.beta.environments.create({
    name: `env ${agent.id}`,
    config: { type: "cloud" },
  });
  return client.beta.sessions.create({ agent: agent.id, environment_id: environment.id });
}

describe("the official client", () => {
  it("sends a message, follows the stream to the idle event, and finds the same in the history", async () => {
    const session = await newSession();
    expect(session).toMatchObject({ type: "session", status: "idle", resources: [], vault_ids: [] });
    const stream = await client.beta.sessions.events.stream(session.id);
    const { data: sent } = await client.beta.sessions.events.send(session.id, { events: [say("run it")] });
    expect(sent).toMatchObject([{ type: "user.message", processed_at: null }]);
    const seen: { id: string; type: string }[] = [];
    for await (const event of stream) {
      seen.push(event as never);
      if (event.type === "session.status_idle") break;
    }
    const kinds = seen.map(({ type }) => type);
    expect(kinds.slice(-3)).toEqual(["session.thread_status_idle", "session.usage", "session.status_idle"]);
    expect(kinds.filter((kind) => kind === "user.message")).toHaveLength(2);
    const history: { id: string; type: string }[] = [];
    for await (const event of client.beta.sessions.events.list(session.id, { limit: 3 }))
      history.push(event as never);
    expect(history.map(({ id }) => id)).toEqual([...new Set(seen.map(({ id }) => id))]);
    expect(JSON.stringify(history)).toContain("made by 42");
    expect(history.every((event) => (event as { processed_at?: string }).processed_at)).toBe(true);
    // Read your writes: after the idle event neither is refused.
    expect((await client.beta.sessions.retrieve(session.id)).status).toBe("idle");
    expect((await client.beta.sessions.archive(session.id)).status).toBe("terminated");
    expect(await client.beta.sessions.delete(session.id)).toEqual({
      id: session.id,
      type: "session_deleted",
    });
    await expect(client.beta.sessions.retrieve(session.id)).rejects.toMatchObject({ status: 404 });
  });
});

/** Of a stream that was opened by plain HTTP: frames as they came. */
async function* framesOf(response: Response): AsyncGenerator<{ id?: string; event?: string; data?: string }> {
  let buffered = "";
  for await (const chunk of response.body!.pipeThrough(new TextDecoderStream())) {
    buffered += chunk;
    for (let end = buffered.indexOf("\n\n"); end >= 0; end = buffered.indexOf("\n\n")) {
      const lines = buffered.slice(0, end).split("\n");
      buffered = buffered.slice(end + 2);
      yield Object.fromEntries(lines.map((line) => /^(\w*): ?(.*)$/.exec(line)!.slice(1, 3)));
    }
  }
}

const http = (path: string, init: RequestInit = {}) =>
  fetch(`${platform.url}${path}`, {
    ...init,
    headers: { authorization: `Bearer ${platform.adminKey}`, ...init.headers },
  });

async function untilIdle(response: Response) {
  const frames: { id?: string; event?: string; data?: string }[] = [];
  for await (const frame of framesOf(response)) {
    if (frame.event !== undefined) frames.push(frame);
    if (frame.event === "session.status_idle") break;
  }
  return frames;
}

describe("a session over HTTP", () => {
  it("runs from the moment it is told something, and rests once its idle event is seen", async () => {
    const { agent } = await newSession();
    const environment = await client.beta.environments.create({ name: `told ${agent.id}` });
    const made = { agent: agent.id, environment_id: environment.id };
    const session = await client.beta.sessions.create({ ...made, initial_events: [say("one")] });
    expect(session.status).toBe("running");
    const path = `/v1/sessions/${session.id}/events/stream`;
    await untilIdle(await http(path, { headers: { "last-event-id": "0" } }));
    expect((await client.beta.sessions.retrieve(session.id)).status).toBe("idle");
  });

  it("is listed by its agent and the version of that", async () => {
    const { agent, environment_id, id } = await newSession();
    await client.beta.agents.update(agent.id, { name: "newer" });
    const newer = await client.beta.sessions.create({ agent: agent.id, environment_id });
    const idsOf = async (agent_version: number) => {
      const found = await client.beta.sessions.list({ agent_id: agent.id, agent_version });
      return found.data.map((session) => session.id);
    };
    expect([await idsOf(1), await idsOf(2), await idsOf(3)]).toEqual([[id], [newer.id], []]);
  });

  it("may have another model, system prompt and tools than its agent, for itself alone", async () => {
    const { agent } = await newSession();
    const environment = await client.beta.environments.create({ name: `other ${agent.id}` });
    const session = await client.beta.sessions.create({
      agent: {
        type: "agent_with_overrides",
        id: agent.id,
        model: { id: "claude-other" },
        system: "Only here.",
        tools: [],
      },
      environment_id: environment.id,
    });
    expect(session.agent).toMatchObject({
      id: agent.id,
      version: 1,
      name: "helper",
      model: { id: "claude-other" },
      system: "Only here.",
      tools: [],
    });
    expect((await client.beta.agents.retrieve(agent.id)).system).toBeNull();
    await client.beta.sessions.events.send(session.id, { events: [say("who are you")] });
    const path = `/v1/sessions/${session.id}/events/stream`;
    await untilIdle(await http(path, { headers: { "last-event-id": "0" } }));
    const asked = api.requests.findLast(({ json }) => json?.model === "claude-other");
    expect(JSON.stringify(asked?.json?.system)).toContain("Only here.");
    const bad = client.beta.sessions.create({
      agent: {
        type: "agent_with_overrides",
        id: agent.id,
        mcp_servers: [{ type: "url", name: "s", url: "https://example.com/mcp" }],
      },
      environment_id: environment.id,
    });
    await expect(bad).rejects.toMatchObject({ status: 400 });
  });
});

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
    const tools = [TOOLSET, { type: "tendon_brain_toolset", names: ["thread_create", "thread_wait"] }];
    const agent = await client.beta.agents.create({
      name: "lead",
      model: "claude-test",
      tools: tools as never,
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

describe("agents over HTTP", () => {
  it("have versions, each change one, an update that changes nothing none, and a lock that refuses with 409", async () => {
    const agent = await client.beta.agents.create({
      name: "a",
      model: { id: "claude-test", effort: "high" },
      description: "first",
      metadata: { one: "1", two: "2" },
    });
    const model = { id: "claude-test", effort: { type: "high" } };
    expect(agent).toMatchObject({ version: 1, model, tools: [] });
    const same = await client.beta.agents.update(agent.id, { description: "first" });
    expect(same.version).toBe(1);
    const changed = await client.beta.agents.update(agent.id, {
      version: 1,
      description: null,
      metadata: { one: null, three: "3" },
      tools: [{ ...TOOLSET, configs: [{ name: "bash", permission_policy: { type: "always_ask" } }] }],
    });
    expect(changed).toMatchObject({ version: 2, description: null, metadata: { two: "2", three: "3" } });
    const [toolset] = changed.tools;
    expect(toolset).toMatchObject({
      type: "agent_toolset_20260401",
      default_config: { enabled: true, permission_policy: { type: "always_allow" } },
    });
    expect((toolset as { configs: unknown[] }).configs[0]).toMatchObject({
      name: "bash",
      enabled: true,
      permission_policy: { type: "always_ask" },
    });
    const refused = client.beta.agents.update(agent.id, { version: 1, name: "b" });
    await expect(refused).rejects.toMatchObject({
      status: 409,
      error: { error: { type: "conflict_error" } },
    });
    expect(await client.beta.agents.retrieve(agent.id, { version: 1 })).toEqual(agent);
    const versions: number[] = [];
    for await (const { version } of client.beta.agents.versions.list(agent.id, { limit: 1 }))
      versions.push(version);
    expect(versions).toEqual([2, 1]);
    expect((await client.beta.agents.archive(agent.id)).archived_at).toMatch(/^2/);
    await expect(client.beta.agents.update(agent.id, { name: "b" })).rejects.toMatchObject({ status: 400 });
  });
});

describe("environments over HTTP", () => {
  it("are made, changed, listed, archived and deleted; their type stays", async () => {
    const made = await client.beta.environments.create({
      name: `limited ${Date.now()}`,
      config: { type: "cloud", networking: { type: "limited", allowed_hosts: ["example.com"] } },
    });
    expect(made.config).toMatchObject({
      type: "cloud",
      networking: { type: "limited", allowed_hosts: ["example.com"] },
    });
    const changed = await client.beta.environments.update(made.id, {
      description: "d",
      metadata: { a: "b" },
    });
    expect(changed).toMatchObject({ description: "d", metadata: { a: "b" }, config: made.config });
    const other = client.beta.environments.update(made.id, { config: { type: "self_hosted" } });
    await expect(other).rejects.toMatchObject({
      status: 400,
      error: { error: { details: { error_code: "invalid_config_type_change" } } },
    });
    const ids: string[] = [];
    for await (const { id } of client.beta.environments.list({ limit: 2 })) ids.push(id);
    expect(ids).toContain(made.id);
    expect((await client.beta.environments.archive(made.id)).archived_at).toMatch(/^2/);
    const gone = await client.beta.environments.delete(made.id);
    expect(gone).toEqual({ id: made.id, type: "environment_deleted" });
  });
});

describe("a bad request", () => {
  let sessionId: string;
  let events: number;
  const count = async () => (await client.beta.sessions.events.list(sessionId)).data.length;
  beforeAll(async () => {
    sessionId = (await newSession()).id;
    events = await count();
  });

  const TYPES: Readonly<Record<number, string>> = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
  };

  const expectRefusal = async (response: Response, status: number, message = /./) => {
    const body = (await response.json()) as { error: { message: string } };
    expect([response.status, body]).toEqual([
      status,
      expect.objectContaining({ type: "error", request_id: response.headers.get("request-id") }),
    ]);
    expect(body.error).toMatchObject({ type: TYPES[status], message: expect.stringMatching(message) });
    expect(body.error.message).not.toMatch(/spec\.|payload/);
  };

  it.each(BAD_WRITES)("is refused, and nothing is stored: %s", async (_name, path, body, status, message) => {
    const init = { method: "POST", body: JSON.stringify(body) };
    await expectRefusal(await http(path.replace("SESSION", sessionId), init), status, message);
    expect(await count()).toBe(events);
  });

  it.each(BAD_READS)("is refused: %s", async (_name, path, status, message) => {
    await expectRefusal(await http(path.replace("SESSION", sessionId)), status, message);
  });

  it("is refused: what is no JSON, another method, no key, another key, a body of more than 32 MiB", async () => {
    await expectRefusal(await http("/v1/agents", { method: "POST", body: "{" }), 400, /^body: is not JSON$/);
    await expectRefusal(await http("/v1/agents", { method: "PUT", body: "{}" }), 405);
    await expectRefusal(await fetch(`${platform.url}/v1/agents`), 401);
    await expectRefusal(await http("/v1/agents", { headers: { authorization: "Bearer other" } }), 401);
    const body = Buffer.alloc(32 * 1024 * 1024 + 1, " ");
    await expectRefusal(await http("/v1/agents", { method: "POST", body }), 413);
  });

  it("of all kinds leaves nothing behind", async () => {
    const names: string[] = [];
    for await (const { name } of client.beta.agents.list()) names.push(name);
    for await (const { name } of client.beta.environments.list()) names.push(name);
    for await (const { display_name } of client.beta.vaults.list()) names.push(display_name);
    for await (const { name } of client.beta.memoryStores.list()) names.push(name);
    expect(names.filter((name) => name.startsWith("bad"))).toEqual([]);
  });
});

describe("a request that is sent again", () => {
  const make = (headers: Record<string, string>, name = "again") =>
    http("/v1/agents", { method: "POST", body: JSON.stringify({ name, model: "m" }), headers }).then(
      async (response) => (await response.json()) as { id: string },
    );

  it("gets the first answer when the client says that it is a repeat, and makes another without that", async () => {
    const [first, again, other] = [
      await make({}),
      await make({ "x-stainless-retry-count": "1" }),
      await make({}),
    ];
    expect(again).toEqual(first);
    expect(other.id).not.toBe(first.id);
  });

  it("with the same Idempotency-Key makes one thing, and is refused with another content", async () => {
    const key = { "idempotency-key": `k-${Date.now()}` };
    expect((await make(key)).id).toBe((await make(key)).id);
    const message = "Idempotency-Key: was used before with other content; use a new one";
    expect(await make(key, "different")).toMatchObject({ error: { type: "conflict_error", message } });
  });
});

it("says all that was said here as the official client declares it", async () => {
  expect(await sessionFaults(client)).toEqual([]);
});

import Anthropic from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type FakeMessagesApi, startFakeMessagesApi, text, toolUse, turn } from "../kit/fake-messages-api.ts";
import { type Platform, startPlatform } from "../kit/platform.ts";

const TOOLSET = { type: "agent_toolset_20260401" as const };

let api: FakeMessagesApi;
let platform: Platform;
let client: Anthropic;

beforeAll(async () => {
  api = await startFakeMessagesApi({
    script: ({ messages }) => {
      const last = JSON.stringify(messages.at(-1));
      if (last.includes("make a thread"))
        return turn([toolUse("thread_create", { agent: "self", message: "be the child" })]);
      if (last.includes("works on it")) return turn([toolUse("thread_wait", {})]);
      if (!last.includes("run it")) return turn([text("Hello from the model.")]);
      return turn([toolUse("bash", { command: "echo made by $((40 + 2))" })]);
    },
  });
  platform = await startPlatform({
    env: { harness: { ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url } },
  });
  client = new Anthropic({ baseURL: platform.url, apiKey: platform.adminKey, maxRetries: 0 });
});

afterAll(async () => {
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
    expect(kinds.slice(-2)).toEqual(["session.usage", "session.status_idle"]);
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
    const child = threads[1]!.id;
    const events = (await client.beta.sessions.threads.events.list(child, { session_id: session.id })).data;
    expect(JSON.stringify(events)).toContain("be the child");
    const retrieved = await client.beta.sessions.threads.retrieve(child, { session_id: session.id });
    expect({ ...retrieved, stats: null }).toEqual({ ...threads[1], stats: null });
    const archived = await client.beta.sessions.threads.archive(child, { session_id: session.id });
    expect(archived.status).toBe("terminated");
    const other = client.beta.sessions.threads.retrieve(child, { session_id: (await newSession()).id });
    await expect(other).rejects.toMatchObject({ status: 404 });
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
    expect(agent).toMatchObject({ version: 1, model: { id: "claude-test", effort: "high" }, tools: [] });
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

const BAD: readonly [name: string, path: string, body: unknown, status: number][] = [
  ["an agent without a name", "/v1/agents", { model: "m" }, 400],
  ["an agent without a model", "/v1/agents", { name: "a" }, 400],
  ["a name that is a number", "/v1/agents", { name: 1, model: "m" }, 400],
  ["an unknown tool", "/v1/agents", { name: "a", model: "m", tools: [{ type: "other" }] }, 400],
  ["a field that nobody knows", "/v1/agents", { name: "a", model: "m", colour: "red" }, 400],
  ["metadata that is no text", "/v1/agents", { name: "a", model: "m", metadata: { a: 1 } }, 400],
  [
    "an MCP server that no toolset names",
    "/v1/agents",
    { name: "a", model: "m", mcp_servers: [{ type: "url", name: "s", url: "https://example.com" }] },
    400,
  ],
  [
    "a toolset of no MCP server",
    "/v1/agents",
    { name: "a", model: "m", tools: [{ type: "mcp_toolset", mcp_server_name: "s" }] },
    400,
  ],
  ["an environment without a type", "/v1/environments", { name: "e", config: {} }, 400],
  ["a session without an agent", "/v1/sessions", { environment_id: "env_1" }, 400],
  ["a session of an agent that is not there", "/v1/sessions", { agent: "agent_none" }, 404],
  ["a change of an agent that is not there", "/v1/agents/agent_none", { name: "a" }, 404],
  ["no events", "/v1/sessions/SESSION/events", { events: [] }, 400],
  ["an empty text", "/v1/sessions/SESSION/events", { events: [say("")] }, 400],
  ["an event of the brain's", "/v1/sessions/SESSION/events", { events: [{ type: "agent.message" }] }, 400],
  [
    "a deny_message with allow",
    "/v1/sessions/SESSION/events",
    { events: [{ type: "user.tool_confirmation", tool_use_id: "x", result: "allow", deny_message: "n" }] },
    400,
  ],
  [
    "a system message alone",
    "/v1/sessions/SESSION/events",
    { events: [{ type: "system.message", content: [{ type: "text", text: "x" }] }] },
    400,
  ],
  [
    "one good and one bad event",
    "/v1/sessions/SESSION/events",
    { events: [say("good"), { type: "user.message", content: [] }] },
    400,
  ],
  ["vaults of a session that exists", "/v1/sessions/SESSION", { vault_ids: [] }, 400],
  ["a list as body", "/v1/agents", [], 400],
];

const BAD_READS: readonly [name: string, path: string, status: number][] = [
  ["a limit of 0", "/v1/agents?limit=0", 400],
  ["a limit that is no number", "/v1/sessions?limit=x", 400],
  ["a cursor that is none", "/v1/agents?page=garbage", 400],
  ["an unknown status", "/v1/sessions?statuses%5B%5D=sleeping", 400],
  ["an unknown delta", "/v1/sessions/SESSION/events/stream?event_deltas%5B%5D=user.message", 400],
  ["a time that is none", "/v1/agents?created_at%5Bgte%5D=yesterday", 400],
  ["events of another order's cursor", "/v1/sessions/SESSION/events?order=desc&page=YTE", 400],
  ["an unknown route", "/v1/nothing", 404],
  ["a session that is not there", "/v1/sessions/sesn_none/events", 404],
];

describe("a bad request", () => {
  let sessionId: string;
  let events: number;
  const count = async () => (await client.beta.sessions.events.list(sessionId)).data.length;
  beforeAll(async () => {
    sessionId = (await newSession()).id;
    events = await count();
  });

  const expectRefusal = async (response: Response, status: number) => {
    const body = (await response.json()) as { error: { message: string } };
    expect([response.status, body]).toEqual([
      status,
      expect.objectContaining({ type: "error", request_id: response.headers.get("request-id") }),
    ]);
    expect(body.error).toMatchObject({
      type: expect.stringMatching(/_error$/),
      message: expect.stringMatching(/./),
    });
    expect(body.error.message).not.toMatch(/spec\.|payload/);
  };

  it.each(BAD)("is refused, and nothing is stored: %s", async (_name, path, body, status) => {
    const init = { method: "POST", body: JSON.stringify(body) };
    await expectRefusal(await http(path.replace("SESSION", sessionId), init), status);
    expect(await count()).toBe(events);
  });

  it.each(BAD_READS)("is refused: %s", async (_name, path, status) => {
    await expectRefusal(await http(path.replace("SESSION", sessionId)), status);
  });

  it("is refused: what is no JSON, another method, no key, another key, a body of more than 32 MiB", async () => {
    await expectRefusal(await http("/v1/agents", { method: "POST", body: "{" }), 400);
    expect((await http("/v1/agents", { method: "PUT", body: "{}" })).status).toBe(405);
    await expectRefusal(await fetch(`${platform.url}/v1/agents`), 401);
    await expectRefusal(await http("/v1/agents", { headers: { authorization: "Bearer other" } }), 401);
    const body = Buffer.alloc(32 * 1024 * 1024 + 1, " ");
    await expectRefusal(await http("/v1/agents", { method: "POST", body }), 413);
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
    expect(await make(key, "different")).toMatchObject({ error: { type: "conflict_error" } });
  });
});

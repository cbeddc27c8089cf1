/** Sessions, and what they are made of, over HTTP: the official client and plain requests. */
import type Anthropic from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { sessionFaults } from "../kit/declared-shapes.ts";
import { text, toolUse, turn } from "../kit/fake-messages-api.ts";
import { HttpRig, say, TOOLSET, untilIdle } from "../kit/http-rig.ts";
import type { Platform } from "../kit/platform.ts";
import { BAD_READS, BAD_WRITES } from "./fixtures/bad-requests.ts";

let rig: HttpRig;
let platform: Platform;
let client: Anthropic;

beforeAll(async () => {
  rig = await HttpRig.start(({ messages }) => {
    const last = JSON.stringify(messages.at(-1));
    if (!last.includes("run it")) return turn([text("Hello from the model.")]);
    return turn([toolUse("bash", { command: "echo made by $((40 + 2))" })]);
  });
  ({ platform, client } = rig);
});

afterAll(async () => {
  await rig?.stop();
});

const newSession = () => rig.newSession();
const http = (path: string, init?: RequestInit) => rig.http(path, init);

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
    const asked = rig.api.requests.findLast(({ json }) => json?.model === "claude-other");
    expect(JSON.stringify(asked?.json?.system)).toContain("Only here.");
    const without = client.beta.sessions.create({
      agent: { type: "agent_with_overrides", id: agent.id, model: null as never },
      environment_id: environment.id,
    });
    const details = { error_code: "agent_model_required", field: "agent.model" };
    await expect(without).rejects.toMatchObject({ status: 400, error: { error: { details } } });
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

  it("with the same Idempotency-Key says its events once, and is refused with others", async () => {
    const { id } = await newSession();
    const headers = { "idempotency-key": `say-${id}` };
    const send = async (...texts: string[]) => {
      const body = JSON.stringify({ events: texts.map((text) => say(text)) });
      const response = await http(`/v1/sessions/${id}/events`, { method: "POST", body, headers });
      return (await response.json()) as { data: { id: string }[]; error?: { message: string } };
    };
    const ids = async (...texts: string[]) => (await send(...texts)).data.map((event) => event.id);
    const first = await ids("one", "two");
    expect(first).toHaveLength(2);
    expect(await ids("one", "two")).toEqual(first);
    const message = "Idempotency-Key: was used before with other content; use a new one";
    for (const other of [["one"], ["one", "other"], ["one", "two", "three"], ["other", "two"]])
      expect(await send(...other)).toMatchObject({ error: { type: "conflict_error", message } });
    const { data } = await client.beta.sessions.events.list(id, { types: ["user.message"] });
    expect(data.map((event) => event.id)).toEqual(first);
  });
});

it("says all that was said here as the official client declares it", async () => {
  expect(await sessionFaults(client)).toEqual([]);
});

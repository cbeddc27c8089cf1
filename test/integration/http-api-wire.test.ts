/** What requests and answers of the HTTP API are to the letter: fields, defaults, filters, cursors, and the words of refusals. */
import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { text } from "node:stream/consumers";
import Anthropic from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "../../kit/ids.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { HarnessService } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { ScriptedHarness } from "../kit/scripted-harness.ts";
import { startServer, type TestServer } from "../kit/server.ts";
import { REFUSED } from "./fixtures/refused-fields.ts";

const TOOLSET = { type: "agent_toolset_20260401" as const };

let database: TestDatabase;
let server: TestServer;
let client: Anthropic;
let environment: string;

const clientOf = (apiKey: string) => new Anthropic({ baseURL: server.url, apiKey, maxRetries: 0 });

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  client = clientOf(server.adminKey);
  environment = (await client.beta.environments.create({ name: "e" })).id;
});

afterAll(async () => {
  await server?.stop();
  await database?.drop();
});

const http = (path: string, init: RequestInit = {}) =>
  server.fetch(path, { ...init, headers: { authorization: `Bearer ${server.adminKey}`, ...init.headers } });

const post = (path: string, body: unknown) => http(path, { method: "POST", body: JSON.stringify(body) });

const newAgent = (more: Partial<Anthropic.Beta.AgentCreateParams> = {}) =>
  client.beta.agents.create({ name: "a", model: "m", ...more });

describe("an agent over HTTP", () => {
  it("shows its effort as an object, keeps it for as long as the model stays, and loses it with null", async () => {
    const { agents } = client.beta;
    const { id, model } = await newAgent({ model: { id: "m", effort: "high" } });
    expect(model).toEqual({ id: "m", speed: "standard", effort: { type: "high" } });
    expect((await agents.update(id, { model: "m", name: "b" })).model.effort).toEqual({ type: "high" });
    expect((await agents.update(id, { model })).version).toBe(2);
    expect((await agents.update(id, { model: "other" })).model).not.toHaveProperty("effort");
    const lower = await agents.update(id, { model: { id: "other", effort: { type: "low" } } });
    expect(lower.model.effort).toEqual({ type: "low" });
    const none = await agents.update(id, { model: { id: "other", effort: null } });
    expect(none.model).not.toHaveProperty("effort");
  });

  it("shows of web_fetch that its sources are not limited, whether it is there or not, and takes what it shows", async () => {
    const { id, tools } = await newAgent({ tools: [TOOLSET] });
    const [toolset] = tools as unknown as [{ configs: { name: string }[] }];
    expect(toolset.configs.find(({ name }) => name === "web_fetch")).toMatchObject({ url_sources: null });
    expect((await client.beta.agents.update(id, { tools: tools as never })).version).toBe(1);
  });

  it("has up to 256 tools", async () => {
    const tool = (at: number) => ({
      type: "custom" as const,
      name: `t${at}`,
      description: "d",
      input_schema: { type: "object" as const },
    });
    const all = Array.from({ length: 256 }, (_, at) => tool(at));
    expect((await newAgent({ tools: all })).tools).toHaveLength(256);
    await expect(newAgent({ tools: [...all, tool(256)] })).rejects.toMatchObject({ status: 400 });
  });

  it("names those that it may call with the versions that they had, and itself; its sessions show them whole", async () => {
    const { agents } = client.beta;
    const member = await newAgent({ name: "member", system: "first" });
    const roster = [member.id, { type: "self" as const }];
    const lead = await newAgent({ name: "lead", multiagent: { type: "coordinator", agents: roster } });
    const reference = (id: string, version: number) => ({ type: "agent", id, version });
    const shown = { type: "coordinator", agents: [reference(member.id, 1), reference(lead.id, 1)] };
    expect(lead.multiagent).toEqual(shown);
    await agents.update(member.id, { system: "second" });
    expect((await agents.retrieve(lead.id)).multiagent).toEqual(shown);
    expect(await agents.update(lead.id, { multiagent: shown as never })).toEqual(lead);
    const renamed = await agents.update(lead.id, { name: "leader" });
    expect(renamed.multiagent).toEqual({
      ...shown,
      agents: [reference(member.id, 1), reference(lead.id, 2)],
    });
    const { id, agent } = await client.beta.sessions.create({ agent: lead.id, environment_id: environment });
    const { multiagent: _, metadata: _m, created_at: _c, updated_at: _u, archived_at: _a, ...whole } = member;
    expect(agent.multiagent).toMatchObject({
      type: "coordinator",
      agents: [whole, { type: "agent", id: lead.id, version: 2, name: "leader", tools: [] }],
    });
    expect((await client.beta.sessions.retrieve(id)).agent).toEqual(agent);
    const { data } = await client.beta.sessions.list({ agent_id: lead.id });
    expect(data.map((session) => session.agent)).toEqual([agent]);
    const repinned = await agents.update(lead.id, { multiagent: { type: "coordinator", agents: roster } });
    expect(repinned.multiagent).toMatchObject({ agents: [reference(member.id, 2), reference(lead.id, 3)] });
  });

  it("whose members were left open elsewhere shows the versions that they have now", async () => {
    const member = await newAgent({ name: "open" });
    const { agent } = await server.client(AgentService).createAgent({
      spec: {
        name: "lead",
        multiagent: { agents: [{ kind: { case: "agent", value: { id: member.id } } }] },
      },
    });
    await client.beta.agents.update(member.id, { name: "opened" });
    const shown = { agents: [{ type: "agent", id: member.id, version: 2 }] };
    expect((await client.beta.agents.retrieve(agent!.id)).multiagent).toMatchObject(shown);
  });

  it("is listed by the time at which it was made, a page at a time", async () => {
    const one = await newAgent({ name: "one" });
    // Times are given in milliseconds.
    await eventually(() => Date.now() > Date.parse(one.created_at), { everyMs: 1 });
    const two = await newAgent({ name: "two" });
    const names = async (query: Anthropic.Beta.AgentListParams) =>
      (await client.beta.agents.list(query)).data.map(({ id }) => id);
    expect(await names({ "created_at[lte]": one.created_at, limit: 1 })).toEqual([one.id]);
    expect(await names({ "created_at[gte]": one.created_at })).toEqual([two.id, one.id]);
  });
});

describe("a body over HTTP", () => {
  it("that says itself that it is far too long is refused before it comes", async () => {
    const headers = { authorization: `Bearer ${server.adminKey}`, "content-length": "99999999999" };
    const sending = request(`${server.url}/v1/agents`, { method: "POST", headers });
    sending.flushHeaders();
    const [response] = (await once(sending, "response")) as [IncomingMessage];
    expect(response.statusCode).toBe(413);
    expect(JSON.parse(await text(response))).toMatchObject({
      type: "error",
      error: { details: { reason: "MESSAGE_TOO_LARGE" } },
    });
    sending.destroy();
  });
});

describe("sessions over HTTP", () => {
  const newSession = (agent: string | { type: "agent"; id: string; version: number }) =>
    client.beta.sessions.create({ agent, environment_id: environment });

  it("are found by the version of their agent", async () => {
    const { id } = await newAgent();
    await client.beta.agents.update(id, { name: "b" });
    const [first, second] = [await newSession({ type: "agent", id, version: 1 }), await newSession(id)];
    const of = async (agent_version?: number) =>
      (await client.beta.sessions.list({ agent_id: id, ...(agent_version && { agent_version }) })).data.map(
        (session) => session.id,
      );
    expect(await of()).toEqual([second.id, first.id]);
    expect(await of(1)).toEqual([first.id]);
    expect(await of(2)).toEqual([second.id]);
  });

  it("keep their agent from the moment at which they run, also before a brain has come to them", async () => {
    const { id } = await newAgent();
    const { sessions } = client.beta;
    const said = { type: "user.message" as const, content: [{ type: "text" as const, text: "go" }] };
    const given = { agent: id, environment_id: environment, initial_events: [said] };
    const { id: session, status } = await sessions.create(given);
    expect(status).toBe("running");
    await expect(sessions.update(session, { agent: { tools: [TOOLSET] } })).rejects.toMatchObject({
      status: 400,
      error: { error: { details: { reason: "SESSION_RUNNING" } } },
    });
    expect((await sessions.update(session, { title: "t", agent: { tools: [] } })).title).toBe("t");
  });

  it("that wait for an answer run from the moment at which they have it, also before a brain has come to them", async () => {
    const { id } = await newAgent();
    const { sessions } = client.beta;
    const key = await server.localKey("harness");
    const brain = new ScriptedHarness(server.client(HarnessService, key));
    const content = [{ type: "text" as const, text: "go" }];
    const message = { type: "user.message" as const, content };
    const { id: sessionId } = await sessions.create({
      agent: id,
      environment_id: environment,
      initial_events: [message],
    });
    const assignment = await brain.assigned(sessionId);
    const call = { id: newId("event"), type: "agent.custom_tool_use", payload: '{"name":"ask","input":{}}' };
    const stop_reason = { type: "requires_action", event_ids: [call.id] };
    const idle = { type: "session.status_idle", payload: JSON.stringify({ stop_reason }) };
    const { lease } = assignment;
    await server.client(SessionService, key).emitEvents({ sessionId, events: [call, idle], lease });
    brain.release(assignment);
    await brain.leave();
    const status = async () => (await sessions.retrieve(sessionId)).status;
    await sessions.events.send(sessionId, { events: [message] });
    expect(await status()).toBe("idle");
    const answer = { type: "user.custom_tool_result" as const, custom_tool_use_id: call.id, content };
    await sessions.events.send(sessionId, { events: [answer] });
    expect(await status()).toBe("running");
    await expect(sessions.update(sessionId, { agent: { tools: [TOOLSET] } })).rejects.toMatchObject({
      error: { error: { details: { reason: "SESSION_RUNNING" } } },
    });
  });

  it("have a budget that clients can read, or none, and limits of our own apart", async () => {
    const { id } = await newAgent();
    const { sessions } = client.beta;
    const limits = { type: "limit", max_turns: 3 };
    const given = { agent: id, environment_id: environment, budget: limits as never };
    const made = await sessions.create(given);
    expect(made).toMatchObject({ budget: null, tendon_budget: { max_turns: 3 } });
    const max_list_cost = { amount: "100", currency: "USD" as const };
    const both = await sessions.update(made.id, { budget: { ...limits, type: "limit", max_list_cost } });
    expect(both.budget).toEqual({ ...limits, max_list_cost });
    expect(both).not.toHaveProperty("tendon_budget");
  });

  it("are turned over with other filters, but in no other order and not to where their page does not begin", async () => {
    const { id } = await newAgent();
    const made = [await newSession(id), await newSession(id), await newSession(id)];
    const { next_page } = await client.beta.sessions.list({ agent_id: id, limit: 1 });
    const turned = (more: Anthropic.Beta.SessionListParams) =>
      client.beta.sessions.list({ agent_id: id, page: next_page!, ...more });
    const rest = [made[1]!.id, made[0]!.id];
    const filters = { include_archived: true, statuses: ["idle" as const], limit: 50 };
    expect((await turned(filters)).data.map((session) => session.id)).toEqual(rest);
    const refused = (problem: RegExp) => ({
      status: 400,
      error: { error: { type: "invalid_request_error", message: expect.stringMatching(problem) } },
    });
    await expect(turned({ order: "asc" })).rejects.toMatchObject(refused(/^page: /));
    const past = { "created_at[lt]": made[0]!.created_at };
    await expect(turned(past)).rejects.toMatchObject(refused(/^created_at\[lte\]: /));
  });
});

describe("memory over HTTP", () => {
  it("shows texts when they are asked for, and keeps what is null in a change", async () => {
    const { memories } = client.beta.memoryStores;
    const store = await client.beta.memoryStores.create({ name: "n", description: "d" });
    const of = { memory_store_id: store.id };
    const made = await memories.create(store.id, { path: "/a.md", content: "first" });
    expect(made).toMatchObject({ content: null, content_size_bytes: 5 });
    expect((await memories.retrieve(made.id, of)).content).toBe("first");
    const moved = await memories.update(made.id, { ...of, path: "/b.md", content: null, view: "full" });
    expect(moved).toMatchObject({ path: "/b.md", content: "first" });
    const said = await memories.update(made.id, { ...of, content: "second", path: null });
    expect(said).toMatchObject({ path: "/b.md", content: null, content_size_bytes: 6 });
    const kept = await client.beta.memoryStores.update(store.id, { name: null, description: null });
    expect(kept).toMatchObject({ name: "n", description: "" });
    const { data } = await client.beta.memoryStores.list({ "created_at[lte]": store.created_at });
    expect(data.map(({ id }) => id)).toEqual([store.id]);
    const versions = client.beta.memoryStores.memoryVersions;
    const { data: old } = await versions.list(store.id, { "created_at[lte]": made.created_at });
    expect(old.map(({ operation }) => operation)).toEqual(["created"]);
    expect((await versions.list(store.id, { service_account_id: "svac_1" })).data).toEqual([]);
  });

  it("says in an error which memory is in the way", async () => {
    const store = await client.beta.memoryStores.create({ name: "n" });
    const { id } = await client.beta.memoryStores.memories.create(store.id, { path: "/a/b", content: "" });
    const taken = client.beta.memoryStores.memories.create(store.id, { path: "/a", content: "" });
    await expect(taken).rejects.toMatchObject({
      status: 409,
      error: {
        error: {
          type: "memory_path_conflict_error",
          conflicting_memory_id: id,
          conflicting_path: "/a/b",
        },
      },
    });
  });
});

describe("files over HTTP", () => {
  const upload = async (part: string) => {
    const body = `--b\r\ncontent-disposition: form-data; ${part}\r\n\r\nx\r\n--b--\r\n`;
    const headers = { "content-type": "multipart/form-data; boundary=b" };
    return (await http("/v1/files", { method: "POST", headers, body })).json() as Promise<{
      id: string;
      filename: string;
    }>;
  };

  it("keep the last part of their name, and are unnamed without one", async () => {
    const named = await upload('name="file"; filename="some/where/data.csv"');
    expect(named.filename).toBe("data.csv");
    const typed = await upload('name="file"; filename=""\r\ncontent-type: text/plain');
    expect(typed.filename).toBe("unnamed.txt");
    expect((await upload('name="file"')).filename).toMatch(/^unnamed/);
    const ids = [named.id, "file_none", named.id];
    expect((await client.beta.files.list({ ids })).data.map(({ id }) => id)).toEqual([named.id]);
    const scoped = await client.beta.files.list({ ids, scope_id: "sesn_none" });
    expect([scoped.data, scoped.next_page]).toEqual([[], null]);
  });
});

describe("a workspace that a request names", () => {
  const NAME = "anthropic-workspace-id";

  it("is that of an admin of the whole installation for this request, and of no other key", async () => {
    const admin = server.client(AdminService);
    const workspaceId = (await admin.createWorkspace({ name: "chosen" })).workspace!.id;
    const { secret } = await admin.createApiKey({ name: "k", role: Role.CLIENT, workspaceId });
    const vault = await client.beta.vaults.create({ display_name: "v", workspace_id: workspaceId });
    expect(vault._workspace_id).toBe(workspaceId);
    const own = await clientOf(secret).beta.vaults.list();
    expect(own.data.map(({ id }) => id)).toEqual([vault.id]);
    const same = await clientOf(secret).beta.vaults.retrieve(vault.id, { workspace_id: workspaceId });
    expect(same._workspace_id).toBe(workspaceId);
    const other = { workspace_id: "wrkspc_other" };
    await expect(clientOf(secret).beta.vaults.list(other)).rejects.toMatchObject({ status: 403 });
    await expect(client.beta.vaults.list(other)).rejects.toMatchObject({ status: 404 });
    const plain = await http("/v1/vaults");
    expect(plain.headers.get(NAME)).toBeNull();
  });
});

describe("a refusal", () => {
  it.each(REFUSED)("speaks of what was sent: %s", async (_name, path, body, field, problem) => {
    const response = await post(path, body);
    const { error } = (await response.json()) as {
      error: { message: string; details: { field?: string } };
    };
    expect([response.status, error.details.field]).toEqual([400, field]);
    expect(error.message).toMatch(problem);
    expect(error.message.startsWith(`${field}: `)).toBe(true);
    expect(error.message).not.toMatch(/spec\.|payload|[a-z][A-Z]|\b(?:page_token|use\.|secret\.plain)/);
  });

  it("of an environment's pairs, and of another type, has the code that clients know", async () => {
    const pairs = Object.fromEntries(Array.from({ length: 17 }, (_, at) => [`k${at}`, "v"]));
    const many = client.beta.environments.create({ name: "many", metadata: pairs });
    await expect(many).rejects.toMatchObject({ status: 400, errorCode: "invalid_metadata" });
    const made = await client.beta.environments.create({ name: "archived" });
    await client.beta.environments.archive(made.id);
    const late = client.beta.environments.update(made.id, { name: "late" });
    await expect(late).rejects.toMatchObject({ status: 400, errorCode: "environment_archived" });
    const none = client.beta.environments.retrieve("env_none");
    await expect(none).rejects.toMatchObject({ status: 404, errorCode: "environment_not_found" });
    const kept = await client.beta.environments.update(environment, { name: null, description: "d" });
    expect(kept).toMatchObject({ name: "e", description: "d" });
  });

  it("of what would be more than there may be is none that clients repeat", async () => {
    const limits = { memoryStores: 1 };
    const { workspace } = await server.client(AdminService).createWorkspace({ name: "small", limits });
    const one = { name: "n", workspace_id: workspace!.id };
    await client.beta.memoryStores.create(one);
    const more = client.beta.memoryStores.create(one);
    await expect(more).rejects.toMatchObject({
      status: 400,
      error: { error: { type: "invalid_request_error", details: { reason: "LIMIT_EXCEEDED" } } },
    });
  });

  it("of a cursor names the query", async () => {
    const response = await http("/v1/vaults?page=garbage");
    expect([response.status, await response.json()]).toMatchObject([
      400,
      { error: { message: expect.stringMatching(/^page: /), details: { field: "page" } } },
    ]);
  });
});

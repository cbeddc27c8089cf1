import { afterAll, beforeAll, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { NetworkMode } from "../../proto/gen/tendon/v1/environment_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { failure } from "../kit/failure.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startServer, type TestServer } from "../kit/server.ts";

let database: TestDatabase;
let server: TestServer;
let agents: Client<typeof AgentService>;
let environments: Client<typeof EnvironmentService>;
let strangersKey: string;

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  const key = await tenantKey("home");
  agents = server.client(AgentService, key);
  environments = server.client(EnvironmentService, key);
  strangersKey = await tenantKey("elsewhere");
});
afterAll(async () => {
  await server?.stop();
  await database?.drop();
});

async function tenantKey(name: string): Promise<string> {
  const admin = server.client(AdminService);
  const { workspace } = await admin.createWorkspace({ name });
  return (await admin.createApiKey({ name, role: Role.CLIENT, workspaceId: workspace!.id })).secret;
}

const fullSpec = {
  name: "reviewer",
  description: "reads code",
  model: { id: "some-model", maxOutputTokens: 4_000, thinkingBudgetTokens: 1_024, effort: "high" },
  system: "Be kind.\n\u0001\u{1f600}",
  tools: [
    {
      kind: {
        case: "handToolset" as const,
        value: { tools: { bash: { permission: Permission.ALWAYS_ASK }, read: { disabled: true } } },
      },
    },
    {
      kind: {
        case: "custom" as const,
        value: { name: "ask_boss", description: "asks", inputSchema: '{ "type": "object",  "x": 1e3 }' },
      },
    },
    { kind: { case: "mcpToolset" as const, value: { serverName: "linear" } } },
  ],
  mcpServers: [{ name: "linear", url: "https://mcp.example.com/sse" }],
  loopSettings: '{"b": 1, "a": 2}',
  metadata: { team: "core" },
};

test("an agent comes back as it was made, its JSON texts byte for byte", async () => {
  const { agent } = await agents.createAgent({ spec: fullSpec });
  expect(agent!.id).toMatch(/^agent_/);
  expect(agent!.version).toBe(1);
  const read = await agents.getAgent({ agentId: agent!.id });
  expect(read.agent).toEqual(agent);
  expect(read.agent!.spec).toMatchObject(fullSpec);
});

test("each change makes the next version, an update that changes nothing makes none, old versions stay", async () => {
  const { agent } = await agents.createAgent({ spec: { name: "one", metadata: { a: "1", b: "2" } } });
  const agentId = agent!.id;
  const same = await agents.updateAgent({ agentId, spec: { name: "one", metadata: { b: "2", a: "1" } } });
  expect(same.agent!.version).toBe(1);
  const second = await agents.updateAgent({ agentId, spec: { name: "two" }, expectedVersion: 1 });
  expect(second.agent).toMatchObject({ version: 2, spec: { name: "two", metadata: {} } });
  const late = await failure(agents.updateAgent({ agentId, spec: { name: "three" }, expectedVersion: 1 }));
  expect(late).toMatchObject({ reason: "VERSION_MISMATCH", metadata: { version: "2" } });
  expect((await agents.getAgent({ agentId, version: 1 })).agent!.spec!.name).toBe("one");
  expect((await failure(agents.getAgent({ agentId, version: 3 }))).reason).toBe("NOT_FOUND");

  const page = await agents.listAgentVersions({ agentId, pageSize: 1 });
  expect(page.agents.map(({ version }) => version)).toEqual([2]);
  const rest = await agents.listAgentVersions({ agentId, pageToken: page.nextPageToken });
  expect(rest.agents.map(({ version }) => version)).toEqual([1]);
  expect(rest.nextPageToken).toBe("");
});

test("of many updates that expect the same version exactly one wins", async () => {
  const { agent } = await agents.createAgent({ spec: { name: "contested" } });
  const update = (i: number) =>
    agents.updateAgent({ agentId: agent!.id, spec: { name: `by ${i}` }, expectedVersion: 1 });
  const outcomes = await Promise.allSettled(Array.from({ length: 8 }, (_, i) => update(i)));
  expect(outcomes.filter(({ status }) => status === "fulfilled")).toHaveLength(1);
  const lost = outcomes.flatMap((outcome) => (outcome.status === "rejected" ? [outcome.reason.reason] : []));
  expect(new Set(lost)).toEqual(new Set(["VERSION_MISMATCH"]));
});

test("an archived agent stays readable, takes no change and leaves the list", async () => {
  const { agent } = await agents.createAgent({ spec: { name: "done" } });
  const agentId = agent!.id;
  const once = await agents.archiveAgent({ agentId });
  const twice = await agents.archiveAgent({ agentId });
  expect(twice.agent!.archivedAt).toEqual(once.agent!.archivedAt);
  expect((await failure(agents.updateAgent({ agentId, spec: { name: "x" } }))).reason).toBe("AGENT_ARCHIVED");
  expect((await agents.getAgent({ agentId })).agent!.archivedAt).toBeDefined();
  const listed = await agents.listAgents({ pageSize: 100 });
  expect(listed.agents.some(({ id }) => id === agentId)).toBe(false);
  const all = await agents.listAgents({ pageSize: 100, includeArchived: true });
  expect(all.agents.some(({ id }) => id === agentId)).toBe(true);
});

test("a repeated creation returns the first agent, whatever order its maps come in; other content is refused", async () => {
  const spec = { name: "once", metadata: { a: "1", b: "2" } };
  const request = { requestId: "agent-once", spec };
  const [one, two] = await Promise.all([agents.createAgent(request), agents.createAgent(request)]);
  expect(two.agent!.id).toBe(one.agent!.id);
  const turned = { ...request, spec: { name: "once", metadata: { b: "2", a: "1" } } };
  expect((await agents.createAgent(turned)).agent!.id).toBe(one.agent!.id);
  const other = await failure(agents.createAgent({ ...request, spec: { name: "twice" } }));
  expect(other.reason).toBe("REQUEST_ID_REUSED");
  const theirs = await server
    .client(AgentService, strangersKey)
    .createAgent({ ...request, spec: { name: "twice" } });
  expect(theirs.agent!.id).not.toBe(one.agent!.id);
});

test("another workspace's agents and environments are not found", async () => {
  const { agent } = await agents.createAgent({ spec: { name: "private" } });
  const { environment } = await environments.createEnvironment({ spec: { name: "private" } });
  const agentId = agent!.id;
  const environmentId = environment!.id;
  const theirAgents = server.client(AgentService, strangersKey);
  const theirEnvironments = server.client(EnvironmentService, strangersKey);
  const calls = [
    theirAgents.getAgent({ agentId }),
    theirAgents.updateAgent({ agentId, spec: { name: "x" } }),
    theirAgents.archiveAgent({ agentId }),
    theirAgents.listAgentVersions({ agentId }),
    theirEnvironments.getEnvironment({ environmentId }),
    theirEnvironments.updateEnvironment({ environmentId, spec: { name: "x" } }),
    theirEnvironments.archiveEnvironment({ environmentId }),
    theirEnvironments.deleteEnvironment({ environmentId }),
    agents.getAgent({ agentId: "agent_nobody" }),
    environments.getEnvironment({ environmentId: "env_nobody" }),
  ];
  const failures = await Promise.all(calls.map(failure));
  expect(new Set(failures.map(({ reason }) => reason))).toEqual(new Set(["NOT_FOUND"]));
  expect((await theirAgents.listAgents({})).agents.every(({ spec }) => spec!.name === "twice")).toBe(true);
});

test("invalid fields are refused with their path, by the proto's rules and by ours", async () => {
  const field = async (spec: object) => (await failure(agents.createAgent({ spec }))).metadata.field;
  expect(await field({})).toBe("spec.name");
  expect(await field({ name: "x", metadata: { k: "v".repeat(513) } })).toBe('spec.metadata["k"]');
  expect(await field({ name: "x", tools: [{ kind: { case: undefined } }] })).toBe("spec.tools[0].kind");
  expect(await field({ name: "x", loopSettings: "[]" })).toBe("spec.loop_settings");
  const unnamed = await failure(agents.createAgent({}));
  expect(unnamed).toMatchObject({ reason: "INVALID_FIELD", metadata: { field: "spec" } });
  const host = {
    name: "x",
    network: { mode: NetworkMode.LIMITED, allowedHosts: ["ok.example", "no spaces"] },
  };
  const refused = await failure(environments.createEnvironment({ spec: host }));
  expect(refused.metadata.field).toBe("spec.network.allowed_hosts[1]");
});

test("an environment's name is unique among the workspace's live ones", async () => {
  const { environment } = await environments.createEnvironment({ spec: { name: "unique" } });
  const environmentId = environment!.id;
  const clash = await failure(environments.createEnvironment({ spec: { name: "unique" } }));
  expect(clash).toMatchObject({ reason: "ALREADY_EXISTS", metadata: { field: "spec.name" } });
  const { environment: other } = await environments.createEnvironment({ spec: { name: "other" } });
  const rename = { environmentId: other!.id, spec: { name: "unique" } };
  expect((await failure(environments.updateEnvironment(rename))).reason).toBe("ALREADY_EXISTS");
  await environments.archiveEnvironment({ environmentId });
  expect((await environments.updateEnvironment(rename)).environment!.spec!.name).toBe("unique");
  const late = { environmentId, spec: { name: "late" } };
  expect((await failure(environments.updateEnvironment(late))).reason).toBe("ENVIRONMENT_ARCHIVED");
});

test("a workspace has one default environment at most, however many are made so at once", async () => {
  const made = await Promise.all(
    Array.from({ length: 5 }, (_, i) =>
      environments.createEnvironment({ spec: { name: `default ${i}` }, makeDefault: true }),
    ),
  );
  const isDefault = async () => {
    const { environments: all } = await environments.listEnvironments({ pageSize: 100 });
    return all.filter((one) => one.isDefault).map(({ id }) => id);
  };
  const [only, ...more] = await isDefault();
  expect(more).toEqual([]);
  expect(made.map(({ environment }) => environment!.id)).toContain(only);
  await environments.archiveEnvironment({ environmentId: only! });
  expect(await isDefault()).toEqual([]);
});

test("an environment that a session uses, in any slot, is not deleted", async () => {
  const { environment } = await environments.createEnvironment({ spec: { name: "used" } });
  const { environment: slot } = await environments.createEnvironment({ spec: { name: "used in a slot" } });
  const sessionId = newId("session");
  await database.pool().query(
    `insert into sessions (session_id, workspace_id, agent_id, agent_version, agent, environment_id, slot_environment_ids)
       values ($1, $2, 'agent_x', 1, '{}', $3, $4)`,
    [sessionId, environment!.workspaceId, environment!.id, JSON.stringify({ db: slot!.id })],
  );
  for (const environmentId of [environment!.id, slot!.id]) {
    const refused = await failure(environments.deleteEnvironment({ environmentId }));
    expect(refused).toMatchObject({ reason: "ENVIRONMENT_IN_USE", metadata: { session_id: sessionId } });
  }
  await database.pool().query("delete from sessions where session_id = $1", [sessionId]);
  await environments.deleteEnvironment({ environmentId: environment!.id });
  const gone = await failure(environments.deleteEnvironment({ environmentId: environment!.id }));
  expect(gone.reason).toBe("NOT_FOUND");
});

test("agents and environments are listed newest first, a page at a time", async () => {
  const key = await tenantKey("lists");
  const own = server.client(AgentService, key);
  const made: string[] = [];
  for (let i = 0; i < 5; i++) made.unshift((await own.createAgent({ spec: { name: `${i}` } })).agent!.id);
  const first = await own.listAgents({ pageSize: 2 });
  const second = await own.listAgents({ pageSize: 2, pageToken: first.nextPageToken });
  const third = await own.listAgents({ pageSize: 2, pageToken: second.nextPageToken });
  const listed = [first, second, third].flatMap((page) => page.agents.map(({ id }) => id));
  expect(listed).toEqual(made);
  expect(third.nextPageToken).toBe("");
  const other = own.listAgents({ includeArchived: true, pageToken: first.nextPageToken });
  expect((await failure(other)).reason).toBe("INVALID_PAGE_TOKEN");
});

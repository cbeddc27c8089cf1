import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { afterAll, beforeAll, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { createPostgresStore } from "../../server/store/postgres/store.ts";
import { failure } from "../kit/failure.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startServer, type TestServer } from "../kit/server.ts";

let database: TestDatabase;
let server: TestServer;
let admin: Client<typeof AdminService>;
let tenant: { id: string; admin: Client<typeof AdminService> };

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  admin = server.client(AdminService);
  tenant = await makeTenant("acme");
});
afterAll(async () => {
  await server?.stop();
  await database?.drop();
});

async function makeTenant(name: string) {
  const { workspace } = await admin.createWorkspace({ name });
  const { secret } = await admin.createApiKey({ name, role: Role.ADMIN, workspaceId: workspace!.id });
  return { id: workspace!.id, secret, admin: server.client(AdminService, secret) };
}

/** The reasons of calls that must all fail, each once. */
async function reasons(calls: readonly Promise<unknown>[]): Promise<string[]> {
  const failures = await Promise.all(calls.map(failure));
  return [...new Set(failures.map(({ reason }) => reason))];
}

test("the same request id makes one workspace, also when both come at once, and is refused for another", async () => {
  const request = { requestId: "first", name: "twice", limits: { hands: 3 } };
  const [one, two] = await Promise.all([admin.createWorkspace(request), admin.createWorkspace(request)]);
  expect(two.workspace!.id).toBe(one.workspace!.id);
  expect(one.workspace!.limits!.hands).toBe(3);
  const other = await failure(admin.createWorkspace({ ...request, limits: { hands: 4 } }));
  expect(other).toMatchObject({ reason: "REQUEST_ID_REUSED", metadata: { field: "request_id" } });
});

test("a workspace's name is unique, bounded and can change", async () => {
  await admin.createWorkspace({ name: "taken" });
  expect((await failure(admin.createWorkspace({ name: "taken" }))).reason).toBe("ALREADY_EXISTS");
  expect(await failure(admin.createWorkspace({ name: "" }))).toMatchObject({
    reason: "INVALID_FIELD",
    metadata: { field: "name" },
  });
  const { workspace } = await admin.createWorkspace({ name: "before" });
  const change = { workspaceId: workspace!.id, name: "taken" };
  expect((await failure(admin.updateWorkspace(change))).reason).toBe("ALREADY_EXISTS");
  const changed = await admin.updateWorkspace({ ...change, name: "after", limits: { retentionDays: 30 } });
  expect(changed.workspace).toMatchObject({ name: "after", limits: { retentionDays: 30 } });
  expect(await failure(admin.updateWorkspace({ ...change, limits: { hands: -1 } }))).toMatchObject({
    reason: "INVALID_FIELD",
    metadata: { field: "limits.hands" },
  });
});

test("whether new sessions are tamper-evident is said when a workspace is made, changed by its own admin, and audited", async () => {
  const request = { requestId: "evident", name: "evident", tamperEvident: true };
  const { workspace } = await admin.createWorkspace(request);
  expect(workspace!.tamperEvident).toBe(true);
  expect((await admin.createWorkspace(request)).workspace!.tamperEvident).toBe(true);
  const other = await failure(admin.createWorkspace({ ...request, tamperEvident: false }));
  expect(other.reason).toBe("REQUEST_ID_REUSED");

  const { id: workspaceId, admin: own } = await makeTenant("plain");
  const evident = async () => (await own.getWorkspace({})).workspace!.tamperEvident;
  expect(await evident()).toBe(false);
  const { workspace: changed } = await own.updateWorkspace({ workspaceId, tamperEvident: true });
  expect(changed!.tamperEvident).toBe(true);
  await own.updateWorkspace({ workspaceId, name: "plainer" });
  expect(await evident()).toBe(true);
  await own.updateWorkspace({ workspaceId, tamperEvident: false });
  expect(await evident()).toBe(false);
  const { entries } = await own.listAuditEntries({ subject: workspaceId });
  const said = entries.map(({ detail }) => JSON.parse(detail).tamper_evident);
  expect(said.filter((value) => value !== undefined)).toEqual([false, true]);
});

test("an admin of one workspace sees and changes that one alone", async () => {
  const { workspaces } = await tenant.admin.listWorkspaces({});
  expect(workspaces.map(({ id }) => id)).toEqual([tenant.id]);
  expect((await tenant.admin.getWorkspace({})).workspace!.id).toBe(tenant.id);
  const { workspace: foreign } = await admin.getWorkspace({});
  const workspaceId = foreign!.id;
  const { apiKey } = await admin.createApiKey({ name: "other", role: Role.CLIENT, workspaceId });
  const { joinToken } = await admin.createJoinToken({ workspaceId });

  expect(
    await reasons([
      tenant.admin.getWorkspace({ workspaceId }),
      tenant.admin.updateWorkspace({ workspaceId, name: "mine" }),
      tenant.admin.createApiKey({ name: "x", role: Role.CLIENT, workspaceId }),
      tenant.admin.createJoinToken({ workspaceId }),
      tenant.admin.stopSessions({ workspaceId }),
      tenant.admin.revokeApiKey({ apiKeyId: apiKey!.id }),
      tenant.admin.revokeJoinToken({ joinTokenId: joinToken!.id }),
      tenant.admin.revokeHandAgent({ handAgentId: "hagt_nobody" }),
    ]),
  ).toEqual(["NOT_FOUND"]);
  expect(
    await reasons([
      tenant.admin.createWorkspace({ name: "sub" }),
      tenant.admin.archiveWorkspace({ workspaceId: tenant.id }),
      tenant.admin.createApiKey({ name: "x", role: Role.PEER }),
      tenant.admin.updateWorkspace({ workspaceId: tenant.id, limits: { hands: 1_000 } }),
    ]),
  ).toEqual(["ROLE_NOT_ALLOWED"]);
  const { apiKeys } = await tenant.admin.listApiKeys({});
  expect(apiKeys.every((key) => key.workspaceId === tenant.id)).toBe(true);
  expect((await tenant.admin.listJoinTokens({})).joinTokens).toEqual([]);
});

test("a key made by an admin of one workspace is bound to it", async () => {
  const { apiKey, secret } = await tenant.admin.createApiKey({ name: "app", role: Role.CLIENT });
  expect(apiKey!.workspaceId).toBe(tenant.id);
  const { agent } = await server.client(AgentService, secret).createAgent({ spec: { name: "a" } });
  expect(agent!.workspaceId).toBe(tenant.id);
});

test("a key is shown once, begins with its role, and only its hash is in the database (S6)", async () => {
  const { apiKey, secret } = await tenant.admin.createApiKey({ name: "shown once", role: Role.CLIENT });
  expect(secret).toMatch(/^tk_client_[\w-]{43}$/);
  expect(secret.startsWith(apiKey!.hint)).toBe(true);
  expect(apiKey!.hint.length).toBe("tk_client_".length + 4);
  const { secret: joinSecret } = await tenant.admin.createJoinToken({});
  expect(joinSecret).toMatch(/^tj_[\w-]{43}$/);
  const dump = await database.pool().query<{ all: string }>(
    `select (select json_agg(t)::text from api_keys t) || (select json_agg(t)::text from join_tokens t)
     || (select json_agg(t)::text from audit_entries t) as all`,
  );
  for (const shown of [secret, joinSecret, server.adminKey]) {
    expect(dump.rows[0]!.all).not.toContain(shown.slice(-20));
  }
});

test("a client key belongs to the default workspace unless told otherwise, a peer key to none; an end must lie ahead", async () => {
  const field = async (call: Promise<unknown>) => (await failure(call)).metadata.field;
  const { workspaces } = await admin.listWorkspaces({});
  const { apiKey } = await admin.createApiKey({ name: "x", role: Role.CLIENT });
  expect(workspaces.map(({ id }) => id)).toContain(apiKey?.workspaceId);
  expect(apiKey?.workspaceId).not.toBe(tenant.id);
  const peer = { name: "x", role: Role.PEER, workspaceId: tenant.id };
  expect(await field(admin.createApiKey(peer))).toBe("workspace_id");
  const past = { name: "x", role: Role.ADMIN, expiresAt: timestampFromMs(Date.now() - 1) };
  expect(await field(admin.createApiKey(past))).toBe("expires_at");
  expect(await field(admin.createApiKey({ name: "x" }))).toBe("role");
  const nowhere = { name: "x", role: Role.CLIENT, workspaceId: "wrkspc_nowhere" };
  expect((await failure(admin.createApiKey(nowhere))).reason).toBe("NOT_FOUND");
});

test("join tokens have uses and an end, default to one use and an hour, and are revoked for good", async () => {
  const { joinToken } = await tenant.admin.createJoinToken({ pool: "gpu" });
  expect(joinToken).toMatchObject({ workspaceId: tenant.id, pool: "gpu", usesLeft: 1 });
  const lifeS = Number(joinToken!.expiresAt!.seconds - joinToken!.createdAt!.seconds);
  expect(Math.abs(lifeS - 3_600)).toBeLessThanOrEqual(1);
  const id = joinToken!.id;
  const once = await tenant.admin.revokeJoinToken({ joinTokenId: id });
  const twice = await tenant.admin.revokeJoinToken({ joinTokenId: id });
  expect(twice.joinToken!.revokedAt).toEqual(once.joinToken!.revokedAt);
  const bad = await failure(tenant.admin.createJoinToken({ pool: "Not A Pool" }));
  expect(bad.metadata.field).toBe("pool");
});

test("archiving a workspace ends its keys and cannot be done to the default one", async () => {
  const { id, secret, admin: its } = await makeTenant("leaving");
  await its.getWorkspace({});
  const archived = await admin.archiveWorkspace({ workspaceId: id });
  const again = await admin.archiveWorkspace({ workspaceId: id });
  expect(again.workspace!.archivedAt).toEqual(archived.workspace!.archivedAt);
  expect((await failure(its.getWorkspace({}))).reason).toBe("UNAUTHENTICATED");
  expect((await failure(server.client(AgentService, secret).listAgents({}))).reason).toBe("UNAUTHENTICATED");
  const late = { name: "x", role: Role.CLIENT, workspaceId: id };
  expect((await failure(admin.createApiKey(late))).reason).toBe("NOT_FOUND");
  const { workspace } = await admin.getWorkspace({});
  const own = await failure(admin.archiveWorkspace({ workspaceId: workspace!.id }));
  expect(own).toMatchObject({ reason: "INVALID_FIELD", metadata: { field: "workspace_id" } });
  const listed = await admin.listWorkspaces({ pageSize: 100 });
  expect(listed.workspaces.some((one) => one.id === id)).toBe(false);
  const all = await admin.listWorkspaces({ pageSize: 100, includeArchived: true });
  expect(all.workspaces.some((one) => one.id === id)).toBe(true);
});

test("each change is in the audit log once, with who did it; a repeat that changes nothing is not", async () => {
  const { apiKey } = await tenant.admin.createApiKey({ name: "audited", role: Role.CLIENT });
  await tenant.admin.revokeApiKey({ apiKeyId: apiKey!.id });
  await tenant.admin.revokeApiKey({ apiKeyId: apiKey!.id });
  const { entries } = await tenant.admin.listAuditEntries({ subject: apiKey!.id });
  expect(entries.map(({ action }) => action)).toEqual(["api_key.revoke", "api_key.create"]);
  for (const entry of entries) {
    expect(entry.actor).toMatch(/^admin apikey_/);
    expect(entry.workspaceId).toBe(tenant.id);
    expect(entry.id).toMatch(/^audit_/);
  }
  expect(JSON.parse(entries[1]!.detail)).toEqual({ name: "audited", role: "client" });
  const seen = await tenant.admin.listAuditEntries({ pageSize: 1_000 });
  expect(seen.entries.every((entry) => entry.workspaceId === tenant.id)).toBe(true);
});

test("a refused change leaves no entry in the audit log", async () => {
  const count = async () => (await admin.listAuditEntries({ pageSize: 1_000 })).entries.length;
  const before = await count();
  await failure(admin.createWorkspace({ name: "taken" }));
  await failure(admin.revokeApiKey({ apiKeyId: "apikey_nobody" }));
  expect(await count()).toBe(before);
});

test("a list is read in pages without gaps or repeats while entries are added, and its tokens fit no other list", async () => {
  const { admin: own } = await makeTenant("pages");
  const made = new Set<string>();
  for (let i = 0; i < 7; i++) made.add((await own.createJoinToken({})).joinToken!.id);
  const seen: string[] = [];
  let pageToken = "";
  do {
    const page = await own.listJoinTokens({ pageSize: 3, pageToken });
    seen.push(...page.joinTokens.map(({ id }) => id));
    pageToken = page.nextPageToken;
    await own.createJoinToken({});
  } while (pageToken !== "");
  expect(seen).toHaveLength(7);
  expect(new Set(seen)).toEqual(made);

  const { nextPageToken } = await own.listJoinTokens({ pageSize: 1 });
  expect(
    await reasons([
      own.listApiKeys({ pageToken: nextPageToken }),
      tenant.admin.listJoinTokens({ pageToken: nextPageToken }),
      own.listJoinTokens({ pageToken: `${nextPageToken.slice(0, -3)}AAA` }),
      own.listJoinTokens({ pageToken: "garbage" }),
    ]),
  ).toEqual(["INVALID_PAGE_TOKEN"]);
  expect(await failure(own.listJoinTokens({ pageSize: 101 }))).toMatchObject({
    reason: "INVALID_FIELD",
    metadata: { field: "page_size" },
  });
});

test("the status names what is missing and what the installation is", async () => {
  const status = await tenant.admin.getStatus({});
  expect(status.ready).toBe(false);
  expect(status.problems.join("\n")).toMatch(/no harness[\s\S]*no hand agent/);
  expect(status.database).toMatch(/^external, Postgres \d+/);
  expect(status.installationId).toMatch(/^inst_/);
  expect(status.replicas).toBe(1);
});

async function makeSession(key: string, status: string): Promise<string> {
  const { agent } = await server.client(AgentService, key).createAgent({ spec: { name: "worker" } });
  const request = { spec: { name: newId("request") }, makeDefault: true };
  await server.client(EnvironmentService, key).createEnvironment(request);
  const { session } = await server.client(SessionService, key).createSession({ agentId: agent!.id });
  await database.pool().query("update sessions set status = $2 where session_id = $1", [session!.id, status]);
  return session!.id;
}

test("stopping sessions interrupts those that run, in the caller's workspace alone", async () => {
  const one = await makeTenant("stops");
  const other = await makeTenant("goes on");
  const [running, idle] = [await makeSession(one.secret, "running"), await makeSession(one.secret, "idle")];
  const elsewhere = await makeSession(other.secret, "running");
  expect((await one.admin.stopSessions({})).sessionIds).toEqual([running]);
  const types = async (sessionId: string, secret: string) =>
    (await server.client(SessionService, secret).getEvents({ sessionId })).events.map(({ type }) => type);
  expect(await types(running, one.secret)).toContain("user.interrupt");
  expect(await types(idle, one.secret)).not.toContain("user.interrupt");
  expect(await types(elsewhere, other.secret)).not.toContain("user.interrupt");
  const { entries } = await one.admin.listAuditEntries({ subject: one.id });
  expect(entries.map(({ action }) => action)).toContain("sessions.stop");
  await database.pool().query("update sessions set status = 'idle'");
});

test("request ids are forgotten once they are old, and only then", async () => {
  await admin.createWorkspace({ requestId: "old one", name: "remembered" });
  const { requestIds } = createPostgresStore(database.pool());
  // Longer than all that was asked for before can be ago.
  const keptMs = 3_600_000;
  expect(await requestIds.prune(keptMs)).toBe(0);
  await database
    .pool()
    .query("update request_ids set created_at = now() - interval '2 hours' where request_id = 'old one'");
  expect(await requestIds.prune(keptMs)).toBe(1);
});

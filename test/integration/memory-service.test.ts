import { createHash } from "node:crypto";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { MemoryAccess, MemoryOperation, MemoryView } from "../../proto/gen/tendon/v1/memory_pb.js";
import { MemoryService } from "../../proto/gen/tendon/v1/memory_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { ThreadService } from "../../proto/gen/tendon/v1/thread_service_pb.js";
import { createMemoriesStore } from "../../server/store/postgres/memories.ts";
import { failure } from "../kit/failure.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startServer, type TestServer } from "../kit/server.ts";

let database: TestDatabase;
let server: TestServer;
let workspaceId: string;
let memory: Client<typeof MemoryService>;
let stranger: Client<typeof MemoryService>;
let harness: Client<typeof MemoryService>;
let sessions: Client<typeof SessionService>;
let threads: Client<typeof ThreadService>;
let agentId: string;

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  const home = await tenant("home");
  workspaceId = home.workspaceId;
  memory = server.client(MemoryService, home.key);
  sessions = server.client(SessionService, home.key);
  stranger = server.client(MemoryService, (await tenant("elsewhere")).key);
  const harnessKey = await server.localKey("harness");
  harness = server.client(MemoryService, harnessKey);
  threads = server.client(ThreadService, harnessKey);
  const multiagent = { agents: [{ kind: { case: "self" as const, value: true } }] };
  const { agent } = await server
    .client(AgentService, home.key)
    .createAgent({ spec: { name: "a", multiagent } });
  agentId = agent!.id;
  const environment = { spec: { name: "default" }, makeDefault: true };
  await server.client(EnvironmentService, home.key).createEnvironment(environment);
});
afterAll(async () => {
  await server?.stop();
  await database?.drop();
});

async function tenant(name: string): Promise<{ workspaceId: string; key: string }> {
  const admin = server.client(AdminService);
  const { workspace } = await admin.createWorkspace({ name });
  const key = await admin.createApiKey({ name, role: Role.CLIENT, workspaceId: workspace!.id });
  return { workspaceId: workspace!.id, key: key.secret };
}

const reasonOf = async (promise: PromiseLike<unknown>) => (await failure(promise)).reason;
const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");

async function newStore(name = "Notes"): Promise<string> {
  return (await memory.createMemoryStore({ name })).memoryStore!.id;
}

async function put(memoryStoreId: string, path: string, content: string) {
  return (await memory.createMemory({ memoryStoreId, path, content })).memory!;
}

test("a store is made once per request, changed, listed, and seen by its workspace alone", async () => {
  const request = { requestId: "one", name: "Team notes", description: "what we know", metadata: { a: "1" } };
  const { memoryStore } = await memory.createMemoryStore(request);
  expect(memoryStore!.id).toMatch(/^memstore_/);
  expect((await memory.createMemoryStore(request)).memoryStore).toEqual(memoryStore);
  expect(await reasonOf(memory.createMemoryStore({ ...request, name: "x" }))).toBe("REQUEST_ID_REUSED");
  const memoryStoreId = memoryStore!.id;
  const change = { memoryStoreId, name: "Notes", metadata: { a: "", b: "2" } };
  const changed = await memory.updateMemoryStore(change);
  expect(changed.memoryStore).toMatchObject({
    name: "Notes",
    description: "what we know",
    metadata: { b: "2" },
  });
  expect(await reasonOf(stranger.getMemoryStore({ memoryStoreId }))).toBe("NOT_FOUND");
  expect(await reasonOf(stranger.listMemories({ memoryStoreId }))).toBe("NOT_FOUND");
  expect(await reasonOf(stranger.deleteMemoryStore({ memoryStoreId }))).toBe("NOT_FOUND");
  const listed = await memory.listMemoryStores({ createdAtOrAfter: memoryStore!.createdAt! });
  expect(listed.memoryStores.map(({ id }) => id)).toContain(memoryStoreId);
  expect(await reasonOf(memory.createMemoryStore({ name: "a\nb" }))).toBe("INVALID_FIELD");
});

test("a memory is made, read by id and path, changed under a condition and renamed, each time with a version", async () => {
  const memoryStoreId = await newStore();
  const first = await put(memoryStoreId, "/notes/build.md", "use make\n");
  expect(first).toMatchObject({ contentSha256: sha256("use make\n"), contentSizeBytes: 9n });
  expect(first.content).toBeUndefined();
  const name = { memoryStoreId, path: "/notes/build.md" };
  expect((await memory.getMemory(name)).memory!.content).toBe("use make\n");
  const stale = { ...name, content: "use just\n", expectedContentSha256: sha256("something else") };
  const refused = await failure(memory.updateMemory(stale));
  expect(refused.reason).toBe("MEMORY_PRECONDITION_FAILED");
  expect(refused.metadata.current_content_sha256).toBe(first.contentSha256);
  const fresh = { ...stale, expectedContentSha256: first.contentSha256 };
  const second = (await memory.updateMemory(fresh)).memory!;
  // What is as asked already stands, whatever was expected.
  expect((await memory.updateMemory(fresh)).memory).toMatchObject({
    memoryVersionId: second.memoryVersionId,
  });
  const move = { memoryStoreId, memoryId: first.id, newPath: "/notes/just.md" };
  expect((await memory.updateMemory(move)).memory).toMatchObject({ id: first.id, path: "/notes/just.md" });
  expect(await reasonOf(memory.getMemory(name))).toBe("NOT_FOUND");
  const gone = { memoryStoreId, memoryId: first.id, expectedContentSha256: second.contentSha256 };
  await memory.deleteMemory(gone);
  expect(await reasonOf(memory.deleteMemory(gone))).toBe("NOT_FOUND");
  const { memoryVersions } = await memory.listMemoryVersions({ memoryStoreId, view: MemoryView.FULL });
  expect(memoryVersions.map(({ operation, path, content }) => [operation, path, content])).toEqual([
    [MemoryOperation.DELETED, "/notes/just.md", undefined],
    [MemoryOperation.MODIFIED, "/notes/just.md", "use just\n"],
    [MemoryOperation.MODIFIED, "/notes/build.md", "use just\n"],
    [MemoryOperation.CREATED, "/notes/build.md", "use make\n"],
  ]);
  expect(memoryVersions[0]!.createdBy?.kind).toMatchObject({ case: "apiKeyId" });
  const { memoryStore } = await memory.getMemoryStore({ memoryStoreId });
  expect(memoryStore).toMatchObject({ memoryCount: 0, contentBytes: 27n });
});

test("a taken path is never written over, and a memory is no directory", async () => {
  const memoryStoreId = await newStore();
  const { id } = await put(memoryStoreId, "/a/b", "1");
  for (const path of ["/a/b", "/a/b/c", "/a"]) {
    const error = await failure(put(memoryStoreId, path, "2"));
    expect(error.reason).toBe("MEMORY_PATH_CONFLICT");
    expect(error.metadata).toMatchObject({ conflicting_memory_id: id, conflicting_path: "/a/b" });
  }
  await put(memoryStoreId, "/a/b.md", "beside");
  const onto = { memoryStoreId, path: "/a/b.md", newPath: "/a/b" };
  expect(await reasonOf(memory.updateMemory(onto))).toBe("MEMORY_PATH_CONFLICT");
  const below = await memory.updateMemory({ memoryStoreId, path: "/a/b", newPath: "/a/b/c" });
  expect(below.memory!.path).toBe("/a/b/c");
  for (const path of ["a", "/", "/a//b", "/../a", "/a/", "/a\u200bb", "/e\u0301", `/${"x/".repeat(20)}x`]) {
    expect(await reasonOf(put(memoryStoreId, path, ""))).toBe("INVALID_FIELD");
  }
  expect(await reasonOf(put(memoryStoreId, "/big", "é".repeat(51_201)))).toBe("INVALID_FIELD");
  expect((await put(memoryStoreId, "/empty", "")).contentSizeBytes).toBe(0n);
});

test("repeated requests change nothing more, and find what the first one did", async () => {
  const memoryStoreId = await newStore();
  const create = { requestId: "r1", memoryStoreId, path: "/x", content: "one", view: MemoryView.FULL };
  const made = await memory.createMemory(create);
  const update = { requestId: "r2", memoryStoreId, path: "/x", content: "two" };
  await memory.updateMemory(update);
  await memory.updateMemory({ memoryStoreId, path: "/x", content: "three" });
  // Not written back to "two".
  await memory.updateMemory(update);
  expect((await memory.createMemory(create)).memory).toEqual(made.memory);
  expect((await memory.getMemory({ memoryStoreId, path: "/x" })).memory!.content).toBe("three");
  expect(await reasonOf(memory.createMemory({ ...create, content: "other" }))).toBe("REQUEST_ID_REUSED");
  const remove = { requestId: "r3", memoryStoreId, path: "/x" };
  const { memoryId } = await memory.deleteMemory(remove);
  expect((await memory.deleteMemory(remove)).memoryId).toBe(memoryId);
  const found = await memory.getMemoryVersion({ memoryStoreId, requestId: "r2" });
  expect(found.memoryVersion).toMatchObject({ content: "two", requestId: "r2", memoryId });
});

test("lists go by path, page by page, whole or a directory at a time", async () => {
  const memoryStoreId = await newStore();
  for (const path of ["/b/x", "/a", "/b/y/z", "/b.txt", "/c/d"]) await put(memoryStoreId, path, path);
  const shown = async (request: object) => {
    const { entries, nextPageToken } = await memory.listMemories({ memoryStoreId, ...request });
    const paths = entries.map(({ kind }) => (kind.case === "memory" ? kind.value.path : kind.value));
    return { paths, nextPageToken, entries };
  };
  const all = await shown({});
  expect(all.paths).toEqual(["/a", "/b.txt", "/b/x", "/b/y/z", "/c/d"]);
  expect((await shown({ depth: 1 })).paths).toEqual(["/a", "/b.txt", "/b/", "/c/"]);
  expect((await shown({ depth: 1, pathPrefix: "/b/" })).paths).toEqual(["/b/x", "/b/y/"]);
  const page = await shown({ pageSize: 3, view: MemoryView.FULL });
  expect(page.entries[0]!.kind.value).toMatchObject({ content: "/a" });
  const rest = await shown({ pageSize: 3, view: MemoryView.FULL, pageToken: page.nextPageToken });
  expect([...page.paths, ...rest.paths]).toEqual(all.paths);
  expect(rest.nextPageToken).toBe("");
  expect(await reasonOf(memory.listMemories({ memoryStoreId, pathPrefix: "/b" }))).toBe("INVALID_FIELD");
});

test("a version is redacted for good unless a memory is at it, and the audit log says who did it", async () => {
  const memoryStoreId = await newStore();
  const first = await put(memoryStoreId, "/k", "a secret");
  const redaction = { memoryStoreId, memoryVersionId: first.memoryVersionId };
  expect(await reasonOf(memory.redactMemoryVersion(redaction))).toBe("MEMORY_VERSION_CURRENT");
  await memory.updateMemory({ memoryStoreId, path: "/k", content: "none" });
  const { memoryVersion } = await memory.redactMemoryVersion(redaction);
  expect(memoryVersion).toMatchObject({ operation: MemoryOperation.CREATED, memoryId: first.id });
  for (const field of ["path", "content", "contentSha256", "contentSizeBytes"] as const)
    expect(memoryVersion![field]).toBeUndefined();
  expect(memoryVersion!.redactedBy?.kind.case).toBe("apiKeyId");
  expect((await memory.redactMemoryVersion(redaction)).memoryVersion).toEqual(memoryVersion);
  expect((await memory.getMemoryStore({ memoryStoreId })).memoryStore!.contentBytes).toBe(4n);
  const { entries } = await server.client(AdminService).listAuditEntries({ subject: first.memoryVersionId });
  expect(entries.map(({ action }) => action)).toEqual(["memory_version.redact"]);
});

test("an archived store is read, and given to nobody and written no more; a deleted one is gone with all it held", async () => {
  const memoryStoreId = await newStore();
  await put(memoryStoreId, "/k", "v");
  await memory.archiveMemoryStore({ memoryStoreId });
  expect(await reasonOf(put(memoryStoreId, "/l", "v"))).toBe("MEMORY_STORE_ARCHIVED");
  expect(await reasonOf(memory.updateMemory({ memoryStoreId, path: "/k", content: "w" }))).toBe(
    "MEMORY_STORE_ARCHIVED",
  );
  expect(await reasonOf(memory.updateMemoryStore({ memoryStoreId, name: "x" }))).toBe(
    "MEMORY_STORE_ARCHIVED",
  );
  const resources = [{ kind: { case: "memoryStore" as const, value: { memoryStoreId } } }];
  expect(await reasonOf(sessions.createSession({ agentId, resources }))).toBe("MEMORY_STORE_ARCHIVED");
  expect((await memory.getMemory({ memoryStoreId, path: "/k" })).memory!.content).toBe("v");
  await memory.deleteMemory({ memoryStoreId, path: "/k" });
  await memory.deleteMemoryStore({ memoryStoreId });
  expect(await reasonOf(memory.listMemoryVersions({ memoryStoreId }))).toBe("NOT_FOUND");
  const { rows } = await database
    .pool()
    .query("select 1 from memory_versions where memory_store_id = $1", [memoryStoreId]);
  expect(rows).toEqual([]);
});

test("a session is given stores with their names of then, and a brain uses them by its lease and its access", async () => {
  const [writable, readable, other] = [
    await newStore("Team notes"),
    await newStore("Team  Notes!"),
    await newStore(),
  ];
  await put(readable!, "/rule", "be kind");
  const { session } = await sessions.createSession({
    agentId,
    resources: [
      { kind: { case: "memoryStore", value: { memoryStoreId: writable!, instructions: "keep it short" } } },
      {
        kind: { case: "memoryStore", value: { memoryStoreId: readable!, access: MemoryAccess.READ_ONLY } },
      },
    ],
  });
  await memory.updateMemoryStore({ memoryStoreId: writable!, name: "renamed" });
  const { session: read } = await sessions.getSession({ sessionId: session!.id });
  expect(read!.resources.map(({ kind }) => kind.value)).toMatchObject([
    {
      memoryStoreId: writable,
      name: "Team notes",
      mountPath: "/mnt/memory/team-notes",
      instructions: "keep it short",
    },
    { memoryStoreId: readable, access: MemoryAccess.READ_ONLY, mountPath: "/mnt/memory/team-notes-2" },
  ]);
  const { sessions: given } = await sessions.listSessions({ memoryStoreId: readable! });
  expect(given.map(({ id }) => id)).toEqual([session!.id]);
  const lease = { leaseId: newId("lease"), epoch: 4n };
  await database
    .pool()
    .query("update sessions set lease_id = $2, lease_epoch = 4 where session_id = $1", [
      session!.id,
      lease.leaseId,
    ]);
  const acting = { sessionId: session!.id, lease };
  const write = { path: "/n", content: "x", session: acting };
  await harness.createMemory({ memoryStoreId: writable!, ...write });
  expect(await reasonOf(harness.createMemory({ memoryStoreId: readable!, ...write }))).toBe(
    "ROLE_NOT_ALLOWED",
  );
  expect(await reasonOf(harness.createMemory({ memoryStoreId: other!, ...write }))).toBe("NOT_FOUND");
  expect(await reasonOf(harness.getMemory({ memoryStoreId: writable!, path: "/n" }))).toBe("INVALID_FIELD");
  const rule = { memoryStoreId: readable!, path: "/rule", session: acting };
  expect((await harness.getMemory(rule)).memory!.content).toBe("be kind");
  const older = { ...acting, lease: { ...lease, epoch: 3n } };
  expect(
    await reasonOf(
      harness.updateMemory({ memoryStoreId: writable!, path: "/n", content: "y", session: older }),
    ),
  ).toBe("LEASE_FENCED");
  const by = await memory.listMemoryVersions({ memoryStoreId: writable!, sessionId: session!.id });
  expect(by.memoryVersions.map(({ createdBy }) => createdBy?.kind)).toEqual([
    { case: "sessionId", value: session!.id },
  ]);
  const twice = [writable!, writable!].map((memoryStoreId) => ({
    kind: { case: "memoryStore" as const, value: { memoryStoreId } },
  }));
  expect(await reasonOf(sessions.createSession({ agentId, resources: twice }))).toBe("INVALID_FIELD");
  // Its threads use them in their own names.
  const { thread } = await threads.createThread({
    ...acting,
    requestId: "thread",
    agent: "self",
    message: "help",
  });
  expect(thread!.resources).toEqual(read!.resources);
  const fork = await sessions.forkSession({ sessionId: session!.id });
  expect(fork.session!.resources).toEqual(read!.resources);
});

test("a workspace's bytes and stores are limited, and versions make room when their time is over", async () => {
  const small = await tenant("small");
  const own = server.client(MemoryService, small.key);
  const limits = { memoryBytes: 25n, memoryStores: 1 };
  await server.client(AdminService).updateWorkspace({ workspaceId: small.workspaceId, limits });
  const { memoryStore } = await own.createMemoryStore({ name: "one" });
  expect((await failure(own.createMemoryStore({ name: "two" }))).metadata.limit).toBe("memory_stores");
  const memoryStoreId = memoryStore!.id;
  await own.createMemory({ memoryStoreId, path: "/k", content: "0123456789" });
  await own.updateMemory({ memoryStoreId, path: "/k", content: "9876543210" });
  const third = { memoryStoreId, path: "/l", content: "abcdef" };
  expect((await failure(own.createMemory(third))).metadata.limit).toBe("memory_bytes");
  await own.createMemory({ ...third, content: "abcde" });
  await own.deleteMemory({ memoryStoreId, path: "/l" });
  await own.archiveMemoryStore({ memoryStoreId });
  const pool = database.pool();
  await pool.query(
    "update memory_versions set created_at = created_at - interval '31 days' where memory_store_id = $1",
    [memoryStoreId],
  );
  await createMemoriesStore(pool).prune(30 * 86_400_000);
  const { memoryVersions } = await own.listMemoryVersions({ memoryStoreId });
  // The living memory keeps its recent versions, the deleted one none.
  expect(memoryVersions.map(({ path }) => path)).toEqual(["/k", "/k"]);
  expect((await own.getMemoryStore({ memoryStoreId })).memoryStore!.contentBytes).toBe(20n);
  const { rows } = await pool.query<{ bytes: number }>(
    "select bytes from memory_usage where workspace_id = $1",
    [small.workspaceId],
  );
  expect(rows[0]!.bytes).toBe(20);
});

test("writers at once leave one memory a path and lose no change", async () => {
  const memoryStoreId = await newStore();
  const made = await Promise.allSettled(
    Array.from({ length: 6 }, (_, n) => put(memoryStoreId, "/race", String(n))),
  );
  expect(made.filter(({ status }) => status === "fulfilled")).toHaveLength(1);
  const add = async (line: string): Promise<void> => {
    const { memory: now } = await memory.getMemory({ memoryStoreId, path: "/race" });
    const change = { memoryStoreId, path: "/race", content: `${now!.content}${line}` };
    const condition = { expectedContentSha256: now!.contentSha256 };
    await memory.updateMemory({ ...change, ...condition }).catch((error: TendonError) => {
      if (error.reason !== "MEMORY_PRECONDITION_FAILED") throw error;
      return add(line);
    });
  };
  await Promise.all(["a", "b", "c", "d"].map(add));
  const { memory: after } = await memory.getMemory({ memoryStoreId, path: "/race" });
  expect([...after!.content!].slice(1).sort().join("")).toBe("abcd");
  expect(workspaceId).toBe((await memory.getMemoryStore({ memoryStoreId })).memoryStore!.workspaceId);
});

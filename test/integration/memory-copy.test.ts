/** A store's copy in a hand: the agent's part with real directories, and the server's with a real Postgres. */
import { mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { HandMounts, MountFiles } from "../../hand-agent/drivers/driver.ts";
import { mountFiles } from "../../hand-agent/drivers/mounted-dirs.ts";
import { MemoryCopy, type Sync } from "../../hand-agent/mounts/memory-copy.ts";
import { MemoryScanner } from "../../hand-agent/mounts/memory-scan.ts";
import { newStoreState } from "../../hand-agent/mounts/mount-state.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import {
  SyncMemoryRequestSchema,
  SyncMemoryResponseSchema,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { MemoryView } from "../../proto/gen/tendon/v1/memory_pb.js";
import { MemoryService } from "../../proto/gen/tendon/v1/memory_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { createMemorySync } from "../../server/memory/hand-sync.ts";
import { createMemoriesStore } from "../../server/store/postgres/memories.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startServer, type TestServer } from "../kit/server.ts";

let database: TestDatabase;
let server: TestServer;
let top: string;
let memory: Client<typeof MemoryService>;
let agentId: string;
let copies = 0;

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  top = await mkdtemp(join(tmpdir(), "tendon-memory-"));
  memory = server.client(MemoryService);
  const environment = { spec: { name: "default", driver: "process" }, makeDefault: true };
  await server.client(EnvironmentService).createEnvironment(environment);
  agentId = (await server.client(AgentService).createAgent({ spec: { name: "a" } })).agent!.id;
});
afterAll(async () => {
  await server?.stop();
  await rm(top, { recursive: true, force: true });
  await database?.drop();
});

const STORE_PATH = "/mnt/memory/s";
const NEVER = new AbortController().signal;

interface Copy {
  /** On this machine. */
  readonly dir: string;
  readonly memoryStoreId: string;
  /** Notes for the model; `files` go wrong in some way. */
  sync(files?: (files: MountFiles) => MountFiles): Promise<string[]>;
  /** Requests of the last one. */
  readonly requests: () => number;
}

/** A hand's copy of a new store, or of one that another hand has. */
async function newCopy(texts: Readonly<Record<string, string>>, shared?: string): Promise<Copy> {
  const memoryStoreId = shared ?? (await memory.createMemoryStore({ name: `s${copies}` })).memoryStore!.id;
  for (const [path, content] of Object.entries(texts))
    await memory.createMemory({ memoryStoreId, path, content });
  const resources = [{ kind: { case: "memoryStore" as const, value: { memoryStoreId } } }];
  const { session } = await server.client(SessionService).createSession({ agentId, resources });
  copies += 1;
  const mnt = join(top, `${copies}`);
  const dir = join(mnt, "memory/s");
  await mkdir(dir, { recursive: true });
  const own = mountFiles(mnt, [{ path: STORE_PATH, readOnly: false }], undefined);
  const state = newStoreState();
  const take = createMemorySync(createMemoriesStore(database.pool()));
  let requests = 0;
  const exchange: Sync = async (request) => {
    requests += 1;
    const asked = create(SyncMemoryRequestSchema, request);
    return create(SyncMemoryResponseSchema, await take.sync(session!.id, asked));
  };
  const copy = {
    dir,
    memoryStoreId,
    requests: () => requests,
    async sync(broken = (files: MountFiles) => files) {
      requests = 0;
      const mounts: HandMounts = { files: broken(own), areKept: true, made: [], seenAt: (path) => path };
      const store = { memoryStoreId, path: STORE_PATH, readOnly: false };
      const scanner = new MemoryScanner(mounts, STORE_PATH, () => Date.now());
      return new MemoryCopy({ store, state, mounts, scanner }).bringUpToDate(exchange, NEVER);
    },
  };
  await copy.sync();
  return copy;
}

async function stored(memoryStoreId: string): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  for (let pageToken = ""; ; ) {
    const page = { memoryStoreId, view: MemoryView.FULL, pageSize: 20, pageToken };
    const { entries, nextPageToken } = await memory.listMemories(page);
    for (const { kind } of entries)
      if (kind.case === "memory") found[kind.value.path] = kind.value.content ?? "";
    if (nextPageToken === "") return found;
    pageToken = nextPageToken;
  }
}

test("a file that became a directory, and the other way round, is saved at once", async () => {
  const { dir, memoryStoreId, sync } = await newCopy({ "/notes": "1", "/dir/a": "2" });
  await rename(join(dir, "notes"), join(dir, "n"));
  await mkdir(join(dir, "notes"));
  await rename(join(dir, "n"), join(dir, "notes/first"));
  await rename(join(dir, "dir/a"), join(dir, "a"));
  await rm(join(dir, "dir"), { recursive: true });
  await rename(join(dir, "a"), join(dir, "dir"));
  expect(await sync()).toEqual([]);
  expect(await stored(memoryStoreId)).toEqual({ "/notes/first": "1", "/dir": "2" });
});

test("many places that the hand keeps taken cost a call no time, and keep nothing else from coming", async () => {
  const { memoryStoreId, dir, sync, requests } = await newCopy({ "/a": "1" });
  // More than are asked for at a time.
  for (let n = 0; n < 70; n += 1) {
    await mkdir(join(dir, `d${n}`));
    await memory.createMemory({ memoryStoreId, path: `/d${n}`, content: "x" });
  }
  await memory.createMemory({ memoryStoreId, path: "/z", content: "2" });
  await sync();
  expect(await readFile(join(dir, "z"), "utf8")).toBe("2");
  expect(requests()).toBeLessThan(10);
  await rm(join(dir, "d0"), { recursive: true });
  await sync();
  expect(await readFile(join(dir, "d0"), "utf8")).toBe("x");
});

test("a conflict of a file with the longest name is kept beside it", async () => {
  const name = `${"x".repeat(250)}.md`;
  const { memoryStoreId, dir, sync } = await newCopy({ [`/${name}`]: "1" });
  await writeFile(join(dir, name), "mine");
  await memory.updateMemory({ memoryStoreId, path: `/${name}`, content: "theirs" });
  expect(await sync()).toHaveLength(1);
  expect(await readFile(join(dir, name), "utf8")).toBe("theirs");
  expect(Object.values(await stored(memoryStoreId)).sort()).toEqual(["mine", "theirs"]);
});

test("what could not be looked at is not taken for deleted", async () => {
  const { memoryStoreId, sync } = await newCopy({ "/a": "1", "/dir/b": "2" });
  await sync((files) => ({
    ...files,
    // As when the agent has no more files to open: the directory looks empty.
    async *walk(path, options) {
      for await (const entry of files.walk(path, options)) if (!entry.path.includes("/dir/")) yield entry;
    },
  }));
  expect(await stored(memoryStoreId)).toEqual({ "/a": "1", "/dir/b": "2" });
});

test("a memory that is called like the agent's own half-written files is not taken for deleted", async () => {
  const { memoryStoreId, sync } = await newCopy({ "/a": "1" });
  await memory.createMemory({ memoryStoreId, path: "/.tendon-ab12.tmp", content: "odd" });
  await sync();
  await sync();
  expect(await stored(memoryStoreId)).toEqual({ "/.tendon-ab12.tmp": "odd", "/a": "1" });
});

test("two hands that change one store at once lose nothing of each other", async () => {
  const first = await newCopy({ "/n": "0" });
  const second = await newCopy({}, first.memoryStoreId);
  for (let n = 0; n < 10; n += 1) {
    await writeFile(join(first.dir, "n"), `first ${n}`);
    await writeFile(join(second.dir, "n"), `second ${n}`);
    await Promise.all([first.sync(), second.sync()]);
    await Promise.all([first.sync(), second.sync()]);
  }
  await Promise.all([first.sync(), second.sync()]);
  const texts = Object.values(await stored(first.memoryStoreId));
  expect(texts).toHaveLength(11);
  expect((await readdir(first.dir)).sort()).toEqual((await readdir(second.dir)).sort());
});

/** The memory tool and what models are told of memory stores: a real server and harness. */
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import type { ServerClients } from "../../harness/server-clients.ts";
import { TendonError } from "../../kit/errors.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { MemoryAccess } from "../../proto/gen/tendon/v1/memory_pb.js";
import { MemoryService } from "../../proto/gen/tendon/v1/memory_service_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { type Brains, startBrains } from "../kit/brains.ts";
import { eventually } from "../kit/eventually.ts";
import { type FakeMessagesApi, startFakeMessagesApi } from "../kit/fake-messages-api.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startServer, type TestServer } from "../kit/server.ts";

let database: TestDatabase;
let server: TestServer;
let brains: Brains;
let api: FakeMessagesApi;
let memory: Client<typeof MemoryService>;
let sessions: Client<typeof SessionService>;
/** Answers of the server that are lost on their way, by method. */
let lost: string[] = [];
/** What happens when one was lost, before it is noticed. */
let meanwhile = async (): Promise<void> => {};

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  api = await startFakeMessagesApi();
  memory = server.client(MemoryService);
  sessions = server.client(SessionService);
  await server.client(EnvironmentService).createEnvironment({ spec: { name: "here" }, makeDefault: true });
  const key = await server.localKey("harness");
  brains = await startBrains({ url: server.url, key, model: api, through: losing });
  await eventually(() => brains.harness.isConnected);
});
beforeEach(() => {
  lost = [];
  meanwhile = async () => {};
});
afterAll(async () => {
  await brains?.stop();
  await api?.stop();
  await server?.stop();
  await database?.drop();
});

/** What was asked is done, and nobody hears of it. */
function losing(clients: ServerClients): ServerClients {
  const client = new Proxy(clients.memory, {
    get(target, method) {
      return async (...args: never[]) => {
        const methods = target as unknown as Record<
          string | symbol,
          (...args: never[]) => PromiseLike<unknown>
        >;
        const answer = await methods[method]!(...args);
        const at = lost.indexOf(String(method));
        if (at < 0) return answer;
        lost.splice(at, 1);
        await meanwhile();
        throw new TendonError("UNAVAILABLE", "the answer was lost");
      };
    },
  });
  return { ...clients, memory: client };
}

async function newStore(name: string, texts: Readonly<Record<string, string>> = {}): Promise<string> {
  const { memoryStore } = await memory.createMemoryStore({ name, description: `about ${name}` });
  for (const [path, content] of Object.entries(texts))
    await memory.createMemory({ memoryStoreId: memoryStore!.id, path, content });
  return memoryStore!.id;
}

async function stored(memoryStoreId: string): Promise<Record<string, string>> {
  const { entries } = await memory.listMemories({ memoryStoreId, view: 2 });
  return Object.fromEntries(
    entries.map(({ kind }) => (kind.case === "memory" ? [kind.value.path, kind.value.content ?? ""] : [])),
  );
}

interface Stores {
  readonly memoryStoreId: string;
  readonly access?: MemoryAccess;
  readonly instructions?: string;
}

const GO = { type: "user.message", payload: `{"content":[{"type":"text","text":"go"}]}` };
const MEMORY_TOOL = { kind: { case: "brainToolset" as const, value: { names: ["memory"] } } };

/** Runs these inputs one after the other, and gives what the model was answered. */
async function run(
  stores: readonly Stores[],
  inputs: readonly object[],
): Promise<{ text: string; isError: boolean }[]> {
  const steps = [...inputs.map((input) => ({ calls: [{ name: "memory", input }] })), { say: "Done." }];
  const spec = { name: "m", loop: "scripted", loopSettings: JSON.stringify({ steps }), tools: [MEMORY_TOOL] };
  const { agent } = await server.client(AgentService).createAgent({ spec });
  const resources = stores.map((value) => ({ kind: { case: "memoryStore" as const, value } }));
  const { session } = await sessions.createSession({ agentId: agent!.id, resources, initialEvents: [GO] });
  const sessionId = session!.id;
  await rested(sessionId);
  const { events } = await sessions.getEvents({ sessionId, limit: 500 });
  return events
    .filter(({ type }) => type === "agent.tool_result")
    .map(({ payload }) => {
      const { content, is_error } = JSON.parse(payload) as { content: { text: string }[]; is_error: boolean };
      return { text: content.map(({ text }) => text).join(""), isError: is_error };
    });
}

async function rested(sessionId: string): Promise<void> {
  await eventually(
    async () => {
      const { session } = await sessions.getSession({ sessionId });
      return session?.status === SessionStatus.IDLE && !session.hasWork;
    },
    { withinMs: 60_000 },
  );
}

test("a brain without hands keeps files in its session's stores by the commands that models know", async () => {
  const memoryStoreId = await newStore("Team notes", {
    "/old.md": "one\ntwo\nthree\n",
    "/d/a": "A",
    "/d/b": "B",
  });
  const at = (path: string) => `/memories/team-notes${path}`;
  const results = await run(
    [{ memoryStoreId }],
    [
      { command: "view", path: "/memories" },
      { command: "view", path: at("") },
      { command: "view", path: at("/old.md"), view_range: [2, -1] },
      { command: "create", path: at("/new.md"), file_text: "x\n" },
      { command: "str_replace", path: at("/old.md"), old_str: "two", new_str: "2" },
      { command: "insert", path: at("/old.md"), insert_line: 1, insert_text: "1.5" },
      { command: "rename", old_path: at("/d"), new_path: at("/e/f") },
      { command: "delete", path: at("/e/f/a") },
    ],
  );
  expect(results.filter(({ isError }) => isError)).toEqual([]);
  const texts = results.map(({ text }) => text);
  expect(texts[0]).toBe("Memory stores:\n/memories/team-notes\tTeam notes");
  expect(texts[1]).toContain("14\t/memories/team-notes/old.md");
  expect(texts[1]).toContain("2\t/memories/team-notes/d/\n1\t/memories/team-notes/d/a");
  expect(texts[2]).toBe("/memories/team-notes/old.md:\n     2\ttwo\n     3\tthree");
  expect(await stored(memoryStoreId)).toEqual({
    "/old.md": "one\n1.5\n2\nthree\n",
    "/new.md": "x\n",
    "/e/f/b": "B",
  });
});

test("what cannot be done is told, and changes nothing", async () => {
  const memoryStoreId = await newStore("notes", { "/a": "twice twice", "/b": "" });
  const rules = await newStore("rules", { "/r": "be kind" });
  const attempts = [
    [{ command: "create", path: "/memories/notes/a", file_text: "" }, "is taken"],
    [{ command: "str_replace", path: "/memories/notes/a", old_str: "twice", new_str: "" }, "more than once"],
    [{ command: "str_replace", path: "/memories/notes/a", old_str: "no", new_str: "" }, "does not appear"],
    [{ command: "insert", path: "/memories/notes/a", insert_line: 7, insert_text: "" }, "from 0 to 1"],
    [{ command: "delete", path: "/memories/notes/none" }, "does not exist"],
    [{ command: "delete", path: "/memories/notes" }, "is a memory store"],
    [{ command: "view", path: "/etc/passwd" }, "in none of the memory stores"],
    [{ command: "view", path: "/memories/notes/../rules" }, "must have no empty part"],
    [{ command: "rename", old_path: "/memories/notes/a", new_path: "/memories/notes/b" }, "is taken"],
    [
      { command: "rename", old_path: "/memories/notes/a", new_path: "/memories/rules/a" },
      "within its memory store",
    ],
    [{ command: "create", path: "/memories/notes/\u0007", file_text: "" }, "control"],
    [
      { command: "str_replace", path: "/memories/rules/r", old_str: "kind", new_str: "mean" },
      "not change it",
    ],
    [{ command: "forget", path: "/memories/notes/a" }, "must be one of"],
  ] as const;
  const given = [{ memoryStoreId }, { memoryStoreId: rules, access: MemoryAccess.READ_ONLY }];
  const inputs = attempts.map(([input]) => input);
  // No turn has more than ten rounds here.
  const results = [...(await run(given, inputs.slice(0, 8))), ...(await run(given, inputs.slice(8)))];
  for (const [index, [, words]] of attempts.entries()) {
    expect(results[index]).toEqual({ isError: true, text: expect.stringContaining(words) });
  }
  expect(await stored(memoryStoreId)).toEqual({ "/a": "twice twice", "/b": "" });
  const [none] = await run([], [{ command: "view", path: "/memories" }]);
  expect(none).toEqual({ isError: true, text: "This session was given no memory store." });
});

test("a call that is run again does nothing twice (X1)", async () => {
  const memoryStoreId = await newStore("again", { "/log": "a\n", "/d/1": "x", "/d/2": "y" });
  lost = ["createMemory", "updateMemory", "updateMemory", "updateMemory", "deleteMemory"];
  const results = await run(
    [{ memoryStoreId }],
    [
      { command: "create", path: "/memories/again/new", file_text: "n" },
      { command: "insert", path: "/memories/again/log", insert_line: 1, insert_text: "b" },
      { command: "str_replace", path: "/memories/again/log", old_str: "a", new_str: "aa" },
      { command: "rename", old_path: "/memories/again/d", new_path: "/memories/again/e" },
      { command: "delete", path: "/memories/again/new" },
    ],
  );
  expect(lost).toEqual([]);
  expect(results.filter(({ isError }) => isError)).toEqual([]);
  expect(await stored(memoryStoreId)).toEqual({ "/log": "aa\nb\n", "/e/1": "x", "/e/2": "y" });
  const { memoryVersions } = await memory.listMemoryVersions({ memoryStoreId, pageSize: 50 });
  // Three texts that were there; one made, two edits, two moves, one deletion.
  expect(memoryVersions).toHaveLength(9);
});

test("a call that is run again leaves alone what others put in its file's place meanwhile (X1)", async () => {
  const memoryStoreId = await newStore("place", { "/a": "old", "/b": "old" });
  lost = ["deleteMemory", "updateMemory"];
  const places = ["/a", "/b"];
  meanwhile = async () => {
    await memory.createMemory({ memoryStoreId, path: places.shift()!, content: "of another" });
  };
  const results = await run(
    [{ memoryStoreId }],
    [
      { command: "delete", path: "/memories/place/a" },
      { command: "rename", old_path: "/memories/place/b", new_path: "/memories/place/c" },
    ],
  );
  expect(results.map(({ isError }) => isError)).toEqual([false, false]);
  expect(await stored(memoryStoreId)).toEqual({ "/a": "of another", "/b": "of another", "/c": "old" });
});

test("a model is told of its stores behind its system prompt, in the same bytes each time", async () => {
  const memoryStoreId = await newStore("Team notes");
  const spec = {
    name: "claude",
    system: "Be brief.",
    model: { id: "claude-test" },
    tools: [MEMORY_TOOL, { kind: { case: "handToolset" as const, value: {} } }],
  };
  const { agent } = await server.client(AgentService).createAgent({ spec });
  const value = { memoryStoreId, access: MemoryAccess.READ_ONLY, instructions: "Look here first.\nAlways." };
  const resources = [{ kind: { case: "memoryStore" as const, value } }];
  const { session } = await sessions.createSession({ agentId: agent!.id, resources, initialEvents: [GO] });
  const sessionId = session!.id;
  await rested(sessionId);
  await memory.updateMemoryStore({ memoryStoreId, name: "renamed", description: "other" });
  await sessions.emitEvents({ sessionId, events: [GO] });
  await eventually(() => api.requests.length >= 2);
  await rested(sessionId);
  const systems = api.requests.map(({ json }) => (json as { system: { text: string }[] }).system[0]!.text);
  expect(systems[1]).toBe(systems[0]);
  expect(systems[0]).toMatch(/^Be brief\.\n\n<memory>\n/);
  expect(systems[0]).toContain(
    [
      "- /mnt/memory/team-notes, /memories/team-notes (read only): Team notes",
      "  about Team notes",
      "  How to use it: Look here first.",
      "  Always.",
      "</memory>",
    ].join("\n"),
  );
  expect(api.refusals).toEqual([]);
});

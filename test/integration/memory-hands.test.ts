/** Memory stores and session logs in hands: the real server and the real agent with process hands. */
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { rm, writeFile } from "node:fs/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { HandAgent } from "../../hand-agent/hand-agent.ts";
import { createLogger } from "../../kit/log.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { MemoryAccess } from "../../proto/gen/tendon/v1/memory_pb.js";
import { MemoryService } from "../../proto/gen/tendon/v1/memory_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { collectExecution as collect, textOfResult } from "../kit/execution-stream.ts";
import { agentInProcess, makeAgentDir } from "../kit/hand-agent-program.ts";
import { copyIn, copyOut } from "../kit/hand-copies.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startServer, type TestServer } from "../kit/server.ts";
import { startTcpRelay, type TcpRelay } from "../kit/tcp-relay.ts";

let database: TestDatabase;
let server: TestServer;
let dir: Awaited<ReturnType<typeof makeAgentDir>>;
let agent: HandAgent;
/** Between agent and server. */
let relay: TcpRelay;
/** What the agent has warned of. */
const warnings: string[] = [];
let memory: Client<typeof MemoryService>;
let hands: Client<typeof HandService>;
let sessions: Client<typeof SessionService>;
let agentId: string;

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  dir = await makeAgentDir();
  memory = server.client(MemoryService);
  hands = server.client(HandService);
  sessions = server.client(SessionService);
  agentId = (await server.client(AgentService).createAgent({ spec: { name: "a" } })).agent!.id;
  const environment = { spec: { name: "default", driver: "process", sessionLog: true }, makeDefault: true };
  await server.client(EnvironmentService).createEnvironment(environment);
  const { secret } = await server.client(AdminService).createJoinToken({ uses: 5 });
  relay = await startTcpRelay(server.port);
  await startAgent(secret);
});
afterAll(async () => {
  await agent?.stop();
  await relay?.close();
  await server?.stop();
  await dir?.remove();
  await database?.drop();
});

async function startAgent(joinToken?: string): Promise<void> {
  const log = Object.create(createLogger("hand-agent", "silent"));
  log.warn = (_facts: object, text: string) => void warnings.push(text);
  const url = `http://127.0.0.1:${relay.port}`;
  agent = agentInProcess({ url, dataDir: dir.path, drainMs: 200, log, ...(joinToken && { joinToken }) });
  await agent.start();
}

const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");
let calls = 0;

/** A session with these stores, and a hand of its own. */
async function sessionWith(
  stores: readonly { memoryStoreId: string; access?: MemoryAccess }[],
): Promise<{ sessionId: string; handId: string }> {
  const resources = stores.map((value) => ({ kind: { case: "memoryStore" as const, value } }));
  const { session } = await sessions.createSession({ agentId, resources });
  const sessionId = session!.id;
  calls += 1;
  const { hand } = await hands.provision({ requestId: `hand ${calls}`, sessionId });
  return { sessionId, handId: hand!.id };
}

async function call(
  handId: string,
  name: string,
  input: object,
): Promise<{ text: string; isError: boolean }> {
  calls += 1;
  const request = {
    handId,
    executionId: `call ${calls}`,
    name,
    input: JSON.stringify(input),
    reason: "a test",
  };
  const { result } = await collect(hands.execute(request));
  return { text: textOfResult(result!), isError: result!.isError };
}

const bash = async (handId: string, command: string) => (await call(handId, "bash", { command })).text.trim();

async function newStore(name: string, texts: Readonly<Record<string, string>> = {}): Promise<string> {
  const { memoryStore } = await memory.createMemoryStore({ name });
  for (const [path, content] of Object.entries(texts))
    await memory.createMemory({ memoryStoreId: memoryStore!.id, path, content });
  return memoryStore!.id;
}

/** What stands in the store, by path. */
async function stored(memoryStoreId: string): Promise<Record<string, string>> {
  const { entries } = await memory.listMemories({ memoryStoreId, view: 2, pageSize: 20 });
  return Object.fromEntries(
    entries.map(({ kind }) => (kind.case === "memory" ? [kind.value.path, kind.value.content ?? ""] : [])),
  );
}

test("a store is a directory of the hand: what a call changes there is in the store when it has its result", async () => {
  const memoryStoreId = await newStore("Team notes", { "/build.md": "use make\n", "/old/x.md": "gone soon" });
  const { sessionId, handId } = await sessionWith([{ memoryStoreId }]);
  expect(await bash(handId, "cd /mnt/memory/team-notes && cat build.md && find . -type f | sort")).toBe(
    "use make\n./build.md\n./old/x.md",
  );
  const change = "echo 'use just' >build.md; rm -r old; mkdir -p a/b; printf 'è' >a/b/c.md; : >empty";
  expect(await bash(handId, `cd /mnt/memory/team-notes; ${change}`)).toBe("(no output)");
  expect(await stored(memoryStoreId)).toEqual({ "/build.md": "use just\n", "/a/b/c.md": "è", "/empty": "" });
  const { memoryVersions } = await memory.listMemoryVersions({ memoryStoreId, sessionId });
  expect(memoryVersions).toHaveLength(4);
  // The file tools reach it too.
  const path = "/mnt/memory/team-notes/tool.md";
  expect((await call(handId, "write", { file_path: path, content: "by a tool" })).isError).toBe(false);
  expect(await stored(memoryStoreId)).toMatchObject({ "/tool.md": "by a tool" });
  expect((await call(handId, "read", { file_path: path })).text).toContain("by a tool");
  // Beside the stores nothing can be written.
  expect(await bash(handId, "touch /mnt/memory/x 2>&1; touch /mnt/x 2>&1")).toMatch(
    /Read-only.*\n.*Read-only/,
  );
});

test("what others change comes in before the next call, and sessions with one store see each other's work", async () => {
  const memoryStoreId = await newStore("shared", { "/a": "1", "/dir/b": "2" });
  const [first, second] = [await sessionWith([{ memoryStoreId }]), await sessionWith([{ memoryStoreId }])];
  await bash(first.handId, "echo one >>/mnt/memory/shared/a");
  expect(await bash(second.handId, "cat /mnt/memory/shared/a")).toBe("1one");
  await memory.deleteMemory({ memoryStoreId, path: "/dir/b" });
  await memory.createMemory({ memoryStoreId, path: "/dir", content: "a memory where a directory was" });
  expect(await bash(first.handId, "cat /mnt/memory/shared/dir")).toBe("a memory where a directory was");
});

test("a conflict is told in the result, the store's text stands, and the other is kept beside it", async () => {
  const memoryStoreId = await newStore("c", { "/notes.md": "old" });
  const { handId } = await sessionWith([{ memoryStoreId }]);
  const wait = "touch begun; while [ ! -e go ]; do sleep 0.05; done";
  const running = bash(handId, `echo mine >/mnt/memory/c/notes.md; ${wait}`);
  // Past the agent's looking: copies do not ask for the stores.
  await eventually(() =>
    copyOut(hands, { handId, path: "begun", reason: "a test" }).then(
      () => true,
      () => false,
    ),
  );
  await memory.updateMemory({ memoryStoreId, path: "/notes.md", content: "theirs" });
  await copyIn(hands, { handId, path: "go", reason: "a test" }, Buffer.from(""));
  const told = await running;
  const aside = `/notes.conflict-${sha256("mine\n").slice(0, 8)}.md`;
  expect(told).toContain(`/mnt/memory/c/notes.md had been changed elsewhere meanwhile`);
  expect(told).toContain(`/mnt/memory/c${aside}`);
  expect(await stored(memoryStoreId)).toEqual({ "/notes.md": "theirs", [aside]: "mine\n" });
  expect(await bash(handId, "cd /mnt/memory/c; cat notes.md *conflict*")).toBe("theirsmine");
  // Merged as it was told to.
  expect(await bash(handId, "cd /mnt/memory/c; cat *conflict* >>notes.md; rm *conflict*")).toBe(
    "(no output)",
  );
  expect(await stored(memoryStoreId)).toEqual({ "/notes.md": "theirsmine\n" });
});

test("a read-only store cannot be changed by processes and tools of the hand", async () => {
  const memoryStoreId = await newStore("rules", { "/rule.md": "be kind" });
  const { handId } = await sessionWith([{ memoryStoreId, access: MemoryAccess.READ_ONLY }]);
  const tries = ["echo x >rule.md", "rm rule.md", "touch new", "chmod 777 .", "mv rule.md r2"];
  for (const attempt of tries)
    expect(await bash(handId, `(cd /mnt/memory/rules; ${attempt}) 2>&1 || echo refused`)).toContain(
      "refused",
    );
  for (const path of ["/mnt/memory/rules/rule.md", "/mnt/memory/rules/deep/new.md"]) {
    const { isError, text } = await call(handId, "write", { file_path: path, content: "x" });
    expect([isError, text]).toEqual([true, expect.stringContaining("permission denied")]);
  }
  expect(await bash(handId, "ln -s /mnt/memory/rules here; ls -A /mnt/memory/rules")).toBe("rule.md");
  expect((await call(handId, "write", { file_path: "here/deep/new.md", content: "x" })).isError).toBe(true);
  expect(await bash(handId, "ls -A /mnt/memory/rules; cat here/rule.md")).toBe("rule.md\nbe kind");
  await memory.updateMemory({ memoryStoreId, path: "/rule.md", content: "be brief" });
  expect(await bash(handId, "cat /mnt/memory/rules/rule.md")).toBe("be brief");
  expect((await memory.getMemoryStore({ memoryStoreId })).memoryStore!.memoryCount).toBe(1);
});

test("processes of the hand read what a read-only store has in directories, also what comes later", async () => {
  const memoryStoreId = await newStore("deep", { "/a/b/rule.md": "be kind" });
  const { handId } = await sessionWith([{ memoryStoreId, access: MemoryAccess.READ_ONLY }]);
  expect(await bash(handId, "cat /mnt/memory/deep/a/b/rule.md")).toBe("be kind");
  await memory.createMemory({ memoryStoreId, path: "/a/c/d.md", content: "be brief" });
  expect(await bash(handId, "cd /mnt/memory/deep; cat $(find . -name d.md); touch a/c/x 2>&1")).toMatch(
    /be brief.*Read-only/s,
  );
});

test("what cannot be a memory is told once and stays in the hand alone", async () => {
  const memoryStoreId = await newStore("odd");
  const { handId } = await sessionWith([{ memoryStoreId }]);
  const make = [
    "head -c 200000 /dev/zero >big",
    "printf '\\377' >binary",
    "ln -s /etc/passwd link",
    "printf 'x\\0' >nul",
    "echo fine >fine",
  ].join("; ");
  const told = await bash(handId, `cd /mnt/memory/odd; ${make}`);
  for (const name of ["big", "binary", "link", "nul"])
    expect(told).toContain(`/mnt/memory/odd/${name} is not saved in the memory store`);
  expect(told).not.toContain("passwd");
  expect(await stored(memoryStoreId)).toEqual({ "/fine": "fine\n" });
  expect(await bash(handId, "ls /mnt/memory/odd | wc -l")).toBe("5");
  await memory.archiveMemoryStore({ memoryStoreId });
  expect(await bash(handId, "echo more >>/mnt/memory/odd/fine")).toContain("archived");
  expect(await stored(memoryStoreId)).toEqual({ "/fine": "fine\n" });
  await memory.deleteMemoryStore({ memoryStoreId });
  expect(await bash(handId, "ls /mnt/memory/odd")).toContain("not there any more");
});

test("the session's log is a file that grows before each call, without what only brains see", async () => {
  const { sessionId, handId } = await sessionWith([]);
  const say = (text: string) =>
    sessions.emitEvents({
      sessionId,
      events: [{ type: "user.message", payload: `{"content":[{"type":"text",\n"text":"${text}"}]}` }],
    });
  await say("first");
  const file = "/mnt/session/events.ndjson";
  const read = async () =>
    (await bash(handId, `cat ${file}`))
      .split("\n")
      .map((line) => JSON.parse(line) as Record<string, unknown>);
  const before = await read();
  expect(before.map(({ position }) => position)).toEqual(before.map((_, n) => n + 1));
  expect(before.map(({ type }) => type)).toContain("user.message");
  expect(before.find(({ type }) => type === "user.message")!.payload).toEqual({
    content: [{ type: "text", text: "first" }],
  });
  for (const event of before) expect(Object.keys(event)).not.toContain("internal");
  await say("second");
  const after = await read();
  expect(after.slice(0, before.length)).toEqual(before);
  expect(JSON.stringify(after.at(-1))).toContain("a test");
  expect(after.filter(({ type }) => type === "user.message")).toHaveLength(2);
  expect(await bash(handId, `echo x >>${file}; rm ${file}; touch /mnt/session/y`)).not.toBe("");
  expect((await read()).length).toBeGreaterThan(after.length);
});

test("stores and log survive parking and a new life of the agent, and nothing is taken for a change that is none", async () => {
  const memoryStoreId = await newStore("kept", { "/a": "1", "/b": "2" });
  const { sessionId, handId } = await sessionWith([{ memoryStoreId }]);
  await bash(handId, "echo 2 >/mnt/memory/kept/a; wc -l </mnt/session/events.ndjson");
  await agent.stop();
  await memory.updateMemory({ memoryStoreId, path: "/b", content: "changed meanwhile" });
  await startAgent();
  const told = await bash(handId, "cd /mnt/memory/kept; cat a b; echo 3 >c");
  expect(told.split("\n").slice(-2)).toEqual(["2", "changed meanwhile"]);
  expect(await stored(memoryStoreId)).toEqual({ "/a": "2\n", "/b": "changed meanwhile", "/c": "3\n" });
  const { memoryVersions } = await memory.listMemoryVersions({ memoryStoreId, sessionId });
  expect(memoryVersions.map(({ path }) => path)).toEqual(["/c", "/a"]);
  const lines = (await bash(handId, "cat /mnt/session/events.ndjson")).split("\n");
  const positions = lines.map((line) => (JSON.parse(line) as { position: number }).position);
  expect(positions).toEqual(positions.map((_, n) => n + 1));
});

test("what a background process changed outlives its process and its agent, and a conflict of that moment is told with the next call", async () => {
  const memoryStoreId = await newStore("bg", { "/a": "1", "/b": "1" });
  const { handId } = await sessionWith([{ memoryStoreId }]);
  const later =
    "while [ ! -e go ]; do sleep 0.05; done; echo 2 >/mnt/memory/bg/a; echo 2 >/mnt/memory/bg/b; touch done";
  await bash(handId, `(${later}) >/dev/null 2>&1 &`);
  await memory.updateMemory({ memoryStoreId, path: "/b", content: "theirs" });
  await copyIn(hands, { handId, path: "go", reason: "a test" }, Buffer.from(""));
  const isDone = () =>
    copyOut(hands, { handId, path: "done", reason: "a test" }).then(
      () => true,
      () => false,
    );
  await eventually(isDone);
  await agent.stop();
  await startAgent();
  const told = await bash(handId, "cat /mnt/memory/bg/b");
  expect(told).toContain(`/mnt/memory/bg/b had been changed elsewhere meanwhile`);
  expect(told.endsWith("theirs")).toBe(true);
  const aside = `/b.conflict-${sha256("2\n").slice(0, 8)}`;
  expect(await stored(memoryStoreId)).toEqual({ "/a": "2\n", "/b": "theirs", [aside]: "2\n" });
});

test("a hand that passes to another session takes nothing of the first one's memory along (H6)", async () => {
  const mine = await newStore("mine", { "/secret": "of the first" });
  const shared = await newStore("both", { "/s": "shared" });
  const first = await sessionWith([{ memoryStoreId: mine }, { memoryStoreId: shared }]);
  await bash(first.handId, "cat /mnt/memory/mine/secret");
  const resources = [{ kind: { case: "memoryStore" as const, value: { memoryStoreId: shared } } }];
  const { session } = await sessions.createSession({ agentId, resources });
  calls += 1;
  await hands.handOver({ requestId: `over ${calls}`, handId: first.handId, toSessionId: session!.id });
  const told = await bash(
    first.handId,
    "ls /mnt/memory/mine; cat /mnt/memory/both/s; echo more >>/mnt/memory/both/s",
  );
  expect(told).toContain("/mnt/memory/mine: the memory store is not there any more");
  expect(told).not.toContain("secret");
  expect(told.endsWith("shared")).toBe(true);
  const { memoryVersions } = await memory.listMemoryVersions({
    memoryStoreId: shared,
    sessionId: session!.id,
  });
  expect(memoryVersions).toHaveLength(1);
  const lines = await bash(first.handId, "cat /mnt/session/events.ndjson");
  expect(lines).toContain("hand.handed_over");
  expect(lines).not.toContain("mine/secret");
  expect(await stored(mine)).toEqual({ "/secret": "of the first" });
});

test("a store's directory that somebody removed from the machine is filled anew, and nothing is deleted for it", async () => {
  const memoryStoreId = await newStore("safe", { "/a": "1", "/b": "2" });
  const { handId } = await sessionWith([{ memoryStoreId }]);
  const files = (await bash(handId, "pwd")).replace(/\/work$/, "");
  await agent.stop();
  await rm(`${files}/mnt`, { recursive: true });
  await startAgent();
  expect((await bash(handId, "cat /mnt/memory/safe/*")).endsWith("12")).toBe(true);
  expect(await bash(handId, "head -n 1 /mnt/session/events.ndjson")).toContain('"position":1,');
  expect(await stored(memoryStoreId)).toEqual({ "/a": "1", "/b": "2" });
});

test("a call whose agent is cut off when it ends says that its changes are not saved, and the next one saves them", async () => {
  const memoryStoreId = await newStore("cut", { "/a": "1" });
  const { handId } = await sessionWith([{ memoryStoreId }]);
  const work = (await bash(handId, "pwd")).trim();
  const running = bash(
    handId,
    "touch begun; while [ ! -e go ]; do sleep 0.05; done; echo 2 >/mnt/memory/cut/a",
  );
  await eventually(() => existsSync(`${work}/begun`));
  // An agent that stopped may have had too little time for an earlier hand.
  warnings.length = 0;
  // Nobody answers there.
  relay.aim(1);
  relay.cut();
  await writeFile(`${work}/go`, "");
  await eventually(() => warnings.includes("the mounts of a hand are not up to date"));
  relay.aim(server.port);
  expect(await running).toContain("[/mnt: changes are not saved yet and will be with the next call");
  expect(await stored(memoryStoreId)).toEqual({ "/a": "1" });
  expect(await bash(handId, "cat /mnt/memory/cut/a")).toBe("2");
  expect(await stored(memoryStoreId)).toEqual({ "/a": "2\n" });
  const known = `${dir.path}/mounts/${handId}.json`;
  expect(existsSync(known)).toBe(true);
  await hands.releaseHand({ handId });
  await eventually(() => !existsSync(known));
});

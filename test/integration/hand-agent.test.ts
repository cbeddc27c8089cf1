import { randomBytes } from "node:crypto";
import { readFile, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { HandAgent } from "../../hand-agent/hand-agent.ts";
import { TendonError } from "../../kit/errors.ts";
import { ExecutionOutcome, type ExecutionResult, HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "../kit/eventually.ts";
import { agentInProcess, makeAgentDir } from "../kit/hand-agent-program.ts";
import { promised } from "../kit/promised.ts";
import {
  type ScriptedHandServer,
  type ScriptedOptions,
  startScriptedHandServer,
} from "../kit/scripted-hand-server.ts";

let dir: Awaited<ReturnType<typeof makeAgentDir>>;
const cleanups: (() => Promise<unknown> | unknown)[] = [];

beforeEach(async () => {
  dir = await makeAgentDir();
});
afterEach(async () => {
  for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) await cleanup();
  await dir.remove();
});

async function startServer(options: ScriptedOptions = {}): Promise<ScriptedHandServer> {
  const server = await startScriptedHandServer(options);
  cleanups.push(() => server.close());
  return server;
}

async function startAgent(
  server: { url: string },
  options: Partial<Parameters<typeof agentInProcess>[0]> = {},
): Promise<HandAgent> {
  const agent = agentInProcess({ url: server.url, dataDir: dir.path, drainMs: 200, ...options });
  cleanups.push(() => agent.stop());
  await agent.start();
  return agent;
}

/** An agent that is connected and has one hand. */
async function startWithHand(
  options: ScriptedOptions = {},
  agentOptions: Parameters<typeof startAgent>[1] = {},
) {
  const server = await startServer(options);
  const agent = await startAgent(server, agentOptions);
  await server.connection(0);
  expect((await server.provision("hand_1")).reason).toBe("");
  return { server, agent };
}

function textOf(result: ExecutionResult): string {
  return (JSON.parse(result.content) as { text: string }[]).map(({ text }) => text).join("\n");
}

const outcome = (result: ExecutionResult) => ExecutionOutcome[result.outcome];

test("a first start enrols with the join token; the next one needs none and is the same agent", async () => {
  const server = await startServer();
  const agent = await startAgent(server, { labels: { zone: "a" }, capacity: 3 });
  const { greeting } = await server.connection(0);
  expect(greeting).toMatchObject({
    protocolVersion: 1,
    build: "test",
    capacityHands: 3,
    labels: { zone: "a" },
  });
  expect(greeting.drivers[0]).toMatchObject({ name: "process", available: true });
  expect(greeting.drivers[0]?.tools.map(({ name }) => name)).toContain("bash");
  expect((await stat(join(dir.path, "agent.key"))).mode & 0o777).toBe(0o600);
  expect((await stat(join(dir.path, "journal.log"))).mode & 0o777).toBe(0o600);
  expect(await readFile(join(dir.path, "identity.json"), "utf8")).not.toContain(server.joinToken);
  await agent.stop();
  await startAgent(server, { joinToken: undefined });
  const again = await server.connection(1);
  expect(again.greeting.journalId).toBe(greeting.journalId);
  expect(server.agents.size).toBe(1);
});

test("without an identity and a token, or with a wrong token, start fails with one line", async () => {
  const server = await startServer();
  await expect(startAgent(server, { joinToken: undefined })).rejects.toThrow(/no join token/);
  await expect(startAgent(server, { joinToken: "jt_wrong" })).rejects.toMatchObject({
    exitCode: 4,
    // The advice stands there once, whoever gives it.
    message: expect.stringMatching(/^the server refuses the join token (?!.*make .*make ).*; make a new one/),
  });
});

test("a revoked agent gives up with its own exit code", async () => {
  const server = await startServer();
  const agent = await startAgent(server);
  const first = await server.connection(0);
  server.refuseConnect = new TendonError("HAND_AGENT_REVOKED", "revoked");
  first.end(server.refuseConnect);
  await expect(agent.ended).rejects.toMatchObject({
    exitCode: 3,
    message: expect.stringContaining("was revoked"),
  });
  expect(server.attempts).toBe(1);
});

test("two agents do not work in one data directory", async () => {
  const server = await startServer();
  await startAgent(server);
  await expect(startAgent(server)).rejects.toThrow(
    /another hand agent \(process \d+\) uses the data directory/,
  );
});

test("a call runs in its hand, streams its output and ends in one stored result", async () => {
  const { server } = await startWithHand();
  server.bash("sesn_1/exec_1", "hand_1", "echo hello; cd /tmp; x=5");
  const result = await server.result("sesn_1/exec_1");
  expect([outcome(result), result.isError, textOf(result)]).toEqual(["COMPLETED", false, "hello"]);
  expect(server.outputOf("sesn_1/exec_1").toString()).toBe("hello\n");
  expect(result.outputBytes).toBe(6n);
  server.bash("sesn_1/exec_2", "hand_1", "echo $x $PWD");
  expect(textOf(await server.result("sesn_1/exec_2"))).toBe("5 /tmp");
});

test("provisioning the same hand again returns it; releasing it removes it, twice too", async () => {
  const { server } = await startWithHand();
  const again = await server.provision("hand_1");
  expect(again).toMatchObject({
    reason: "",
    hand: { handId: "hand_1", state: HandState.READY, driver: "process" },
  });
  expect((await server.command("release", "hand_1")).reason).toBe("");
  expect((await server.command("release", "hand_1")).reason).toBe("");
  await expect(stat(join(dir.path, "hands", "hand_1"))).rejects.toThrow();
  server.bash("sesn_1/exec_1", "hand_1", "echo no");
  const result = await server.result("sesn_1/exec_1");
  expect([outcome(result), result.failure?.reason]).toEqual(["NOT_STARTED", "HAND_LOST"]);
});

test("what a driver cannot do and what goes beyond the capacity is refused with its reason", async () => {
  const { server } = await startWithHand({}, { capacity: 2 });
  const refused = await server.provision("hand_2", { environment: { image: "debian" } } as never);
  expect(refused).toMatchObject({
    reason: "PROVISION_FAILED",
    message: expect.stringContaining("takes no image"),
  });
  expect(await server.provision("hand_3", { driver: "quantum" })).toMatchObject({
    reason: "PROVISION_FAILED",
  });
  const failing = { environment: { setup: ["echo fine", "echo broken >&2; exit 3"] } } as never;
  expect((await server.provision("hand_4", failing)).message).toContain(
    "setup command 2 ended with 3: broken",
  );
  expect((await server.provision("hand_5")).reason).toBe("");
  expect(await server.provision("hand_6")).toMatchObject({ reason: "LIMIT_EXCEEDED" });
});

test("a parked hand comes back with its files, and the next call is told that its shell is new (H5)", async () => {
  const { server } = await startWithHand();
  server.bash("s/1", "hand_1", "echo kept > file; x=1");
  await server.result("s/1");
  expect((await server.command("park", "hand_1")).hand?.state).toBe(HandState.PARKED);
  server.bash("s/2", "hand_1", "cat file; echo x=$x");
  const text = textOf(await server.result("s/2"));
  expect(text).toContain("its shell is new");
  expect(text).toContain("kept\nx=");
});

test("a call of an older owner is refused, also after the agent has started again (H6)", async () => {
  const { server, agent } = await startWithHand();
  server.start("s/1", "hand_1", "bash", { command: "echo new" }, { ownerNumber: 3 });
  expect((await server.result("s/1")).isError).toBe(false);
  await agent.stop();
  await startAgent(server);
  await server.connection(1);
  server.start("s/2", "hand_1", "bash", { command: "echo old" }, { ownerNumber: 2 });
  const result = await server.result("s/2");
  expect([outcome(result), result.failure?.reason]).toEqual(["NOT_STARTED", "OWNER_CHANGED"]);
});

test("the same start again runs nothing twice, before and after its result is stored (X1)", async () => {
  const { server } = await startWithHand();
  const command = "echo run >> count; sleep 0.2; wc -l < count";
  for (let i = 0; i < 5; i++) server.bash("s/1", "hand_1", command);
  expect(textOf(await server.result("s/1")).trim()).toBe("1");
  server.bash("s/1", "hand_1", command);
  server.bash("s/2", "hand_1", "wc -l < count");
  expect(textOf(await server.result("s/2")).trim()).toBe("1");
});

test("a call that was cancelled before it came never starts (X1c)", async () => {
  const { server, agent } = await startWithHand();
  server.notStoring.add("s/1");
  server.current.say({
    case: "stopExecution",
    value: { executionKey: "s/1", reason: "the user stopped it" } as never,
  });
  await eventually(() => server.executions.get("s/1")?.resultsReceived === 1);
  server.bash("s/1", "hand_1", "touch ran");
  await agent.stop();
  server.notStoring.clear();
  await startAgent(server);
  await server.connection(1);
  server.bash("s/1", "hand_1", "touch ran");
  const result = await server.result("s/1");
  expect([outcome(result), result.isError]).toEqual(["NOT_STARTED", true]);
  server.bash("s/2", "hand_1", "ls");
  expect(textOf(await server.result("s/2"))).not.toContain("ran");
});

test("cancelling ends a running call within 3 s and the result says so (X4)", async () => {
  const { server } = await startWithHand();
  server.bash("s/1", "hand_1", "echo begun; sleep 60");
  await eventually(() => server.outputOf("s/1").toString() === "begun\n");
  server.current.say({ case: "stopExecution", value: { executionKey: "s/1", reason: "interrupt" } as never });
  const result = await server.result("s/1", promised(3_000));
  expect([outcome(result), result.isError]).toEqual(["CANCELLED", true]);
  expect(textOf(result)).toContain("begun");
});

test("a call is cut at its time limit", async () => {
  const { server } = await startWithHand();
  server.bash("s/1", "hand_1", "echo begun; sleep 60", { timeoutMs: 300 });
  const result = await server.result("s/1", promised(4_000));
  expect(outcome(result)).toBe("TIMED_OUT");
});

test("an input that is too large for its start message comes on the stream", async () => {
  const { server } = await startWithHand();
  const content = randomBytes(300_000).toString("base64");
  server.start("s/1", "hand_1", "write", { file_path: "big", path: "big", content }, { late: true });
  expect((await server.result("s/1")).isError).toBe(false);
  server.bash("s/2", "hand_1", "wc -c < big");
  expect(textOf(await server.result("s/2")).trim()).toBe(String(content.length));
});

/** Waits for a file in the hand's directory: the call goes on for as long as the test wants. */
const until = (file: string) => `until test -e ${file}; do sleep 0.05; done`;

test("a call outlives its connection: every byte comes once, in order, across cuts (X2, R11)", async () => {
  const { server } = await startWithHand();
  const lines = 60_000;
  server.bash(
    "s/1",
    "hand_1",
    `for i in $(seq 1 20); do seq $(( (i-1)*3000+1 )) $(( i*3000 )); sleep 0.1; done; ${until("go")}`,
  );
  for (const bytes of [1_000, 60_000, 200_000]) {
    await eventually(() => server.outputOf("s/1").length > bytes);
    const before = server.connections.length;
    server.cut();
    const connection = await server.connection(before);
    expect(connection.greeting.executions).toMatchObject([{ executionKey: "s/1" }]);
  }
  await writeFile(join(dir.path, "hands", "hand_1", "work", "go"), "");
  await server.result("s/1", 60_000);
  const expected = Array.from({ length: lines }, (_, i) => `${i + 1}\n`).join("");
  expect(server.outputOf("s/1").toString() === expected).toBe(true);
  expect(server.executions.get("s/1")?.opens.length).toBeGreaterThanOrEqual(4);
});

test("a result that was not stored is offered again on the next connection", async () => {
  const { server } = await startWithHand();
  server.notStoring.add("s/1");
  server.bash("s/1", "hand_1", "echo once");
  await eventually(() => server.executions.get("s/1")?.resultsReceived === 1);
  server.cut();
  const connection = await server.connection(1);
  expect(connection.greeting.executions).toMatchObject([
    { executionKey: "s/1", running: false, outputBytes: 5n },
  ]);
  server.notStoring.clear();
  server.cut();
  expect(textOf(await server.result("s/1"))).toBe("once");
  await eventually(async () => {
    server.cut();
    return (await server.connection(server.connections.length)).greeting.executions.length === 0;
  });
});

test("a call that the server does not know is ended and dropped", async () => {
  const { server } = await startWithHand();
  server.bash("s/1", "hand_1", "sleep 60");
  await eventually(() => server.executions.has("s/1"));
  server.unknown.add("s/1");
  server.cut();
  await server.connection(1);
  server.bash("s/2", "hand_1", "echo free");
  expect(textOf(await server.result("s/2"))).toContain("free");
});

test("a flood that nobody reads delays no other call and no heartbeat (X5)", async () => {
  const { server } = await startWithHand({ heartbeatEveryMs: 100 });
  await server.provision("hand_2");
  server.readAtMost.set("s/flood", 1);
  server.bash("s/flood", "hand_1", "head -c 100000000 /dev/zero");
  await eventually(() => server.outputOf("s/flood").length > 0);
  const beats = server.current.heartbeats;
  for (let i = 0; i < 5; i++) {
    server.bash(`s/${i}`, "hand_2", "echo quick");
    expect(textOf(await server.result(`s/${i}`))).toContain("quick");
  }
  await eventually(() => server.current.heartbeats >= beats + 3);
  server.readAtMost.clear();
  expect((await server.result("s/flood", 60_000)).outputBytes).toBe(100_000_000n);
  expect(server.executions.get("s/flood")?.outputBytes).toBe(100_000_000);
});

test("beyond its bound the agent refuses calls with a result", async () => {
  const { server } = await startWithHand();
  const hands = ["hand_1", "hand_2", "hand_3", "hand_4", "hand_5"];
  for (const hand of hands) await server.provision(hand);
  const count = 257;
  for (let i = 0; i < count; i++) server.bash(`s/${i}`, hands[i % hands.length]!, "sleep 60");
  const refused = await server.result(`s/${count - 1}`);
  expect([outcome(refused), refused.failure?.reason]).toEqual(["NOT_STARTED", "LIMIT_EXCEEDED"]);
  for (const hand of hands) expect((await server.command("release", hand)).reason).toBe("");
  await eventually(() =>
    Array.from({ length: count }, (_, i) => `s/${i}`).every((key) => server.executions.get(key)?.result),
  );
  expect(server.executions.get("s/0")?.result?.isError).toBe(true);
});

test("processes that a call leaves behind are reported with its hand", async () => {
  const { server } = await startWithHand();
  server.bash("s/exec_1", "hand_1", "sleep 300 >/dev/null 2>&1 & echo started");
  await server.result("s/exec_1");
  const report = await eventually(() =>
    server.current.handReports().find(({ leftProcesses }) => leftProcesses.length > 0),
  );
  expect(report).toMatchObject({ handId: "hand_1", leftProcesses: [{ executionId: "exec_1" }] });
});

test("files are copied into and out of a hand", async () => {
  const { server } = await startWithHand();
  const bytes = randomBytes(3_000_000);
  const chunks = [
    bytes.subarray(0, 1_000_000),
    bytes.subarray(1_000_000, 2_000_000),
    bytes.subarray(2_000_000),
  ];
  server.transfers.set("in", { send: chunks, received: [], end: undefined });
  const command = { handId: "hand_1", path: "copied", tar: false };
  server.current.say({
    case: "startTransfer",
    value: { ...command, transferId: "in", intoHand: true } as never,
  });
  await eventually(() => server.transfers.get("in")?.end);
  server.transfers.set("out", { send: [], received: [], end: undefined });
  server.current.say({
    case: "startTransfer",
    value: { ...command, transferId: "out", intoHand: false } as never,
  });
  const out = await eventually(() => server.transfers.get("out")?.end);
  expect(out).toMatchObject({ reason: "", sha256: server.transfers.get("in")?.end?.sha256 });
  expect(Buffer.concat(server.transfers.get("out")!.received).equals(bytes)).toBe(true);
});

test("cut off for too long, the agent ends what runs in its hands and keeps their files; they come back as parked (H5)", async () => {
  const { server } = await startWithHand({}, { keepOfflineMs: 400 });
  server.bash("s/exec_1", "hand_1", "echo kept > file; sleep 300 >/dev/null 2>&1 & echo $!");
  await server.result("s/exec_1");
  server.refuseConnect = new TendonError("UNAVAILABLE", "not now");
  const { length } = server.connections;
  server.cut();
  await eventually(
    async () => JSON.parse(await readFile(join(dir.path, "hands.json"), "utf8")).hands[0].state === "parked",
    {
      withinMs: 60_000,
    },
  );
  server.refuseConnect = undefined;
  const { greeting } = await server.connection(length);
  expect(greeting.hands).toMatchObject([{ handId: "hand_1", state: HandState.PARKED }]);
  server.bash("s/exec_2", "hand_1", "cat file; pgrep -x sleep | wc -l");
  expect(textOf(await server.result("s/exec_2"))).toContain("kept\n0");
});

test("a hand that is named unowned twice, a period apart, is destroyed; once is not enough (H1)", async () => {
  const { server } = await startWithHand({}, { reaperPeriodMs: 1_500 });
  const name = () => server.current.say({ case: "unownedHands", value: { handIds: ["hand_1"] } as never });
  name();
  name();
  server.bash("s/1", "hand_1", "echo alive");
  expect(textOf(await server.result("s/1"))).toBe("alive");
  name();
  await eventually(async () => {
    name();
    return (await stat(join(dir.path, "hands", "hand_1")).catch(() => undefined)) === undefined;
  });
});

test("nothing is reaped for another installation (H1)", async () => {
  const { server } = await startWithHand({}, { reaperPeriodMs: 0 });
  server.installationId = "inst_restored";
  server.cut();
  const connection = await server.connection(1);
  for (let i = 0; i < 3; i++)
    connection.say({ case: "unownedHands", value: { handIds: ["hand_1"] } as never });
  server.bash("s/1", "hand_1", "echo alive");
  expect(textOf(await server.result("s/1"))).toBe("alive");
});

test("stopping lets calls finish, hands new ones back to be sent again, and keeps the hands for the next start", async () => {
  const { server, agent } = await startWithHand({}, { drainMs: 60_000 });
  server.bash("s/1", "hand_1", "echo kept > file; sleep 0.5; echo done");
  await eventually(() => server.executions.has("s/1"));
  const stopped = agent.stop();
  await eventually(() => server.current.heard.some(({ case: name }) => name === "draining"));
  server.bash("s/2", "hand_1", "echo late");
  expect(textOf(await server.result("s/1"))).toBe("done");
  await stopped;
  await startAgent(server);
  const connection = await server.connection(1);
  expect(connection.greeting.hands).toMatchObject([{ handId: "hand_1", state: HandState.READY }]);
  expect(connection.greeting.executions.map(({ executionKey }) => executionKey)).not.toContain("s/2");
  server.bash("s/2", "hand_1", "echo late");
  expect(textOf(await server.result("s/2"))).toContain("late");
  server.bash("s/3", "hand_1", "cat file");
  expect(textOf(await server.result("s/3"))).toContain("kept");
});

test("a call that does not finish in time is ended by the stop, and its result is not lost", async () => {
  const { server, agent } = await startWithHand();
  server.bash("s/1", "hand_1", "sleep 60");
  await eventually(() => server.executions.has("s/1"));
  const before = performance.now();
  await agent.stop();
  expect(performance.now() - before).toBeLessThan(promised(5_000));
  expect(outcome(await server.result("s/1"))).toBe("CANCELLED");
});

test("a server that drains is left, and the agent is back on its own", async () => {
  const { server } = await startWithHand();
  server.current.say({ case: "draining", value: { grace: { seconds: 1n, nanos: 0 } } as never });
  await server.connection(1);
  await eventually(() => server.connections[0]?.isOpen === false);
});

test("a server with a new database takes the agent in again when it has a join token", async () => {
  const { server } = await startWithHand();
  server.agents.clear();
  server.installationId = "inst_new";
  server.cut();
  const connection = await server.connection(1);
  expect(connection.greeting.installationId).toBe("inst_new");
});

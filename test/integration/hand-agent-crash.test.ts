import { execFile } from "node:child_process";
import { readFile, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterEach, beforeEach, expect, test } from "vitest";
import { ExecutionOutcome, type ExecutionResult, HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "../kit/eventually.ts";
import { type AgentProgram, makeAgentDir, startAgentProgram, tokenFile } from "../kit/hand-agent-program.ts";
import { type ScriptedHandServer, startScriptedHandServer } from "../kit/scripted-hand-server.ts";

let dir: Awaited<ReturnType<typeof makeAgentDir>>;
let server: ScriptedHandServer;
const programs: AgentProgram[] = [];

beforeEach(async () => {
  dir = await makeAgentDir();
  server = await startScriptedHandServer();
});
afterEach(async () => {
  for (const { process: child, ended } of programs.splice(0)) {
    child.kill("SIGTERM");
    await ended;
  }
  await server.close();
  await dir.remove();
});

async function startProgram(
  args: readonly string[] = [],
  env: Record<string, string> = {},
): Promise<AgentProgram> {
  const token = await tokenFile(dir.path, server.joinToken);
  const program = startAgentProgram(["--url", server.url, ...args], {
    TENDON_HAND_AGENT_DATA_DIR: join(dir.path, "agent"),
    TENDON_JOIN_TOKEN_FILE: token,
    TENDON_LOG_LEVEL: "warn",
    ...env,
  });
  programs.push(program);
  return program;
}

async function kill(program: AgentProgram): Promise<void> {
  program.process.kill("SIGKILL");
  await program.ended;
  programs.splice(programs.indexOf(program), 1);
}

function textOf(result: ExecutionResult): string {
  return (JSON.parse(result.content) as { text: string }[]).map(({ text }) => text).join("\n");
}

const outcome = (result: ExecutionResult) => ExecutionOutcome[result.outcome];

test("a killed agent runs nothing twice and says that the outcome is unknown (R1, X1)", async () => {
  const program = await startProgram();
  await server.connection(0);
  await server.provision("hand_1");
  server.bash("s/1", "hand_1", "echo run >> count; sleep 60; echo end >> count");
  server.bash("s/done", "hand_1", "echo never mind");
  await eventually(() => server.executions.has("s/1"));
  const count = join(dir.path, "agent", "hands", "hand_1", "work", "count");
  await eventually(async () => (await readFile(count, "utf8")) === "run\n");
  await kill(program);
  await startProgram();
  const connection = await server.connection(1);
  expect(
    connection.greeting.executions.map(({ executionKey, running }) => [executionKey, running]),
  ).toContainEqual(["s/1", false]);
  expect(connection.greeting.hands).toMatchObject([{ handId: "hand_1", state: HandState.READY }]);
  server.bash("s/1", "hand_1", "echo run >> count");
  const result = await server.result("s/1");
  expect([outcome(result), result.isError]).toEqual(["UNKNOWN", true]);
  expect(textOf(result)).toContain("outcome of this call is unknown");
  server.bash("s/2", "hand_1", "cat count; pgrep -c sleep");
  expect(textOf(await server.result("s/2"))).toMatch(/run\n0/);
});

test("killed at any moment around its start, a call runs at most once (R1)", async () => {
  const program = await startProgram();
  await server.connection(0);
  await server.provision("hand_1");
  const count = join(dir.path, "agent", "hands", "hand_1", "work", "count");
  let agent = program;
  for (const afterMs of [0, 1, 2, 4, 8, 15]) {
    const key = `s/${afterMs}`;
    const connections = server.connections.length;
    server.bash(key, "hand_1", `echo ${key} >> count`);
    // The moment itself is what is being varied here.
    await new Promise((resolve) => setTimeout(resolve, afterMs));
    await kill(agent);
    agent = await startProgram();
    await server.connection(connections);
    // What a server does: the same start again, which runs only what has never run.
    server.bash(key, "hand_1", `echo ${key} >> count`);
    const result = await server.result(key);
    expect(["COMPLETED", "UNKNOWN"]).toContain(outcome(result));
    const lines = (await readFile(count, "utf8").catch(() => "")).split("\n").filter((line) => line === key);
    expect(lines.length).toBeLessThanOrEqual(1);
    if (outcome(result) === "COMPLETED") expect(lines.length).toBe(1);
  }
});

test("a result that was not stored when the agent was killed is offered by the next one", async () => {
  const program = await startProgram();
  await server.connection(0);
  await server.provision("hand_1");
  server.notStoring.add("s/1");
  server.bash("s/1", "hand_1", "echo the answer");
  await eventually(() => server.executions.get("s/1")?.resultsReceived === 1);
  await kill(program);
  server.notStoring.clear();
  await startProgram();
  const result = await server.result("s/1");
  expect([outcome(result), textOf(result)]).toEqual(["COMPLETED", "the answer"]);
});

test("an agent that lost its disk comes back with another journal (X1)", async () => {
  const program = await startProgram();
  const first = await server.connection(0);
  await kill(program);
  await rm(join(dir.path, "agent", "journal.log"));
  const again = await startProgram();
  const second = await server.connection(1);
  expect(second.greeting.journalId).not.toBe(first.greeting.journalId);
  await kill(again);
  await truncate(join(dir.path, "agent", "journal.log"), 10);
  await startProgram();
  expect((await server.connection(2)).greeting.journalId).not.toBe(second.greeting.journalId);
});

test("SIGTERM ends it with 0 and leaves no process of a hand", async () => {
  const program = await startProgram();
  await server.connection(0);
  await server.provision("hand_1");
  server.bash("s/1", "hand_1", "sleep 345.678 >/dev/null 2>&1 & echo started");
  await server.result("s/1");
  program.process.kill("SIGTERM");
  expect(await program.ended).toBe(0);
  const { stdout } = await promisify(execFile)("ps", ["-eo", "args"]);
  expect(stdout).not.toContain("345.678");
});

test("neither hand nor log sees the join token (S2)", async () => {
  const program = await startProgram([], { TENDON_LOG_LEVEL: "trace" });
  await server.connection(0);
  await server.provision("hand_1");
  server.bash("s/1", "hand_1", "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'");
  const text = textOf(await server.result("s/1"));
  expect(text).toContain("TENDON_HAND_ID");
  expect(text + program.stderr()).not.toContain(server.joinToken);
});

test("mistakes of its user end in one line and a status that is not 0", async () => {
  const end = async (args: string[], env: Record<string, string> = {}) => {
    const program = startAgentProgram(args, { TENDON_HAND_AGENT_DATA_DIR: join(dir.path, "agent"), ...env });
    return { code: await program.ended, lines: program.stderr().trim().split("\n") };
  };
  expect(await end(["--nonsense"])).toMatchObject({
    code: 2,
    lines: [expect.stringMatching(/^hand-agent: .*--nonsense/)],
  });
  expect(await end([], { TENDON_HAND_AGENT_LABLES: "a=b" })).toMatchObject({
    code: 2,
    lines: [expect.stringContaining("did you mean TENDON_HAND_AGENT_LABELS?")],
  });
  expect(await end(["--url", server.url])).toMatchObject({
    code: 1,
    lines: [expect.stringContaining("no join token")],
  });
  const wrong = await end(["--url", server.url, "--token", "jt_wrong"]);
  expect([wrong.code, wrong.lines.filter((line) => line.startsWith("hand-agent:")).length]).toEqual([4, 1]);
  await writeFile(join(dir.path, "file"), "");
  const unwritable = { TENDON_HAND_AGENT_DATA_DIR: join(dir.path, "file", "below") };
  expect(await end([], unwritable)).toMatchObject({
    code: 1,
    lines: [expect.stringContaining("cannot write")],
  });
});

test("it says what it would run with, what it is, and what hands the machine can make", async () => {
  const env = { TENDON_HAND_AGENT_DATA_DIR: join(dir.path, "agent"), TENDON_JOIN_TOKEN: "jt_visible" };
  const say = async (option: string) => {
    const program = startAgentProgram([option], env);
    expect(await program.ended).toBe(0);
    return program.stdout();
  };
  const config = await say("--print-config");
  expect(config).toContain("TENDON_HAND_AGENT_CAPACITY=64");
  expect(config).not.toContain("jt_visible");
  expect(await say("--version")).toMatch(/^\d+\.\d+\.\d+/);
  expect(await say("--help")).toContain("opens no port");
  const doctor = JSON.parse(await say("--doctor"));
  expect(doctor.drivers).toContainEqual(expect.objectContaining({ name: "process", available: true }));
});

/** MCP servers beside a hand agent as hands: the built program with a file that names them, at a real hands area. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ExecutionOutcome, HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "../kit/eventually.ts";
import { collectExecution, textOfResult } from "../kit/execution-stream.ts";
import { type AgentProgram, startAgentProgram, tokenFile } from "../kit/hand-agent-program.ts";
import { HandRig, type RigSession } from "../kit/hand-rig.ts";
import { everythingServer } from "../kit/mcp-servers.ts";
import { repository } from "../kit/owner-process.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { markedProcesses } from "../kit/process-list.ts";

let database: TestDatabase;
let rig: HandRig;
let dir: string;
let agent: AgentProgram;

beforeAll(async () => {
  database = await createTestDatabase();
  rig = new HandRig({ pool: database.pool() });
  await rig.start();
  dir = mkdtempSync(join(tmpdir(), "tendon-mcp-hands-"));
  const { name: _, ...everything } = everythingServer("everything");
  const trouble = {
    command: process.execPath,
    args: [join(repository, "test/kit/troublesome-mcp-server.mjs")],
  };
  const servers = { everything, trouble, broken: { command: "/nowhere/server" } };
  writeFileSync(join(dir, "mcp.json"), JSON.stringify({ mcpServers: servers }), { mode: 0o600 });
  await startAgent();
});
afterAll(async () => {
  agent?.process.kill("SIGTERM");
  await agent?.ended;
  await rig?.stop();
  await database?.drop();
  rmSync(dir, { recursive: true });
});

async function startAgent(): Promise<void> {
  const token = await tokenFile(dir, await rig.joinToken());
  agent = startAgentProgram(["--url", rig.url, "--data-dir", join(dir, "agent"), "--token-file", token], {
    TENDON_HAND_AGENT_ISOLATION: "none",
    TENDON_HAND_AGENT_MCP_FILE: join(dir, "mcp.json"),
  });
  await eventually(() => rig.area.connectedAgents() === 1, { withinMs: 60_000 });
}

const sessionOf = async (driver: string, more: Record<string, unknown> = {}) =>
  rig.session(await rig.environment({ driver, ...more }));

async function call(session: RigSession, name: string, input: Record<string, unknown> = {}) {
  const { result } = await collectExecution(rig.harness.execute(await session.toolUse(name, input)));
  const { isError, outcome } = result!;
  return { text: textOfResult(result!), isError, outcome };
}

test("the agent tells which servers it has, their tools, and why one cannot be", async () => {
  const [listed] = (await rig.admin.listHandAgents({})).handAgents;
  const drivers = Object.fromEntries(listed!.drivers.map((driver) => [driver.name, driver]));
  expect(drivers["mcp-everything"]).toMatchObject({ available: true, capabilities: ["park", "own_tools"] });
  expect(drivers["mcp-broken"]).toMatchObject({
    available: false,
    detail: expect.stringContaining("is not there"),
  });
});

test("a session's calls run in a server of its own, and end up in its log; releasing ends the server", async () => {
  const session = await sessionOf("mcp-everything");
  expect(await call(session, "echo", { message: "hi" })).toMatchObject({ text: "Echo: hi", isError: false });
  expect(await session.events("agent.tool_result")).toHaveLength(1);
  const other = await sessionOf("mcp-trouble");
  expect(await call(other, "count")).toMatchObject({ text: "1" });
  expect(await call(other, "count")).toMatchObject({ text: "2" });
  const [hand] = (await rig.admin.listHands({ sessionId: other.id })).hands;
  expect(HandState[hand!.state]).toBe("READY");
  expect(markedProcesses("mcp-trouble", hand!.id)).toHaveLength(1);
  await rig.admin.releaseHand({ handId: hand!.id });
  await eventually(() => markedProcesses("mcp-trouble", hand!.id).length === 0);
});

test("an environment decides nothing of what is started, and a tool that the server lacks is an error", async () => {
  const withVariables = await sessionOf("mcp-trouble", { variables: { NODE_OPTIONS: "--inspect" } });
  expect((await call(withVariables, "count")).text).toMatch(/take no variables \(NODE_OPTIONS\)/);
  const withSetup = await sessionOf("mcp-trouble", { setup: ["touch /tmp/x"] });
  expect((await call(withSetup, "count")).text).toMatch(/tools of its own, and no shell/);
  const session = await sessionOf("mcp-trouble");
  expect(await call(session, "bash", { command: "id" })).toMatchObject({ isError: true });
});

test("an agent that is killed leaves a call unknown and no server; its next life starts one and says so", async () => {
  const session = await sessionOf("mcp-trouble");
  expect(await call(session, "count")).toMatchObject({ text: "1" });
  const [hand] = (await rig.admin.listHands({ sessionId: session.id })).hands;
  const hanging = call(session, "hang", { child: true });
  await eventually(() => markedProcesses("mcp-trouble", hand!.id).length === 2);
  agent.process.kill("SIGKILL");
  await agent.ended;
  await startAgent();
  expect(await hanging).toMatchObject({ outcome: ExecutionOutcome.UNKNOWN, isError: true });
  await eventually(() => markedProcesses("mcp-trouble", hand!.id).length === 0);
  expect((await call(session, "count")).text).toMatch(
    /^\[the hand was resumed: its server was started again.*\]\n1$/,
  );
});

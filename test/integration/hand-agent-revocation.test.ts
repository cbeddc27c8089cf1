/** The bound of a revocation, with the times that a server has in production. */
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { type AgentProgram, makeAgentDir, startAgentProgram, tokenFile } from "../kit/hand-agent-program.ts";
import { repository } from "../kit/owner-process.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { commandsWith } from "../kit/process-list.ts";
import { collectCall } from "../kit/replica-rig.ts";
import { startServer, type TestServer } from "../kit/server.ts";

const BOUND_MS = 60_000;

let database: TestDatabase;
let server: TestServer;
let dir: Awaited<ReturnType<typeof makeAgentDir>>;
const programs: AgentProgram[] = [];

beforeEach(async () => {
  dir = await makeAgentDir();
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
});
afterEach(async () => {
  for (const { process: child, ended } of programs.splice(0)) {
    child.kill("SIGKILL");
    await ended;
  }
  await server.stop();
  await database.drop();
  await dir.remove();
});

async function startAgent(): Promise<AgentProgram> {
  const { secret } = await server.client(AdminService).createJoinToken({});
  const args = ["--url", server.url, "--token-file", await tokenFile(dir.path, secret)];
  const file = join(repository, "dist/hand-agent.mjs");
  const program = startAgentProgram([...args, "--data-dir", join(dir.path, "agent")], {}, file);
  programs.push(program);
  return program;
}

test("an agent that was revoked is cut off within 60 s, also when nobody was told of it, and stays out", async () => {
  const program = await startAgent();
  const hands = server.client(HandService);
  await server.client(EnvironmentService).createEnvironment({ spec: { name: "default" }, makeDefault: true });
  await eventually(async () => (await hands.listHandAgents({})).handAgents.some(({ online }) => online), {
    withinMs: 20_000,
  });
  const { hand } = await hands.provision({ requestId: "one" }, { deadlineMs: 20_000 });
  const input = JSON.stringify({ command: "echo begun; sleep 8642.1" });
  let outputs = 0;
  const call = { handId: hand!.id, executionId: "e1", name: "bash", input };
  const running = collectCall(hands.execute(call), () => {
    outputs += 1;
  });
  running.catch(() => {});
  await eventually(() => outputs > 0);
  expect(commandsWith("8642.1").length).toBeGreaterThan(0);

  // As a replica does whose notice is lost: the database alone says it.
  await database.pool().query("update hand_agents set revoked_at = now()");
  const began = performance.now();
  expect(await program.ended).toBe(3);
  expect(performance.now() - began).toBeLessThan(BOUND_MS);
  expect(program.stderr()).toContain("this hand agent was revoked");
  // What ran in its hands has ended with it, and the caller is not left waiting.
  await eventually(() => commandsWith("8642.1").length === 0);
  expect((await running).result?.isError).toBe(true);

  // The key is worth nothing any more, with whatever token.
  expect(await (await startAgent()).ended).toBe(3);
  const { handAgents } = await hands.listHandAgents({ includeRevoked: true });
  expect(handAgents.map(({ online }) => online)).toEqual([false]);
}, 120_000);

/** What a revocation does to the agent and to what it leaves, with the times that a server has in production. */
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { useDocker, whyNoDocker } from "../kit/docker.ts";
import { ensureBusyboxImage } from "../kit/docker-images.ts";
import { eventually } from "../kit/eventually.ts";
import { type AgentProgram, makeAgentDir, startAgentProgram, tokenFile } from "../kit/hand-agent-program.ts";
import { repository } from "../kit/owner-process.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { commandsWith } from "../kit/process-list.ts";
import { promised } from "../kit/promised.ts";
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

function run(args: readonly string[], env: Record<string, string>): AgentProgram {
  const at = ["--data-dir", join(dir.path, "agent")];
  const program = startAgentProgram([...args, ...at], env, join(repository, "dist/hand-agent.mjs"));
  programs.push(program);
  return program;
}

async function startAgent(env: Record<string, string> = {}): Promise<AgentProgram> {
  const { secret } = await server.client(AdminService).createJoinToken({});
  return run(["--url", server.url, "--token-file", await tokenFile(dir.path, secret)], env);
}

test("an agent that was revoked is cut off within 60 s, also when nobody was told of it, and stays out", async () => {
  const program = await startAgent();
  const hands = server.client(HandService);
  await server.client(EnvironmentService).createEnvironment({ spec: { name: "default" }, makeDefault: true });
  await eventually(async () => (await hands.listHandAgents({})).handAgents.some(({ online }) => online), {
    withinMs: 60_000,
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
  expect(performance.now() - began).toBeLessThan(promised(BOUND_MS));
  expect(program.stderr()).toContain("this hand agent was revoked");
  // What ran in its hands has ended with it, and the caller is not left waiting.
  await eventually(() => commandsWith("8642.1").length === 0);
  expect((await running).result?.isError).toBe(true);

  // The key is worth nothing any more, with whatever token.
  expect(await (await startAgent()).ended).toBe(3);
  const { handAgents } = await hands.listHandAgents({ includeRevoked: true });
  expect(handAgents.map(({ online }) => online)).toEqual([false]);
});

test.skipIf(whyNoDocker() !== undefined)(
  "what a revoked agent's hands left stays, until a person on its machine has it removed (H1)",
  async () => {
    const engine = await useDocker();
    const image = await ensureBusyboxImage(engine);
    const env = { DOCKER_HOST: engine.host };
    const program = await startAgent(env);
    const hands = server.client(HandService);
    const environments = server.client(EnvironmentService);
    const provision = async (name: string, spec: object) => {
      const { environment } = await environments.createEnvironment({ spec: { name, ...spec } });
      const request = { requestId: name, environmentId: environment!.id };
      return (await hands.provision(request, { deadlineMs: 60_000 })).hand!.id;
    };
    const inProcess = await provision("process", { driver: "process" });
    const inDocker = await provision("docker", { driver: "docker", image });
    const agentId = (await readFile(join(dir.path, "agent/docker/agent-id"), "utf8")).trim();
    const ofAgent = async (...what: string[]) =>
      (await engine.docker(...what, "--quiet", "--filter", `label=tendon.agent=${agentId}`)).trim();
    const purge = async (...args: string[]) => {
      const purging = run(["--purge", ...args], env);
      const code = await purging.ended;
      return { code, said: purging.stdout() + purging.stderr() };
    };
    expect(await purge()).toMatchObject({ code: 1, said: expect.stringContaining("another hand agent") });
    const { handAgents } = await hands.listHandAgents({});
    await server.client(AdminService).revokeHandAgent({ handAgentId: handAgents[0]!.id });
    expect(await program.ended).toBe(3);
    expect(program.stderr()).toContain("--purge");
    expect(await ofAgent("ps", "--all")).toBe("");
    expect(await ofAgent("volume", "ls")).not.toBe("");

    const told = await purge();
    expect(told).toMatchObject({ code: 0, said: expect.stringContaining("nothing was removed") });
    for (const handId of [inProcess, inDocker]) expect(told.said).toContain(handId);
    expect(await ofAgent("volume", "ls")).not.toBe("");
    const done = await purge("--yes");
    expect(done).toMatchObject({ code: 0, said: expect.stringContaining("no hand is left") });
    expect(await ofAgent("volume", "ls")).toBe("");
    expect(existsSync(join(dir.path, "agent/hands", inProcess))).toBe(false);
    expect(await purge("--yes")).toMatchObject({ code: 0 });
    await engine.release();
  },
);

/** Updates without a loss: an agent that is told to stop, and servers that are replaced one after the other. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { ExecutionOutcome, type ExecutionResult } from "../../proto/gen/tendon/v1/hand_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { freePort } from "../kit/free-port.ts";
import {
  type AgentProgram,
  agentInProcess,
  makeAgentDir,
  startAgentProgram,
  tokenFile,
} from "../kit/hand-agent-program.ts";
import { repository } from "../kit/owner-process.ts";
import { createTestDatabase } from "../kit/postgres.ts";
import { commandsWith } from "../kit/process-list.ts";
import { promised } from "../kit/promised.ts";
import { collectCall } from "../kit/replica-rig.ts";
import { type ScriptedHandServer, startScriptedHandServer } from "../kit/scripted-hand-server.ts";
import { startServer, type TestServer } from "../kit/server.ts";
import { startTcpRelay } from "../kit/tcp-relay.ts";

const textOf = ({ content }: ExecutionResult) =>
  (JSON.parse(content) as { text: string }[]).map(({ text }) => text).join("\n");
const outcome = (result: ExecutionResult) => ExecutionOutcome[result.outcome];
const cleanups: (() => Promise<unknown> | unknown)[] = [];
let dir: Awaited<ReturnType<typeof makeAgentDir>>;

beforeEach(async () => {
  dir = await makeAgentDir();
});
afterEach(async () => {
  for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) await cleanup();
  await dir.remove();
});

describe("an agent that is told to stop", () => {
  let server: ScriptedHandServer;

  beforeEach(async () => {
    server = await startScriptedHandServer();
    cleanups.push(() => server.close());
  });

  async function start(drainMs: number): Promise<AgentProgram> {
    const args = ["--url", server.url, "--token-file", await tokenFile(dir.path, server.joinToken)];
    const program = startAgentProgram(
      [...args, "--data-dir", join(dir.path, "agent")],
      { TENDON_HAND_AGENT_DRAIN_MS: String(drainMs) },
      join(repository, "dist/hand-agent.mjs"),
    );
    cleanups.push(async () => {
      program.process.kill("SIGKILL");
      await program.ended;
    });
    return program;
  }

  async function startWithCall(drainMs: number, command: string): Promise<AgentProgram> {
    const program = await start(drainMs);
    await server.connection(0, 60_000);
    await server.provision("hand_1");
    server.bash("s/1", "hand_1", command);
    await eventually(() => server.outputOf("s/1").length > 0);
    return program;
  }

  const told = () => server.current.heard.some(({ case: name }) => name === "draining");

  test("says so, lets its calls finish, and ends with 0", async () => {
    const program = await startWithCall(
      60_000,
      "echo begun; until test -e go; do sleep 0.05; done; echo end",
    );
    program.process.kill("SIGTERM");
    await eventually(told);
    // It is still there for what runs in it.
    server.start("s/2", "hand_1", "write", { file_path: "go", content: "" });
    const hands = join(dir.path, "agent", "hands", "hand_1", "work");
    await writeFile(join(hands, "go"), "");
    expect([outcome(await server.result("s/1")), textOf(await server.result("s/1"))]).toEqual([
      "COMPLETED",
      "begun\nend",
    ]);
    expect(await program.ended).toBe(0);
    // What came after it had said so was handed back: neither run nor answered.
    expect(server.executions.has("s/2")).toBe(false);
  });

  test("at a second signal ends what runs, and still brings the results", async () => {
    const program = await startWithCall(600_000, "echo begun; sleep 7654.3");
    program.process.kill("SIGTERM");
    await eventually(told);
    const began = performance.now();
    program.process.kill("SIGINT");
    expect(await program.ended).toBe(0);
    expect(performance.now() - began).toBeLessThan(promised(10_000));
    const result = await server.result("s/1");
    expect([outcome(result), result.isError]).toEqual(["CANCELLED", true]);
    expect(textOf(result)).toMatch(/^begun\n/);
    expect(commandsWith("7654.3")).toEqual([]);
  });

  test("is bounded by its setting, and what it could not bring is brought by its next life", async () => {
    const program = await startWithCall(300, "echo begun; sleep 7655.3");
    server.notStoring.add("s/1");
    const began = performance.now();
    program.process.kill("SIGTERM");
    expect(await program.ended).toBe(0);
    expect(performance.now() - began).toBeLessThan(promised(10_000));
    server.notStoring.clear();
    await start(300);
    await server.connection(1, 60_000);
    expect(outcome(await server.result("s/1"))).toBe("CANCELLED");
    expect(commandsWith("7655.3")).toEqual([]);
  });

  test("at a third signal ends at once, and nobody can know what became of the call", async () => {
    const program = await startWithCall(600_000, "echo begun; trap '' TERM; sleep 7656.3");
    program.process.kill("SIGTERM");
    await eventually(told);
    // Both at the same moment for it: the second one alone would end the call in time.
    for (const signal of ["SIGSTOP", "SIGINT", "SIGTERM", "SIGCONT"] as const) program.process.kill(signal);
    expect([130, 143]).toContain(await program.ended);
    await start(300);
    await server.connection(1, 60_000);
    expect(outcome(await server.result("s/1", 60_000))).toBe("UNKNOWN");
    await eventually(() => commandsWith("7656.3").length === 0);
  });
});

describe("servers that are replaced one after the other", () => {
  /** Two replicas behind a balancer, with a real agent that knows the balancer alone. */
  async function startRolling() {
    const database = await createTestDatabase();
    cleanups.push(() => database.drop());
    const a = await startServer({ databaseUrl: database.url, peers: true });
    cleanups.push(() => a.stop());
    const b = await startServer({ databaseUrl: database.url, peers: true });
    cleanups.push(() => b.stop());
    await eventually(async () => /^tendon_peer_replicas 1$/m.test(await (await a.fetch("/metrics")).text()));
    await a.client(EnvironmentService).createEnvironment({ spec: { name: "default" }, makeDefault: true });
    const balancer = await startTcpRelay(b.port);
    cleanups.push(() => balancer.close());
    const { secret } = await a.client(AdminService).createJoinToken({});
    const agent = agentInProcess({
      url: `http://127.0.0.1:${balancer.port}`,
      dataDir: dir.path,
      joinToken: secret,
      drainMs: 200,
    });
    cleanups.push(() => agent.stop());
    await agent.start();
    await eventually(async () => (await a.client(AdminService).getStatus({})).handAgentsOnline === 1);
    const { hand } = await a.client(HandService).provision({ requestId: "rolling" });
    return { a, b, balancer, handId: hand!.id };
  }

  const call = (server: TestServer, handId: string, executionId: string, command: string) =>
    server
      .client(HandService)
      .execute({ handId, executionId, name: "bash", input: JSON.stringify({ command }) });

  test("a call that runs goes on at the next one, and calls that come meanwhile wait for it (X1, X2)", async () => {
    const { a, b, balancer, handId } = await startRolling();
    const command = "echo run >> count; for i in $(seq 1 40); do echo $i; sleep 0.1; done";
    let bytes = 0;
    const running = collectCall(call(a, handId, "long", command), () => {
      bytes += 1;
    });
    running.catch(() => {});
    await eventually(() => bytes > 0);
    balancer.aim(a.port);
    const stopping = b.stop();
    // One that comes in the middle of it: it is run once, wherever the agent is then.
    const meanwhile = collectCall(call(a, handId, "meanwhile", "wc -l < count"));
    const ran = await running;
    await stopping;
    expect(ran.gaps).toEqual([]);
    expect(ran.output.toString()).toBe(Array.from({ length: 40 }, (_, i) => `${i + 1}\n`).join(""));
    expect(outcome(ran.result!)).toBe("COMPLETED");
    expect((await meanwhile).output.toString().trim()).toBe("1");
  });

  test("a call for a hand whose agent is between two servers waits for it instead of failing", async () => {
    const { a, b, balancer, handId } = await startRolling();
    balancer.aim(await freePort());
    await b.stop();
    const waiting = collectCall(call(a, handId, "waits", "echo arrived"));
    let isOver = false;
    void waiting.finally(() => {
      isOver = true;
    });
    await eventually(async () => (await a.client(AdminService).getStatus({})).handAgentsOnline === 0);
    expect(isOver).toBe(false);
    balancer.aim(a.port);
    expect((await waiting).output.toString()).toBe("arrived\n");
  });
});

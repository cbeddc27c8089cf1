/**
 * R7, H3: a hand agent in a private network with nothing but a way out, between which and the server packets are lost
 * without a word. Both sides find out within 30 s, by the times that the product uses.
 */
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { type Connection, dial } from "../../kit/dial/dial.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { HandAgent } from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "../kit/eventually.ts";
import { textOfResult } from "../kit/execution-stream.ts";
import { isWholeRun } from "../kit/fault-trials.ts";
import { freePort } from "../kit/free-port.ts";
import { HandOperator } from "../kit/hand-operator.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { PrivateNetwork, whyNoPrivateNetwork } from "../kit/private-network.ts";
import { listeningSockets } from "../kit/process-tree.ts";
import { hasProcesses, type RunningProgram, startProgram } from "../kit/program.ts";
import { promised } from "../kit/promised.ts";

vi.setConfig({ testTimeout: 240_000, hookTimeout: 180_000 });

/** What H3 promises, for each of the two sides. */
const FOUND_WITHIN_MS = 30_000;

let database: TestDatabase;
let network: PrivateNetwork;
let server: RunningProgram;
let agent: RunningProgram;
let connection: Connection;
let operator: HandOperator;
let dataDir: string;

async function start(): Promise<void> {
  dataDir = await mkdtemp(join(tmpdir(), "tendon-silence-"));
  database = await createTestDatabase();
  network = new PrivateNetwork();
  const port = await freePort();
  server = startProgram(
    "server",
    {
      TENDON_DATABASE_URL: database.url,
      TENDON_DATABASE_POOL: "5",
      TENDON_DATA_DIR: dataDir,
      TENDON_HOST: "0.0.0.0",
      TENDON_PORT: String(port),
    },
    [],
    network.atServer,
  );
  const url = `http://127.0.0.1:${await network.door(port)}`;
  await eventually(async () => (await fetch(`${url}/readyz`)).ok, { withinMs: 60_000 });
  const adminKey = (await readFile(join(dataDir, "admin.key"), "utf8")).trim();
  connection = dial({ url, token: () => adminKey, proxy: {} });
  await connection
    .client(EnvironmentService)
    .createEnvironment({ spec: { name: "default" }, makeDefault: true });
  const { secret } = await connection.client(AdminService).createJoinToken({});
  agent = startProgram(
    "hand-agent",
    {
      TENDON_URL: `http://${network.serverAddress}:${port}`,
      TENDON_JOIN_TOKEN: secret,
      TENDON_HAND_AGENT_DATA_DIR: join(dataDir, "hand-agent"),
    },
    [],
    network.atAgent,
  );
  operator = new HandOperator(connection);
  await online();
}

async function stop(): Promise<void> {
  network?.loseNothing();
  connection?.close();
  for (const program of [agent, server]) {
    if (program === undefined) continue;
    expect(await program.end("SIGTERM")).toBe(0);
    expect(hasProcesses(program)).toBe(false);
  }
  await network?.remove();
  await database?.drop();
  await rm(dataDir, { recursive: true, force: true });
}

async function agentRow(): Promise<HandAgent | undefined> {
  return (await operator.hands.listHandAgents({}, { deadlineMs: 5_000 })).handAgents[0];
}

function online(afterGeneration = 0n, withinMs = 60_000): Promise<HandAgent> {
  return eventually(
    async () => {
      const row = await agentRow();
      return row?.online && row.generation > afterGeneration ? row : undefined;
    },
    { withinMs, everyMs: 100 },
  );
}

/** Milliseconds until the server counts the agent as offline. */
async function offlineAfter(sinceMs: number): Promise<number> {
  await eventually(async () => (await agentRow())?.online === false, {
    withinMs: promised(FOUND_WITHIN_MS) + 5_000,
    everyMs: 100,
  });
  return performance.now() - sinceMs;
}

/** Milliseconds until the agent says so. */
async function leftAfter(sinceMs: number): Promise<number> {
  await eventually(() => agent.log().includes("nothing was heard from the server"), {
    withinMs: promised(FOUND_WITHIN_MS) + 5_000,
  });
  return performance.now() - sinceMs;
}

describe.skipIf(whyNoPrivateNetwork() !== undefined)("an agent in a network of its own (R7, H3)", () => {
  beforeEach(start);
  afterEach(stop);

  test("that goes silent is found by both sides within 30 s, and its running call ends once, every byte once (X2)", async () => {
    const hand = await operator.provision();
    // It is where nobody gets in: it listens nowhere, and its network lets nothing in.
    expect(listeningSockets(agent.pid)).toBe(0);
    const knock = promisify(execFile)(
      network.atServer[0] ?? "",
      [...network.atServer.slice(1), "bash", "-c", `echo >/dev/tcp/${network.agentAddress}/22`],
      { timeout: 1_000 },
    );
    await expect(knock).rejects.toThrow();

    const call = operator.begin(
      hand.id,
      "echo run >> runs; for i in $(seq 60); do echo line $i; sleep 0.5; done; wc -l < runs",
    );
    await eventually(() => readFile(join(dataDir, "hand-agent", "hands", hand.id, "work", "runs"), "utf8"));
    const { generation } = await online();
    network.loseEverything();
    const sinceMs = performance.now();
    const [serverMs, agentMs] = await Promise.all([offlineAfter(sinceMs), leftAfter(sinceMs)]);
    console.log(
      `packets lost: offline at the server after ${Math.round(serverMs)} ms, left by the agent after ${Math.round(agentMs)} ms`,
    );
    expect(serverMs).toBeLessThan(promised(FOUND_WITHIN_MS));
    expect(agentMs).toBeLessThan(promised(FOUND_WITHIN_MS));
    network.loseNothing();
    await online(generation);
    const { output, result } = await call.ran;
    const lines = Array.from({ length: 60 }, (_, index) => `line ${index + 1}\n`).join("");
    expect(output).toBe(`${lines}1\n`);
    expect(textOfResult(result)).toBe(`${lines}1`);
  });

  // Takes as long again; in `npm test` hand-agents.test.ts shows the same on one machine.
  if (!isWholeRun) return;
  test("whose next connection stands does not notice that the one before ends late", async () => {
    const first = await online();
    const hand = await operator.provision();
    const ports = network.agentPorts();
    expect(ports).toHaveLength(1);
    network.losePorts(ports);
    // The server has not found out when the agent is back: the next one stands beside the old one.
    const second = await online(first.generation, FOUND_WITHIN_MS + 10_000);
    network.loseNothing(); // what both ends still have to say of the first one arrives now
    const untilMs = performance.now() + 20_000;
    while (performance.now() < untilMs) {
      expect(await agentRow()).toMatchObject({ online: true, generation: second.generation });
      const { result } = await operator.run(hand.id, "echo alive");
      expect(textOfResult(result)).toContain("alive");
    }
    expect(agent.log().match(/"connected"/g)).toHaveLength(2);
  });
});

/**
 * Two replicas as programs, a harness at the one, a real hand agent at the other, which is killed in the middle of calls. The
 * agent comes to the first: one result each, every byte once (X1, X2, X3).
 */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { dial } from "../../kit/dial/dial.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { textOfResult } from "../kit/execution-stream.ts";
import { callEnds, countedCommand } from "../kit/fault-platform.ts";
import { trials } from "../kit/fault-trials.ts";
import { freePort } from "../kit/free-port.ts";
import { HandOperator } from "../kit/hand-operator.ts";
import { createTestDatabase } from "../kit/postgres.ts";
import { hasProcesses, type ProgramName, type RunningProgram, startProgram } from "../kit/program.ts";
import { startTcpRelay } from "../kit/tcp-relay.ts";

vi.setConfig({ testTimeout: 300_000, hookTimeout: 180_000 });

const cleanups: (() => Promise<unknown> | unknown)[] = [];
afterEach(async () => {
  for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) await cleanup();
});

function start(name: ProgramName, env: Record<string, string>): RunningProgram {
  const program = startProgram(name, env);
  cleanups.push(async () => {
    await program.end("SIGTERM");
    expect(hasProcesses(program)).toBe(false);
  });
  return program;
}

async function startReplica(databaseUrl: string) {
  const dataDir = await mkdtemp(join(tmpdir(), "tendon-two-"));
  cleanups.push(() => rm(dataDir, { recursive: true, force: true }));
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const program = start("server", {
    TENDON_DATABASE_URL: databaseUrl,
    TENDON_DATABASE_POOL: "4",
    TENDON_DATA_DIR: dataDir,
    TENDON_PORT: String(port),
    TENDON_PEER_URL: url,
  });
  await eventually(async () => (await fetch(`${url}/readyz`)).ok, { withinMs: 60_000 });
  return { url, port, dataDir, program };
}

/** As the admin whose key the first replica of a database has made. */
async function asAdmin({ url, dataDir }: { url: string; dataDir: string }) {
  const key = (await readFile(join(dataDir, "admin.key"), "utf8")).trim();
  const connection = dial({ url, token: () => key, proxy: {} });
  cleanups.push(() => connection.close());
  return connection;
}

async function knowsPeers(url: string, count: number): Promise<void> {
  const pattern = new RegExp(`^tendon_peer_replicas ${count}$`, "m");
  await eventually(async () => pattern.test(await (await fetch(`${url}/metrics`)).text()), {
    withinMs: 60_000,
  });
}

test.each(Array.from({ length: trials(1, 5) }, (_, index) => index + 1))(
  "the replica of the agent is killed in the midst of calls from the other one, round %i: one result each, every byte once (R1, X2, X3)",
  async () => {
    const database = await createTestDatabase();
    cleanups.push(() => database.drop());
    const a = await startReplica(database.url);
    const admin = await asAdmin(a);
    const b = await startReplica(database.url);
    await knowsPeers(a.url, 1);
    await admin
      .client(EnvironmentService)
      .createEnvironment({ spec: { name: "default" }, makeDefault: true });
    start("harness", { TENDON_URL: a.url, TENDON_HARNESS_KEY_FILE: join(a.dataDir, "harness.key") });
    // Where the agent dials, as a balancer would have it.
    const relay = await startTcpRelay(b.port);
    cleanups.push(() => relay.close());
    const { secret } = await admin.client(AdminService).createJoinToken({});
    const agentDir = join(a.dataDir, "hand-agent");
    const agent = start("hand-agent", {
      TENDON_URL: `http://127.0.0.1:${relay.port}`,
      TENDON_JOIN_TOKEN: secret,
      TENDON_HAND_AGENT_DATA_DIR: agentDir,
    });
    await eventually(() => agent.log().includes('"connected"'), { withinMs: 60_000 });

    const tools = [{ kind: { case: "handToolset" as const, value: {} } }];
    const made = await admin.client(AgentService).createAgent({ spec: { name: "two", tools } });
    const payload = JSON.stringify({ content: [{ type: "text", text: countedCommand("two", 6) }] });
    const { session } = await admin.client(SessionService).createSession({
      agentId: made.agent?.id ?? "",
      initialEvents: [{ type: "user.message", payload }],
    });
    const sessionId = session?.id ?? "";
    const operator = new HandOperator(admin);
    const hand = await operator.provision();
    const command =
      "echo run >> runs; for i in $(seq 300); do seq $((i*100)) $((i*100+99)); sleep 0.02; done; wc -l < runs";
    const call = operator.begin(hand.id, command);
    await eventually(() => readFile(join(agentDir, "hands", hand.id, "work", "runs"), "utf8"));
    await eventually(async () => {
      const { hands } = await admin.client(HandService).listHands({ sessionId });
      return readFile(join(agentDir, "hands", hands[0]?.id ?? "", "work", "runs"), "utf8");
    });

    relay.aim(a.port);
    await b.program.end("SIGKILL");
    const { output, result } = await call.ran;
    const lines = Array.from({ length: 30_000 }, (_, index) => `${index + 100}\n`).join("");
    expect(output === `${lines}1\n`).toBe(true);
    expect(textOfResult(result)).toMatch(/\n1$/);
    await eventually(
      async () => {
        const now = (await admin.client(SessionService).getSession({ sessionId })).session;
        return now?.status === SessionStatus.IDLE && !now.hasWork;
      },
      { withinMs: 60_000, everyMs: 100 },
    );
    const { events } = await admin.client(SessionService).getEvents({ sessionId, limit: 1_000 });
    expect(callEnds(events)).toMatchObject([
      { outcome: "completed", isError: false, text: "started\nended" },
    ]);
    const { hands } = await admin.client(HandService).listHands({ sessionId });
    expect(await readFile(join(agentDir, "hands", hands[0]?.id ?? "", "work", "runs"), "utf8")).toBe("two\n");
  },
);

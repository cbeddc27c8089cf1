/** Hand agents of this release and of the one before with this server, and builds that are too far apart. */
import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { fromBinary } from "@bufbuild/protobuf";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { TendonError } from "../../kit/errors.ts";
import { ConnectRequestSchema } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { chooseVersion } from "../../server/hand/protocol-version.ts";
import { eventually } from "../kit/eventually.ts";
import { collectExecution as collect, textOfResult as textOf } from "../kit/execution-stream.ts";
import { type AgentProgram, makeAgentDir, startAgentProgram, tokenFile } from "../kit/hand-agent-program.ts";
import { HandRig } from "../kit/hand-rig.ts";
import { repository } from "../kit/owner-process.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startScriptedHandServer } from "../kit/scripted-hand-server.ts";
import { startTcpRelay } from "../kit/tcp-relay.ts";

let dir: Awaited<ReturnType<typeof makeAgentDir>>;
let program: AgentProgram | undefined;
const cleanups: (() => Promise<unknown> | unknown)[] = [];

beforeEach(async () => {
  dir = await makeAgentDir();
});
afterEach(async () => {
  program?.process.kill("SIGTERM");
  await program?.ended;
  program = undefined;
  for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) await cleanup();
  await dir.remove();
});

async function start(url: string, token: string, file?: string): Promise<void> {
  const args = ["--url", url, "--token-file", await tokenFile(dir.path, token)];
  program = startAgentProgram([...args, "--data-dir", join(dir.path, "agent")], {}, file);
}

describe("with this server", () => {
  const previous = join(repository, "test/previous/hand-agent.mjs");
  let database: TestDatabase;
  let rig: HandRig;
  let built: string;

  beforeAll(async () => {
    built = await mkdtemp(join(tmpdir(), "tendon-versions-"));
    const script = join(repository, "scripts/build-hand-agent.mjs");
    await promisify(execFile)(process.execPath, [script, "--out", built]);
    database = await createTestDatabase();
  });
  afterAll(async () => {
    await database?.drop();
    await rm(built, { recursive: true, force: true });
  });
  beforeEach(async () => {
    rig = new HandRig({ pool: database.pool() });
    await rig.start();
  });
  afterEach(async () => {
    program?.process.kill("SIGTERM");
    await program?.ended;
    await rig.stop();
    await database.pool().query("update hand_agents set revoked_at = now() where revoked_at is null");
    await database.pool().query("update environments set is_default = false");
  });

  const releases: [string, () => string][] = [["this release", () => join(built, "tendon-hand-agent.mjs")]];
  // From the first release on; until then there is none before.
  if (existsSync(previous)) releases.push(["the release before", () => previous]);

  test.each(releases)("the agent of %s joins, runs calls and keeps one over a cut", async (_, file) => {
    const relay = await startTcpRelay(rig.listener.port);
    cleanups.push(() => relay.close());
    await start(`http://127.0.0.1:${relay.port}`, await rig.joinToken(), file());
    const session = await rig.session();
    const command = "for i in $(seq 1 20); do echo $i; sleep 0.1; done; echo once >> count; wc -l < count";
    const call = await session.toolUse("bash", { command });
    let outputs = 0;
    const running = collect(rig.harness.execute(call), () => {
      outputs += 1;
    });
    await eventually(() => outputs > 0, { withinMs: 60_000 });
    relay.cut();
    const { result, output } = await running;
    const lines = Array.from({ length: 20 }, (_, i) => `${i + 1}\n`).join("");
    expect([output, textOf(result!)]).toEqual([`${lines}1\n`, `${lines}1`]);
    expect(await session.events("agent.tool_result")).toHaveLength(1);
  });

  test("a greeting of version 1, byte for byte as it was, is answered with version 1", async () => {
    const recorded = JSON.parse(
      readFileSync(join(repository, "test/golden/wire/hand-agent-1.json"), "utf8"),
    ) as { bytes: string; json: object }[];
    const { bytes } = recorded.find(({ json }) => "greeting" in json)!;
    const agent = await rig.agent();
    const client = rig.agentService({
      kind: "hand_agent",
      handAgentId: agent.handAgentId,
      workspaceId: rig.workspaceId,
      pool: "",
    });
    const call = client.connect();
    await call.send(fromBinary(ConnectRequestSchema, Buffer.from(bytes, "base64")));
    const { value } = await call.responses[Symbol.asyncIterator]().next();
    expect(value?.kind).toMatchObject({ case: "welcome", value: { protocolVersion: 1 } });
    call.cancel();
  });
});

describe("with a server that is too far away", () => {
  const lines = () =>
    program!
      .stderr()
      .split("\n")
      .filter((line) => line.includes("protocol"));

  test("the agent says once what to update, and asks again only after half a minute at the earliest", async () => {
    const server = await startScriptedHandServer();
    cleanups.push(() => server.close());
    const refusal = (() => {
      try {
        chooseVersion({ protocolVersion: 1, oldestProtocolVersion: 1 }, { oldest: 2, newest: 3 });
      } catch (error) {
        return error as TendonError;
      }
    })();
    expect(refusal).toBeInstanceOf(TendonError);
    server.refuseConnect = refusal;
    await start(server.url, server.joinToken);
    await eventually(() => lines().length > 0);
    const { againInMs, msg } = JSON.parse(lines()[0]!) as { againInMs: number; msg: string };
    expect(msg).toMatch(/speaks version 1 of the protocol, this server 2 to 3; update the hand agent$/);
    expect(againInMs).toBeGreaterThanOrEqual(30_000);
    // Once it has said so it waits: everything it would do at once has been done when it answers a signal.
    program!.process.kill("SIGTERM");
    expect(await program!.ended).toBe(0);
    expect([server.attempts, lines().length]).toEqual([1, 1]);
  });

  test("a welcome in a version that the agent does not speak is told the same way", async () => {
    const server = await startScriptedHandServer({ protocolVersion: 9 });
    cleanups.push(() => server.close());
    await start(server.url, server.joinToken);
    await eventually(() => lines().length > 0);
    const { againInMs, msg } = JSON.parse(lines()[0]!) as { againInMs: number; msg: string };
    expect(msg).toContain("the server chose version 9, this build speaks 1");
    expect(againInMs).toBeGreaterThanOrEqual(30_000);
    expect(server.attempts).toBe(1);
  });
});

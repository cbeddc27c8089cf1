/** What happens when a driver fails: the real agent with the scripted driver, at a real hands area over a real database. */
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { DRIVERS } from "../../hand-agent/drivers/registry.ts";
import { type Rule, Script } from "../../hand-agent/drivers/scripted/script.ts";
import { ScriptedDriver } from "../../hand-agent/drivers/scripted/scripted-driver.ts";
import type { HandAgent } from "../../hand-agent/hand-agent.ts";
import { TOOL_DEFINITIONS } from "../../hand-agent/tools/registry.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { ExecutionOutcome, HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "../kit/eventually.ts";
import { collectExecution as collect, textOfResult as textOf } from "../kit/execution-stream.ts";
import { agentInProcess, makeAgentDir } from "../kit/hand-agent-program.ts";
import { HandRig, type RigSession } from "../kit/hand-rig.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { promised } from "../kit/promised.ts";

let database: TestDatabase;
let rig: HandRig;
let dir: Awaited<ReturnType<typeof makeAgentDir>>;
let agent: HandAgent | undefined;
let script = "";
let scriptReads = 0;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.drop());
beforeEach(async () => {
  script = "";
  dir = await makeAgentDir();
  rig = new HandRig({ pool: database.pool(), timing: { reaperPeriodMs: 300 } });
  await rig.start();
});
afterEach(async () => {
  script = "";
  await agent?.stop();
  agent = undefined;
  await rig.stop();
  await database.pool().query("update hand_agents set revoked_at = now() where revoked_at is null");
  await database.pool().query("update environments set is_default = false");
  await database.pool().query("update hands set state = 'released', destroy_pending = false");
  await dir.remove();
});

function readScript(): string {
  scriptReads += 1;
  return script;
}

function say(...rules: Rule[]): void {
  script = JSON.stringify({ rules });
}

async function startAgent(provisionsAtOnce?: number): Promise<void> {
  const log = createLogger("hand-agent", "silent");
  agent = agentInProcess({
    url: rig.url,
    dataDir: dir.path,
    joinToken: await rig.joinToken(),
    drainMs: 200,
    provisionsAtOnce,
    log,
    drivers: (dataDir) => {
      const inner = DRIVERS.process!({
        dataDir,
        clock: systemClock,
        log,
        tools: TOOL_DEFINITIONS,
        process: {},
      });
      return [new ScriptedDriver({ inner, script: new Script(readScript), clock: systemClock })];
    },
  });
  await agent.start();
}

async function withSession(spec: Record<string, unknown> = {}): Promise<RigSession> {
  await startAgent();
  return rig.session(await rig.environment({ driver: "scripted", ...spec }));
}

async function bash(session: RigSession, command: string) {
  const { result } = await collect(rig.harness.execute(await session.toolUse("bash", { command })));
  return { text: textOf(result!), isError: result!.isError, outcome: ExecutionOutcome[result!.outcome] };
}

const handsOf = async (session: RigSession) =>
  (await rig.admin.listHands({ sessionId: session.id, includeEnded: true })).hands;
const listed = async () => {
  const log = createLogger("test", "silent");
  return DRIVERS.process!({
    dataDir: dir.path,
    clock: systemClock,
    log,
    tools: [],
    process: {},
  }).listHandIds();
};

test("a hand that could not be made is told to the model with the driver's words, and the next call makes another", async () => {
  const session = await withSession();
  say({ on: "provision", times: 1, does: { fail: "no space left for it" } });
  expect(await bash(session, "echo ran")).toEqual({
    text: expect.stringContaining("no space left for it"),
    isError: true,
    outcome: "NOT_STARTED",
  });
  expect(await bash(session, "echo ran")).toMatchObject({ text: "ran", isError: false });
  const hands = await handsOf(session);
  expect(hands.map(({ state }) => HandState[state]).sort()).toEqual(["READY", "RELEASED"]);
  expect(await listed()).toHaveLength(1);
  // The model never had a workspace before: there is no loss to tell of.
  expect(await session.events("hand.lost")).toEqual([]);
});

test("a bug of a driver is told without its text, which stays in the agent's log", async () => {
  const session = await withSession();
  say({ on: "provision", times: 1, does: { bug: "undefined is not a function" } });
  const { text, outcome } = await bash(session, "echo ran");
  expect([text.includes("undefined"), text.includes("its log says more"), outcome]).toEqual([
    false,
    true,
    "NOT_STARTED",
  ]);
});

test("a provision that hangs ends at the environment's bound and leaves nothing", async () => {
  await startAgent();
  const environmentId = await rig.environment({ driver: "scripted", provisionTimeoutMs: 3_000 });
  const session = await rig.session(environmentId);
  say({ on: "provision", times: 1, does: { hang: true } });
  const { text, outcome } = await bash(session, "echo ran");
  expect(text).toMatch(/not ready within 3000 ms|did not answer .+ within \d+ ms/);
  expect(outcome).toBe("NOT_STARTED");
  // The next one has the time that it needs.
  await rig.limitProvisioning(environmentId, 60_000);
  expect(await bash(session, "echo ran")).toMatchObject({ text: "ran" });
  await eventually(async () => (await listed()).length === 1);
});

test("a hand whose turn has not come says so, leaves the line when it is released, and is made after one that hangs", async () => {
  await startAgent(1);
  const environment = (provisionTimeoutMs: number) =>
    rig.environment({ driver: "scripted", provisionTimeoutMs });
  const hanging = await rig.session(await environment(8_000));
  const patient = await environment(120_000);
  const [released, next] = [await rig.session(patient), await rig.session(patient)];
  say({ on: "provision", times: 1, does: { hang: true } });
  const readsBefore = scriptReads;
  let hasHungUp = false;
  const first = bash(hanging, "echo ran").finally(() => {
    hasHungUp = true;
  });
  await eventually(() => scriptReads > readsBefore);
  const running = [bash(released, "echo ran"), bash(next, "echo ran")];
  const hand = await eventually(async () => {
    const [waiting] = await handsOf(released);
    return waiting?.stateDetail.startsWith("waits until other hands are made") ? waiting : undefined;
  });
  await rig.admin.releaseHand({ handId: hand.id });
  expect(await running[0]).toMatchObject({ isError: true, outcome: "NOT_STARTED" });
  // The agent has answered, although the hand before it is still being made.
  await eventually(async () => {
    const query = "select 1 from hands where hand_id = $1 and not destroy_pending";
    return (await rig.pool.query(query, [hand.id])).rowCount === 1;
  });
  expect(hasHungUp).toBe(false);
  expect(await running[1]).toMatchObject({ text: "ran" });
  expect(await first).toMatchObject({ outcome: "NOT_STARTED" });
});

test("setup commands count into the same bound, and what was made is removed", async () => {
  const session = await withSession({ provisionTimeoutMs: 1_500, setup: ["sleep 600"] });
  const { text, outcome } = await bash(session, "echo ran");
  expect(text).toMatch(/not ready within 1500 ms|did not answer .+ within \d+ ms/);
  expect(outcome).toBe("NOT_STARTED");
  await eventually(async () => (await listed()).length === 0);
});

test("a hand that could not be destroyed is destroyed within reaper periods, without a reconnect (H1)", async () => {
  const session = await withSession();
  await bash(session, "echo kept > f");
  const [hand] = await handsOf(session);
  say({ on: "destroy", hand: hand!.id, does: { fail: "the engine is away" } });
  const readsBefore = scriptReads;
  await rig.admin.releaseHand({ handId: hand!.id });
  await eventually(() => scriptReads >= readsBefore + 3);
  expect(await listed()).toEqual([hand!.id]);
  script = "";
  await eventually(async () => (await listed()).length === 0);
  const pending = () =>
    rig.pool.query<{ destroy_pending: boolean }>("select destroy_pending from hands where hand_id = $1", [
      hand!.id,
    ]);
  await eventually(async () => !(await pending()).rows[0]!.destroy_pending);
});

test("a failed provision whose remains could not be removed leaves no ghost (H1)", async () => {
  const session = await withSession({ setup: ["test -e go || exit 7"] });
  say({ on: "destroy", times: 2, does: { fail: "the engine is away" } });
  expect(await bash(session, "echo ran")).toMatchObject({
    text: expect.stringContaining("setup command 1 ended with 7"),
    outcome: "NOT_STARTED",
  });
  await eventually(async () => (await listed()).length === 0);
});

test("a workspace that is gone after a restart is told as lost before a new one is used (H2, R16)", async () => {
  const session = await withSession();
  await bash(session, "echo kept > f");
  await agent!.stop();
  say({ on: "recover", does: { gone: true } });
  await startAgent();
  await eventually(async () => (await session.events("hand.lost")).length === 1);
  const told = await bash(session, "cat f");
  expect([told.isError, /lost/.test(told.text)]).toEqual([true, true]);
  expect(await bash(session, "cat f || echo new")).toMatchObject({ text: expect.stringMatching(/new$/) });
  expect(await session.events("hand.lost")).toHaveLength(1);
});

test("a recovery that fails for now is no loss: the hand and its files are there once the driver answers (R16)", async () => {
  const session = await withSession();
  await bash(session, "echo kept > f");
  await agent!.stop();
  say({ on: "recover", times: 2, does: { fail: "the engine is starting" } });
  await startAgent();
  const early = await bash(session, "cat f");
  expect(early).toMatchObject({
    outcome: "NOT_STARTED",
    text: expect.stringContaining("the engine is starting"),
  });
  expect(await bash(session, "cat f")).toMatchObject({
    text: expect.stringMatching(/kept$/),
    isError: false,
  });
  expect(await session.events("hand.lost")).toEqual([]);
});

test("a sandbox that ends in the middle of a call is said, with what had been written; the next call goes on (X3)", async () => {
  const session = await withSession();
  await bash(session, "echo kept > f");
  say({ on: "output", times: 1, does: { endAtByte: 6 } });
  const cut = await bash(session, "echo begun; sleep 60; echo never");
  expect(cut).toMatchObject({ isError: true, outcome: "COMPLETED" });
  expect(cut.text).toMatch(/^begun\n(.*\n)*.*the sandbox ended/);
  expect(await bash(session, "cat f")).toMatchObject({ text: "kept" });
});

test("an agent whose driver hangs stops all the same, and its next life takes the hand up", async () => {
  const session = await withSession();
  await bash(session, "echo kept > f");
  say({ on: "park", does: { hang: true } });
  const began = performance.now();
  await agent!.stop();
  expect(performance.now() - began).toBeLessThan(promised(10_000));
  script = "";
  await startAgent();
  expect(await bash(session, "cat f")).toMatchObject({ text: expect.stringMatching(/kept$/) });
});

test("a stop while a hand is being made gives it up at once, and it is made when the agent is back", async () => {
  const session = await withSession({ provisionTimeoutMs: 120_000 });
  say({ on: "provision", times: 1, does: { hang: true } });
  const readsBefore = scriptReads;
  const running = bash(session, "echo ran");
  await eventually(() => scriptReads > readsBefore);
  const began = performance.now();
  await agent!.stop();
  expect(performance.now() - began).toBeLessThan(promised(5_000));
  script = "";
  await startAgent();
  expect(await running).toMatchObject({ text: "ran", isError: false });
});

test("a call that shows no progress is ended at its environment's bound with a result that says so, also after a restart (R2)", async () => {
  const session = await withSession({ stallTimeoutMs: 1_500 });
  const wedged = async () => {
    const began = performance.now();
    const call = await session.toolUse("bash", {
      command: "echo begun; cat <> wait 2>&1",
      timeout_ms: 600_000,
    });
    const { result } = await collect(rig.harness.execute(call));
    // The bound, a quarter of it, and X4's three seconds.
    expect(performance.now() - began).toBeLessThan(promised(1_500 * 1.25 + 3_000));
    expect(textOf(result!)).toMatch(/^(\[.*\n)?begun\nbash: bash command stalled: for 1500 ms .*\n.*killed/);
    expect(ExecutionOutcome[result!.outcome]).toBe("TIMED_OUT");
    expect(result!.failure).toMatchObject({ part: "sandbox", reason: "STALLED" });
  };
  expect(await bash(session, "mkfifo wait; echo ready")).toMatchObject({ text: "ready" });
  await wedged();
  await agent!.stop();
  await startAgent();
  await wedged();
  // Longer than the bound without a word.
  const busy = "end=$((SECONDS + 4)); while ((SECONDS < end)); do :; done; echo worked";
  expect(await bash(session, busy)).toMatchObject({ text: "worked", isError: false });
});

/** R2, R3, R8: calls that outlast leases, programs that stand still, and whoever goes away holding a call. */
import { join } from "node:path";
import { describe, expect, type TestContext, test, vi } from "vitest";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { eventually } from "../kit/eventually.ts";
import { callEnds, countedCommand, FaultPlatform } from "../kit/fault-platform.ts";
import { isWholeRun, trials } from "../kit/fault-trials.ts";
import { startProgram } from "../kit/program.ts";
import { promised } from "../kit/promised.ts";

vi.setConfig({ testTimeout: 240_000, hookTimeout: 180_000 });

type Cleanup = TestContext["onTestFinished"];

/** Ends with the test. */
async function start(atTheEnd: Cleanup, server: Record<string, string> = {}): Promise<FaultPlatform> {
  const faults = await FaultPlatform.start({ server });
  atTheEnd(() => faults.stop());
  return faults;
}

async function leaseEpoch({ database }: FaultPlatform, sessionId: string): Promise<number> {
  const { rows } = await database
    .pool()
    .query<{ lease_epoch: string }>("select lease_epoch from sessions where session_id = $1", [sessionId]);
  return Number(rows[0]?.lease_epoch);
}

async function agentGenerations({ database }: FaultPlatform): Promise<number[]> {
  const { rows } = await database.pool().query<{ generation: string }>("select generation from hand_agents");
  return rows.map(({ generation }) => Number(generation));
}

async function isRunning(faults: FaultPlatform, tag: string): Promise<void> {
  await eventually(async () => (await faults.runsOf(tag)) === 1, { withinMs: 60_000 });
}

/** Stands still until the returned function is called. */
function freeze(pid: number, atTheEnd: Cleanup): () => void {
  process.kill(pid, "SIGSTOP");
  const goOn = () => process.kill(pid, "SIGCONT");
  atTheEnd(() => {
    try {
      goOn();
    } catch {
      // it has ended
    }
  });
  return goOn;
}

async function standStill(pid: number, forMs: number, atTheEnd: Cleanup): Promise<void> {
  const goOn = freeze(pid, atTheEnd);
  const untilMs = performance.now() + forMs;
  await eventually(() => performance.now() >= untilMs, { withinMs: forMs + 5_000 });
  goOn();
}

/** Nearly all of their time they wait; each has a platform of its own. The whole run takes bounds at their word: one by one. */
const AT_ONCE = { concurrent: !isWholeRun };

describe("a long call (R2)", AT_ONCE, () => {
  test("that takes many times as long as its lease lives runs once, under one lease", async ({
    onTestFinished,
  }) => {
    // A busy machine holds up a harness for a second.
    const ttlMs = 3_000;
    const times = trials(4, 10);
    const faults = await start(onTestFinished, { TENDON_LEASE_TTL_MS: String(ttlMs) });
    const sessionId = await faults.newSession(countedCommand("long", (times * ttlMs) / 1_000 + 1));
    const [end] = callEnds(await faults.rested(sessionId, times * ttlMs + 60_000));
    expect(end).toMatchObject({ outcome: "completed", isError: false });
    expect(await faults.runsOf("long")).toBe(1);
    expect(await leaseEpoch(faults, sessionId)).toBe(1);
  });

  test("goes on under the same lease and over the same connections when harness, server and agent each stand still for 5 s", async ({
    onTestFinished,
  }) => {
    const faults = await start(onTestFinished);
    const sessionId = await faults.newSession(countedCommand("frozen", 20));
    await isRunning(faults, "frozen");
    const before = [await leaseEpoch(faults, sessionId), await agentGenerations(faults)];
    for (const name of ["harness", "server", "hand-agent"] as const)
      await standStill(faults.platform.program(name).pid, 5_000, onTestFinished);
    const events = await faults.rested(sessionId, 60_000);
    expect(callEnds(events)).toMatchObject([{ outcome: "completed", isError: false }]);
    expect(await faults.runsOf("frozen")).toBe(1);
    expect([await leaseEpoch(faults, sessionId), await agentGenerations(faults)]).toEqual(before);
    expect(events.map(({ type }) => type)).not.toContain("session.error");
  });
});

describe("whoever goes away holding a call (R3, R8)", AT_ONCE, () => {
  const TTL_MS = 3_000;
  /** E3: how long a status may be wrong. */
  const WITHIN_MS = TTL_MS + 5_000;

  test("a harness that hangs: the status says so, another takes over, and what it does when it wakes up changes nothing", async ({
    onTestFinished,
  }) => {
    const faults = await start(onTestFinished, { TENDON_LEASE_TTL_MS: String(TTL_MS) });
    const sessionId = await faults.newSession(countedCommand("hang", 6));
    await isRunning(faults, "hang");
    const goOn = freeze(faults.platform.program("harness").pid, onTestFinished);
    const sinceMs = performance.now();
    await eventually(
      async () => {
        const { session } = await faults.sessions.getSession({ sessionId });
        return session?.status === SessionStatus.RESCHEDULING;
      },
      { withinMs: promised(WITHIN_MS + 2_000) },
    );
    // One renewal may have been under way when it stopped.
    expect(performance.now() - sinceMs).toBeLessThan(promised(WITHIN_MS + 1_000));
    const second = startProgram("harness", {
      TENDON_URL: faults.platform.url,
      TENDON_HARNESS_KEY_FILE: join(faults.platform.dataDir, "harness.key"),
    });
    onTestFinished(async () => expect(await second.end("SIGTERM")).toBe(0));
    await faults.rested(sessionId);
    goOn();
    await eventually(() => faults.platform.program("harness").log().includes("a lease ended"));
    const events = await faults.rested(sessionId);
    expect(callEnds(events)).toMatchObject([{ outcome: "completed", isError: false }]);
    expect(await faults.runsOf("hang")).toBe(1);
    expect(await leaseEpoch(faults, sessionId)).toBe(2);
    expect(events.filter(({ type }) => type === "session.status_idle")).toHaveLength(1);
    expect(events.filter(({ type }) => type === "session.status_rescheduled")).toHaveLength(1);
  });

  test("a hand agent that is gone: the log says within 30 s why the session waits, once, and what became of the call when it is back", async ({
    onTestFinished,
  }) => {
    const faults = await start(onTestFinished);
    const sessionId = await faults.newSession(countedCommand("gone", 60));
    await isRunning(faults, "gone");
    await faults.platform.program("hand-agent").end("SIGKILL");
    const errors = async () =>
      (await faults.events(sessionId)).filter(({ type }) => type === "session.error");
    await eventually(async () => (await errors()).length > 0, {
      withinMs: promised(30_000),
      everyMs: 100,
    });
    const untilMs = performance.now() + trials(6_000, 15_000);
    await eventually(() => performance.now() > untilMs, { withinMs: 60_000, everyMs: 200 });
    const [error, ...more] = await errors();
    expect(more).toEqual([]);
    expect(JSON.parse(error?.payload ?? "{}")).toMatchObject({
      error: {
        type: "unknown_error",
        part: "hand_agent",
        reason: "HAND_AGENT_OFFLINE",
        retry_status: { type: "retrying" },
      },
    });
    await faults.platform.start("hand-agent");
    expect(callEnds(await faults.rested(sessionId))).toMatchObject([{ outcome: "unknown", isError: true }]);
    expect(await faults.runsOf("gone")).toBe(1);
  });
});

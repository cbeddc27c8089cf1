/**
 * R1: harness, server and hand agent are killed at every named point of a call's way, and started again. A file of the hand
 * counts how often the call ran; the log holds exactly one result, which is honest about what is not known (X1, X3).
 */
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import type { FailpointName } from "../../kit/failpoint.ts";
import { type CallEnd, callEnds, countedCommand, FaultPlatform, programOf } from "../kit/fault-platform.ts";
import { isWholeRun } from "../kit/fault-trials.ts";

let faults: FaultPlatform;
let trial = 0;

beforeAll(async () => {
  faults = await FaultPlatform.start({ server: { TENDON_LEASE_TTL_MS: "5000" } });
});
afterAll(() => faults?.stop());

vi.setConfig({ testTimeout: 120_000 });

interface Ended extends CallEnd {
  readonly runs: number;
}

/** A call during which its program dies at this point; the last call of the session when several are made. */
async function dieAt(
  point: FailpointName,
  { at = 1, calls = 1, diskLost = false }: { at?: number; calls?: number; diskLost?: boolean } = {},
): Promise<Ended> {
  const name = programOf(point);
  const program = await faults.restart(name, `${point}=kill@${at}`);
  if (name === "server") {
    // Those that have seen it go away several times by now wait longer and longer before they dial again.
    await Promise.all([faults.restart("hand-agent"), faults.restart("harness")]);
  }
  trial += 1;
  const tag = (call: number) => `run-${trial}-${call}`;
  const sessionId = await faults.newSession(countedCommand(tag(1)));
  for (let call = 2; call <= calls; call += 1) {
    await faults.rested(sessionId);
    await faults.say(sessionId, countedCommand(tag(call)));
  }
  expect(await program.ended).toBe("SIGKILL");
  if (diskLost) await faults.loseAgentDisk();
  await faults.platform.start(name);
  const ends = callEnds(await faults.rested(sessionId));
  expect(ends).toHaveLength(calls);
  for (const [index, end] of ends.entries()) {
    const runs = await faults.runsOf(tag(index + 1));
    expect(runs).toBeLessThanOrEqual(1);
    if (end.outcome === "completed")
      expect([runs, end.text]).toEqual([1, expect.stringMatching(/started\nended$/)]);
    else expect([end.outcome, end.isError]).toEqual(["unknown", true]);
  }
  return { ...ends.at(-1)!, runs: await faults.runsOf(tag(calls)) };
}

const COMPLETED = { outcome: "completed", isError: false, runs: 1 };
const unknown = (runs: number) => ({ outcome: "unknown", isError: true, runs });

/** In `npm test` one of each kind of test that needs the most starts. */
const few = <T>(rows: readonly T[]) => (isWholeRun ? rows : rows.slice(0, 1));

describe("a call whose hand agent is killed (R1, X1)", () => {
  test.each<[FailpointName, object]>([
    ["agent.start_received", COMPLETED],
    ["agent.journalled", unknown(0)],
    ["agent.tool_running", unknown(1)],
    ["agent.tool_ended", unknown(1)],
    ["agent.result_journalled", COMPLETED],
    ["agent.result_sent", COMPLETED],
    ["agent.result_acked", COMPLETED],
  ])("at %s has one result: %o", async (point, expected) => {
    expect(await dieAt(point)).toMatchObject(expected);
  });

  const lost = few<[FailpointName, object]>([
    ["agent.tool_running", unknown(1)],
    ["agent.start_received", unknown(0)],
    ["agent.journalled", unknown(0)],
    ["agent.tool_ended", unknown(1)],
    ["agent.result_journalled", unknown(1)],
    // Whether the bytes had left the process is the network's affair; dieAt says what holds for both.
    ["agent.result_sent", {}],
    ["agent.result_acked", COMPLETED],
  ]);
  test.each(lost)(
    "at %s, and whose agent comes back without its disk, has one result: %o",
    async (point, expected) => {
      expect(await dieAt(point, { diskLost: true })).toMatchObject(expected);
    },
  );
});

describe("a call whose server is killed (R1, X1)", () => {
  const points = [
    "server.before_bind",
    "server.bound",
    "server.result_received",
    "server.result_stored",
  ] as const;

  test.each(points)("at %s runs once and completes", async (point) => {
    expect(await dieAt(point)).toMatchObject(COMPLETED);
  });

  test.each(few(points))(
    "at %s, on the short way of a session's second call, runs once and completes",
    async (point) => {
      expect(await dieAt(point, { calls: 2, at: 2 })).toMatchObject(COMPLETED);
    },
  );
});

describe("a call whose harness is killed (R1, X2, X3)", () => {
  test.each([
    "harness.before_dispatch",
    "harness.dispatched",
    "harness.output",
    "harness.result_received",
  ] as const)("at %s runs once and completes", async (point) => {
    expect(await dieAt(point)).toMatchObject(COMPLETED);
  });

  // The appends of a turn with one call: request, answer with the call, request, answer, idle.
  const appends = few([3, 1, 2, 4, 5]);
  test.each(appends)("before and after append number %i of its turn runs once and completes", async (at) => {
    expect(await dieAt("harness.before_append", { at })).toMatchObject(COMPLETED);
    expect(await dieAt("harness.appended", { at })).toMatchObject(COMPLETED);
  });
});

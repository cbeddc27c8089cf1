/**
 * R14, R8: through the whole way from a client to a hand and back, no process outlives what it belongs to, and nothing is
 * left of calls that have ended. What is alive is asked of the machine.
 */
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { ExecutionOutcome, HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "../kit/eventually.ts";
import { textOfResult } from "../kit/execution-stream.ts";
import { trials } from "../kit/fault-trials.ts";
import type { HandOperator } from "../kit/hand-operator.ts";
import { type OperatorRig, startOperatorRig } from "../kit/operator-rig.ts";
import type { Platform } from "../kit/platform.ts";
import { descendantsOf, openDescriptors, processesWithArgument, residentBytes } from "../kit/process-tree.ts";
import { promised } from "../kit/promised.ts";

vi.setConfig({ testTimeout: 300_000 });

let rig: OperatorRig;
let platform: Platform;
let operator: HandOperator;

beforeAll(async () => {
  rig = await startOperatorRig();
  ({ platform, operator } = rig);
});
afterAll(() => rig?.stop());

/** The bound of X4. */
const DEAD_WITHIN_MS = 3_000;
/** Long enough to start most of what is to be killed, also on a busy machine. */
const TIMEOUT_MS = 2_000;

const ESCAPES = [
  "setsid sleep N &",
  "(setsid /bin/sh -c 'sleep N & sleep N &' &)",
  "nohup sleep N >/dev/null 2>&1 &",
  "env -i setsid /bin/sleep N >/dev/null 2>&1 &",
  "( ( trap '' TERM INT HUP; sleep N; sleep N ) & ) >/dev/null 2>&1",
];
const ESCAPED = 6;

let counter = 0;
/** A number of seconds that no other process of this machine sleeps for. */
const newNumber = () => `${process.pid}${1_000_000 + ++counter}`;
const detached = (number: string) => ESCAPES.join("\n").replaceAll("N", number);

async function escaped(number: string): Promise<void> {
  await eventually(() => processesWithArgument(number).length >= ESCAPED);
}

describe("detached descendants of a call are dead within 3 s (R14, X4)", () => {
  test("of its cancel", async () => {
    const hand = await operator.provision();
    for (let round = 0; round < trials(2, 20); round += 1) {
      const number = newNumber();
      const call = operator.begin(hand.id, `${detached(number)}\nsleep ${number}`);
      await escaped(number);
      const began = performance.now();
      await operator.cancel(call.executionId);
      const { result } = await call.ran;
      expect(processesWithArgument(number)).toEqual([]);
      expect(performance.now() - began).toBeLessThan(promised(DEAD_WITHIN_MS));
      expect(result.outcome).toBe(ExecutionOutcome.CANCELLED);
    }
    await operator.release(hand.id);
  });

  test("of its timeout", async () => {
    const hand = await operator.provision();
    for (let round = 0; round < trials(1, 10); round += 1) {
      const number = newNumber();
      const call = operator.begin(hand.id, `${detached(number)}\nsleep ${number}`, { timeoutMs: TIMEOUT_MS });
      // A busy machine may not come to all of them before the time is over.
      await Promise.race([escaped(number), call.ran]);
      const seen = performance.now();
      const { result } = await call.ran;
      expect(processesWithArgument(number)).toEqual([]);
      // Seen running before its time was over, so the bound is at most that time away.
      expect(performance.now() - seen).toBeLessThan(promised(TIMEOUT_MS + DEAD_WITHIN_MS));
      expect(result.outcome).toBe(ExecutionOutcome.TIMED_OUT);
    }
    await operator.release(hand.id);
  });

  test("of its hand's release, which answers once nothing is left, though the calls had ended long before (R8)", async () => {
    for (let round = 0; round < trials(2, 20); round += 1) {
      const hand = await operator.provision();
      const number = newNumber();
      const { result } = await operator.run(hand.id, `${detached(number)}\necho done`);
      expect(textOfResult(result)).toContain("done");
      await escaped(number);
      const began = performance.now();
      const released = await operator.release(hand.id);
      expect(processesWithArgument(number)).toEqual([]);
      expect(performance.now() - began).toBeLessThan(promised(DEAD_WITHIN_MS));
      expect([released.state, released.stateDetail]).toEqual([HandState.RELEASED, "released by an admin"]);
    }
  });

  test("of its agent's end", async () => {
    const hand = await operator.provision();
    const number = newNumber();
    await operator.run(hand.id, `${detached(number)}\necho done`);
    await escaped(number);
    expect(await platform.program("hand-agent").end("SIGTERM")).toBe(0);
    expect(processesWithArgument(number)).toEqual([]);
    await platform.start("hand-agent");
    expect(textOfResult((await operator.run(hand.id, "echo again")).result)).toContain("again");
    await operator.release(hand.id);
  });
});

test("after 1,000 calls no zombie and no open descriptor is left, and the agent has not grown beyond its bound (R14)", async () => {
  const calls = trials(100, 1_000);
  const { pid } = platform.program("hand-agent");
  const without = descendantsOf(pid).length;
  const hand = await operator.provision();
  const COMMANDS = [
    "true",
    "(sleep 0.01 &)",
    "(setsid true &)",
    "nohup sleep 0.01 >/dev/null 2>&1 &",
    "sh -c 'exit 3'",
  ];
  const run = async (index: number) => {
    const { result } = await operator.run(hand.id, COMMANDS[index % COMMANDS.length] ?? "true");
    expect(result.outcome).toBe(ExecutionOutcome.COMPLETED);
  };
  for (let index = 0; index < 20; index += 1) await run(index);
  const before = { descriptors: openDescriptors(pid), processes: descendantsOf(pid).length };
  for (let index = 0; index < calls; index += 1) await run(index);
  await eventually(() => descendantsOf(pid).filter(({ state }) => state === "Z").length === 0);
  await eventually(() => descendantsOf(pid).length <= before.processes);
  await eventually(() => openDescriptors(pid) <= before.descriptors);
  expect(residentBytes(pid)).toBeLessThan(200 * 1024 * 1024);
  await operator.release(hand.id);
  await eventually(() => descendantsOf(pid).length <= without);
});

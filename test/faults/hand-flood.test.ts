/** R9, R13, X5: a call that floods while nobody reads, over the real programs: memory stays bounded and others go on. */
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { ExecutionOutcome } from "../../proto/gen/tendon/v1/hand_pb.js";
import { textOfResult } from "../kit/execution-stream.ts";
import { trials } from "../kit/fault-trials.ts";
import type { HandOperator } from "../kit/hand-operator.ts";
import { type OperatorRig, startOperatorRig } from "../kit/operator-rig.ts";
import type { Platform } from "../kit/platform.ts";
import { residentBytes } from "../kit/process-tree.ts";
import { promised } from "../kit/promised.ts";

vi.setConfig({ testTimeout: 600_000 });

const MiB = 1024 * 1024;
/** 1 GiB in the whole run. */
const FLOOD_BYTES = trials(128, 1_024) * MiB;
/** Far below the flood. */
const MAX_GROWTH_BYTES = 100 * MiB;

let rig: OperatorRig;
let platform: Platform;
let operator: HandOperator;

beforeAll(async () => {
  rig = await startOperatorRig();
  ({ platform, operator } = rig);
});
afterAll(() => rig?.stop());

const resident = () => ({
  server: residentBytes(platform.program("server").pid),
  agent: residentBytes(platform.program("hand-agent").pid),
});

test(`of ${FLOOD_BYTES / MiB} MiB to a reader that never reads: other calls answer, both programs stay small, the result is whole (R9, R13, X5)`, async () => {
  const [flooded, other] = [await operator.provision(), await operator.provision()];
  for (let index = 0; index < 50; index += 1) await operator.run(other.id, "true");
  const before = resident();
  const command = `seq 1 1000000000 | head -c ${FLOOD_BYTES}`;
  const request = {
    executionId: "flood",
    handId: flooded.id,
    name: "bash",
    input: JSON.stringify({ command }),
  };
  const neverRead = operator.hands.execute(request);
  expect((await neverRead[Symbol.asyncIterator]().next()).value?.kind.case).toBe("bound");
  const end = operator.hands.execute(request);
  // A second caller who reads the end only: what the flood's own reader does not take holds nobody up for long.
  let result: Awaited<ReturnType<HandOperator["run"]>>["result"] | undefined;
  const ended = (async () => {
    for (
      let attempt = end;
      ;
      attempt = operator.hands.execute({ ...request, fromOffset: BigInt(FLOOD_BYTES) })
    ) {
      try {
        for await (const { kind } of attempt) if (kind.case === "result") result = kind.value;
        if (result !== undefined) return;
      } catch (error) {
        if (!String(error).includes("too slowly")) throw error;
      }
    }
  })();
  const most = { ...before };
  let calls = 0;
  let slowestMs = 0;
  while (result === undefined) {
    const began = performance.now();
    expect((await operator.run(other.id, "echo alive")).output).toBe("alive\n");
    slowestMs = Math.max(slowestMs, performance.now() - began);
    calls += 1;
    const now = resident();
    most.server = Math.max(most.server, now.server);
    most.agent = Math.max(most.agent, now.agent);
  }
  await ended;
  neverRead.cancel();
  const grown = { server: most.server - before.server, agent: most.agent - before.agent };
  console.log(
    `${FLOOD_BYTES / MiB} MiB: ${calls} other calls meanwhile, the slowest ${Math.round(slowestMs)} ms; grown by MiB: server ${Math.round(grown.server / MiB)}, agent ${Math.round(grown.agent / MiB)}`,
  );
  expect(calls).toBeGreaterThan(5);
  expect(slowestMs).toBeLessThan(promised(5_000));
  expect(grown.server).toBeLessThan(MAX_GROWTH_BYTES);
  expect(grown.agent).toBeLessThan(MAX_GROWTH_BYTES);

  expect(result.outcome).toBe(ExecutionOutcome.COMPLETED);
  expect(Number(result.outputBytes)).toBe(FLOOD_BYTES);
  const text = textOfResult(result);
  expect(text.length).toBeLessThanOrEqual(100_200);
  expect(text.slice(0, 8)).toBe("1\n2\n3\n4\n");
  expect(text).toMatch(/\[\d+ bytes dropped; all of it is in .+\]/);
  const [artefact] = result.artefacts;
  expect(Number(artefact?.sizeBytes)).toBe(FLOOD_BYTES);
  const found = (await operator.run(flooded.id, `sha256sum '${artefact?.path}' | cut -c1-64`)).output.trim();
  expect(found).toBe(artefact?.sha256);
  expect((await operator.run(flooded.id, "echo healthy")).output).toBe("healthy\n");
  await operator.release(flooded.id);
  await operator.release(other.id);
});

import { expect, test } from "vitest";
import { RING_BYTES } from "../../server/hand/live-execution.ts";
import { eventually } from "../kit/eventually.ts";
import { collectExecution as collect, textOfResult as textOf } from "../kit/execution-stream.ts";
import type { HandRig } from "../kit/hand-rig.ts";
import { promised } from "../kit/promised.ts";
import { textResult } from "../kit/scripted-hand-agent.ts";
import { useHandRigs } from "../kit/use-hand-rig.ts";

const rigs = useHandRigs();
let rig: HandRig;

/** How long a reader that holds up an execution may take nothing. */
const start = async (readerStallMs: number) => {
  rig = await rigs.start({ timing: { readerStallMs } });
};
/** Longer than a busy machine keeps a reader that reads from it. */
const PATIENT_MS = 7_000;

const FLOOD_BYTES = 32 * 1024 * 1024;

async function floodingSession() {
  const flood = Buffer.alloc(FLOOD_BYTES, "0123456789abcdef");
  const agent = await rig.agent({
    run: (call) => {
      if (call.input.flood !== true) return textResult("quick");
      call.write(flood);
      return textResult("flooded");
    },
  });
  await agent.connect();
  const session = await rig.session();
  await collect(rig.harness.execute(await session.toolUse("echo", {})));
  return { agent, session, flood };
}

test("a flood to a reader that never reads delays no other call, and ends all the same (X5, R9)", async () => {
  await start(300);
  const { agent, session } = await floodingSession();
  const call = await session.toolUse("bash", { flood: true });
  // Nobody iterates over this stream: after the first messages nothing more is taken from the connection.
  const neverRead = rig.hands({ kind: "harness", keyId: "k", workspaceId: undefined }).execute(call);
  const first = await neverRead[Symbol.asyncIterator]().next();
  expect(first.value?.kind.case).toBe("bound");
  for (let round = 0; round < 10; round += 1) {
    const started = performance.now();
    const quick = await collect(rig.harness.execute(await session.toolUse("echo", {})));
    expect(textOf(quick.result)).toBe("quick");
    expect(performance.now() - started).toBeLessThan(promised(1_000));
  }
  // The result does not wait for the reader: it is in the log after the stall bound and the time the bytes need.
  await eventually(async () => (await session.events("agent.tool_result")).length === 12, {
    withinMs: 60_000,
  });
  expect(agent.isOnline).toBe(true);
  neverRead.cancel();
});

test("a reader that reads gets every byte of a flood in order (X5, R11)", async () => {
  await start(PATIENT_MS);
  const { session, flood } = await floodingSession();
  const ran = await collect(rig.harness.execute(await session.toolUse("bash", { flood: true })));
  expect(ran.firstOffset).toBe(0);
  expect(Buffer.from(ran.output).equals(flood)).toBe(true);
  expect(textOf(ran.result)).toBe("flooded");
});

test("a reader that comes after megabytes gets them from the byte it asks for (X2)", async () => {
  await start(PATIENT_MS);
  const total = 3 * RING_BYTES;
  let end!: () => void;
  const ended = new Promise<void>((resolve) => {
    end = resolve;
  });
  const agent = await rig.agent({
    run: async (call) => {
      call.write(Buffer.alloc(total, "0123456789abcdef"));
      await ended;
      return textResult("ok");
    },
  });
  await agent.connect();
  const session = await rig.session();
  const call = await session.toolUse("bash", {});
  const abort = new AbortController();
  const left = collect(rig.harness.execute(call, { signal: abort.signal }));
  left.catch(() => {});
  await eventually(() => agent.runs.size === 1);
  abort.abort();
  await eventually(() => rig.area.bufferedBytes() >= RING_BYTES, { withinMs: 60_000 });
  const again = collect(rig.harness.execute({ ...call, fromOffset: 16n }));
  again.catch(() => {});
  await eventually(() => agent.resumeOffsets.length >= 2);
  expect(agent.resumeOffsets[1]).toBe(16);
  end();
  const ran = await again;
  expect(ran.firstOffset).toBe(16);
  expect(ran.output.length).toBe(total - 16);
  expect([...agent.runs.values()]).toEqual([1]);
});

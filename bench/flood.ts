/**
 * What a call costs while another one on the same hand agent floods and nobody reads what it writes, against the same calls
 * on the same platform when nothing else runs.
 */
import { HandOperator } from "../test/kit/hand-operator.ts";
import { startPlatform } from "../test/kit/platform.ts";
import { residentBytes } from "../test/kit/process-tree.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";
import { percentile } from "./frame/measure.ts";

const MiB = 1024 ** 2;
const FLOOD_BYTES = 1024 * MiB;
const CALLS = 1_000;
const WARM_UP = 100;
/** Of the product: how much slower other calls may become. */
const AIM_RATIO = 2;

export const flood: Bench = {
  name: "flood",
  describe: "bash calls while another call floods to a reader that never reads, against the same calls alone",
  async run(context) {
    context.say("starting the platform …");
    const platform = await startPlatform({ programs: ["hand-agent"] });
    context.defer(() => platform.stop());
    const operator = new HandOperator(platform);
    const [flooded, other] = [await operator.provision(), await operator.provision()];
    const once = () => timed(() => operator.run(other.id, "true"));
    for (let index = 0; index < WARM_UP; index += 1) await once();
    const pids = [platform.program("server").pid, platform.program("hand-agent").pid];
    const before = pids.map((pid) => residentBytes(pid));
    const alone: number[] = [];
    for (let index = 0; index < Math.max(20, CALLS * context.scale); index += 1) alone.push(await once());
    const beside = await duringFlood(context, operator, flooded.id, once);
    const grown = pids.map((pid, index) => residentBytes(pid, { peak: true }) - (before[index] ?? 0));
    return figures(alone, beside, grown);
  },
};

function figures(alone: readonly number[], beside: readonly number[], grown: readonly number[]): Figure[] {
  const row = (p: number, hasAim: boolean): Figure => {
    const [product, baseline] = [percentile(beside, p), percentile(alone, p)];
    return {
      figure: `call p${p * 100} beside a flood`,
      unit: "ms",
      product,
      baseline,
      aim: hasAim ? `≤ ${AIM_RATIO}× baseline` : undefined,
      met: hasAim ? product <= AIM_RATIO * baseline : undefined,
    };
  };
  const memory = (of: string, bytes = 0): Figure => ({
    figure: `${of}, most that it grew by`,
    unit: "MiB",
    product: bytes / MiB,
    baseline: undefined,
    aim: undefined,
    met: undefined,
  });
  return [row(0.5, false), row(0.99, true), memory("server", grown[0]), memory("agent", grown[1])];
}

/** Times of calls that began and ended while the flood went on. */
async function duringFlood(
  context: BenchContext,
  operator: HandOperator,
  handId: string,
  once: () => Promise<number>,
): Promise<number[]> {
  const bytes = Math.max(64, Math.round((FLOOD_BYTES / MiB) * context.scale)) * MiB;
  context.say(`${bytes / MiB} MiB …`);
  const command = `seq 1 1000000000 | head -c ${bytes}`;
  const request = { executionId: "flood", handId, name: "bash", input: JSON.stringify({ command }) };
  const neverRead = operator.hands.execute(request);
  await neverRead[Symbol.asyncIterator]().next();
  let ended = false;
  const watching = untilResult(operator, request, bytes).then(() => {
    ended = true;
  });
  const times: number[] = [];
  while (!ended) {
    const ms = await once();
    if (!ended) times.push(ms);
  }
  await watching;
  neverRead.cancel();
  return times;
}

/** Asks for what comes behind the last byte: the result alone. */
async function untilResult(
  operator: HandOperator,
  request: { executionId: string; handId: string; name: string; input: string },
  bytes: number,
): Promise<void> {
  for (;;) {
    try {
      for await (const { kind } of operator.hands.execute({ ...request, fromOffset: BigInt(bytes) })) {
        if (kind.case === "result") return;
      }
    } catch (error) {
      if (!String(error).includes("too slowly")) throw error;
    }
  }
}

async function timed(run: () => Promise<unknown>): Promise<number> {
  const began = performance.now();
  await run();
  return performance.now() - began;
}

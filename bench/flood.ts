/**
 * What a call costs while another one on the same hand agent floods and nobody reads what it writes, against the same calls
 * on the same platform when nothing else runs, and against the same calls while the same command writes to nowhere: what
 * then is slower is for want of processors, whoever carries the bytes.
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
    const busy = await besideBusyCommand(operator, flooded.id, once, alone.length);
    const beside = await duringFlood(context, operator, flooded.id, once);
    const grown = pids.map((pid, index) => residentBytes(pid, { peak: true }) - (before[index] ?? 0));
    return figures({ alone, busy, beside }, grown);
  },
};

type Times = Readonly<Record<"alone" | "busy" | "beside", readonly number[]>>;

function figures(times: Times, grown: readonly number[]): Figure[] {
  const row = (p: number, against: "alone" | "busy"): Figure => {
    const [product, baseline] = [percentile(times.beside, p), percentile(times[against], p)];
    const hasAim = p === 0.99 && against === "alone";
    return {
      figure: `call p${p * 100} beside a flood, to ${against === "alone" ? "alone" : "beside it to nowhere"}`,
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
  const rows = [row(0.5, "alone"), row(0.99, "alone"), row(0.5, "busy"), row(0.99, "busy")];
  return [...rows, memory("server", grown[0]), memory("agent", grown[1])];
}

/** Times of calls while another hand's command does the flood's work and no byte of it is carried. */
async function besideBusyCommand(
  operator: HandOperator,
  handId: string,
  once: () => Promise<number>,
  calls: number,
): Promise<number[]> {
  const command = `echo; while :; do ${flooding(FLOOD_BYTES)} >/dev/null; done`;
  const request = { executionId: "busy", handId, name: "bash", input: JSON.stringify({ command }) };
  const work = operator.hands.execute(request);
  await work[Symbol.asyncIterator]().next();
  const times: number[] = [];
  while (times.length < calls) times.push(await once());
  work.cancel();
  await operator.cancel("busy");
  return times;
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
  const command = flooding(bytes);
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

const flooding = (bytes: number) => `seq 1 1000000000 | head -c ${bytes}`;

async function timed(run: () => Promise<unknown>): Promise<number> {
  const began = performance.now();
  await run();
  return performance.now() - began;
}

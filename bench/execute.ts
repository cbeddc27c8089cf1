/**
 * What a call costs: brain → server → hand agent → `true` in the hand → back, against starting `true` directly on the same
 * machine, and against the same command over a multiplexed OpenSSH connection.
 *
 * The bench is the brain: it holds a lease and sends calls as a harness does, each one journalled and synced on the agent's
 * disk, bound in Postgres before it is sent, and its result appended to the log before it comes back. What the disk takes
 * of that is measured in the same stretch: the same number of small writes, each synced before the next.
 */
import { spawn } from "node:child_process";
import { mkdtemp, open, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestEngine, useDocker, whyNoDocker } from "../test/kit/docker.ts";
import { ensureNodeImage } from "../test/kit/docker-images.ts";
import { type Platform, startPlatform } from "../test/kit/platform.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";
import { type Brain, startBrain } from "./frame/brain.ts";
import { type Contender, interleave, percentile } from "./frame/measure.ts";
import { startOpenSsh, whyNoOpenSsh } from "./frame/openssh.ts";

const ROUNDS = 10;
const PER_ROUND = 20;
/** Programs that run for weeks are measured, so their code is compiled before the first sample. */
const WARM_UP = 200;
/** Disk syncs that a call waits for, one after the other: the bind, the agent's journal, the result. */
const SYNCS = 3;
/** Aims of the product: at most so much above the bare start, and at most this share of OpenSSH. */
const AIM_ABOVE_SPAWN_MS = 3;
const AIM_OF_SSH = 0.5;
/** Of a call in a container, against the command line that people would use instead. */
const AIM_OF_DOCKER_EXEC = 0.1;

export const execute: Bench = {
  name: "execute",
  describe:
    "one bash call of `true` through the platform, against a bare process, OpenSSH, and in a container against docker exec",
  async run(context) {
    context.say("starting the platform …");
    const engine = whyNoDocker() === undefined ? await useDocker() : undefined;
    if (engine !== undefined) context.defer(() => engine.release());
    const env = engine === undefined ? {} : { "hand-agent": { DOCKER_HOST: engine.host } };
    const platform = await startPlatform({ programs: ["hand-agent"], env });
    context.defer(() => platform.stop());
    const rounds = Math.max(1, Math.round(ROUNDS * context.scale));
    return [
      ...(await againstProcesses(context, platform, rounds)),
      await againstDockerExec(context, platform, engine, rounds),
    ];
  },
};

async function againstProcesses(
  context: BenchContext,
  platform: Platform,
  rounds: number,
): Promise<Figure[]> {
  const brain = await startBrain(context, platform, { name: "process", driver: "process" });
  const whyNot = whyNoOpenSsh();
  const contenders: Contender[] = [
    { name: "tendon", once: () => brain.call() },
    { name: "spawn", once: spawnTrue },
    { name: "syncs", once: await syncer(context) },
  ];
  if (whyNot === undefined) {
    const ssh = await startOpenSsh();
    context.defer(() => ssh.stop());
    contenders.push({ name: "ssh", once: () => ssh.runTrue() });
  }
  context.say("measuring …");
  const samples = await measure(brain, contenders, rounds, WARM_UP);
  return figures(samples, whyNot);
}

async function againstDockerExec(
  context: BenchContext,
  platform: Platform,
  engine: TestEngine | undefined,
  rounds: number,
): Promise<Figure> {
  const figure = "call p50 in a container, against docker exec";
  const aim = `≤ ${AIM_OF_DOCKER_EXEC}× baseline`;
  if (engine === undefined) {
    const note = whyNoDocker() ?? "";
    return { figure, unit: "ms", product: 0, baseline: undefined, aim, met: undefined, note };
  }
  context.say("measuring in a container …");
  const image = await ensureNodeImage(engine);
  const brain = await startBrain(context, platform, { name: "docker", driver: "docker", image });
  const name = `tendon-bench-${process.pid}`;
  await engine.docker("run", "--detach", "--name", name, "--network", "none", image, "sleep", "86400");
  context.defer(() => engine.docker("rm", "--force", name).then(() => {}));
  const contenders: Contender[] = [
    { name: "tendon", once: () => brain.call() },
    { name: "exec", once: async () => void (await engine.docker("exec", name, "true")) },
  ];
  const at = await measure(brain, contenders, rounds, Math.round(WARM_UP / 4));
  const [product, baseline] = [at("tendon", 0.5), at("exec", 0.5)];
  return { figure, unit: "ms", product, baseline, aim, met: product <= AIM_OF_DOCKER_EXEC * baseline };
}

type At = (name: string, p: number) => number;

async function measure(brain: Brain, contenders: Contender[], rounds: number, warmUp: number): Promise<At> {
  await brain.intend((rounds * PER_ROUND + warmUp) * 2);
  const samples = await interleave(contenders, { rounds, perRound: PER_ROUND, warmUp });
  return (name, p) => percentile(samples.get(name)?.ms ?? [], p);
}

function figures(at: At, whyNoSsh: string | undefined): Figure[] {
  const tendon = at("tendon", 0.5);
  const spawned = at("spawn", 0.5);
  const rows: Figure[] = [
    {
      figure: "call p50, against a bare process",
      unit: "ms",
      product: tendon,
      baseline: spawned,
      aim: `≤ baseline + ${AIM_ABOVE_SPAWN_MS} ms`,
      met: tendon <= spawned + AIM_ABOVE_SPAWN_MS,
    },
    {
      figure: "call p95, against a bare process",
      unit: "ms",
      product: at("tendon", 0.95),
      baseline: at("spawn", 0.95),
      aim: undefined,
      met: undefined,
    },
  ];
  rows.push({
    figure: `${SYNCS} disk syncs alone, p50`,
    unit: "ms",
    product: at("syncs", 0.5),
    baseline: undefined,
    aim: undefined,
    met: undefined,
    note: "every call waits for them, whatever else is fast; neither the bare process nor OpenSSH syncs anything",
  });
  const ssh = whyNoSsh === undefined ? at("ssh", 0.5) : undefined;
  rows.push({
    figure: "call p50, against OpenSSH",
    unit: "ms",
    product: tendon,
    baseline: ssh,
    aim: `≤ ${AIM_OF_SSH}× baseline`,
    met: ssh === undefined ? undefined : tendon <= AIM_OF_SSH * ssh,
    ...(whyNoSsh === undefined ? {} : { note: whyNoSsh }),
  });
  return rows;
}

function spawnTrue(): Promise<void> {
  return new Promise((resolve, reject) => {
    spawn("true", { stdio: "ignore" })
      .once("error", reject)
      .once("exit", () => resolve());
  });
}

/** Writes over a file that has its size already, as Postgres and the agent's journal do. */
async function syncer(context: BenchContext): Promise<() => Promise<void>> {
  const folder = await mkdtemp(join(tmpdir(), "tendon-syncs-"));
  context.defer(() => rm(folder, { recursive: true, force: true }));
  const file = await open(join(folder, "file"), "w+");
  context.defer(() => file.close());
  const page = Buffer.alloc(8 * 1024, 1);
  await file.write(page, 0, page.length, 0);
  await file.sync();
  return async () => {
    for (let i = 0; i < SYNCS; i++) {
      await file.write(page, 0, page.length, 0);
      await file.datasync();
    }
  };
}

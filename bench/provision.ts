/**
 * What a docker hand costs until it takes calls, against the engine's bare create and start of the same image with nothing
 * around it; and what one costs that was made ahead. Measured at the driver: what the platform adds is `execute`'s first call.
 */
import { randomBytes } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import Docker from "dockerode";
import { DockerDriver } from "../hand-agent/drivers/docker/docker-driver.ts";
import type { Hand, WarmSpec } from "../hand-agent/drivers/driver.ts";
import { systemClock } from "../kit/clock.ts";
import { createLogger } from "../kit/log.ts";
import { type TestEngine, useDocker, whyNoDocker } from "../test/kit/docker.ts";
import { ensureNodeImage } from "../test/kit/docker-images.ts";
import { eventually } from "../test/kit/eventually.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";
import { interleave, percentile } from "./frame/measure.ts";

const ROUNDS = 10;
const PER_ROUND = 4;
const WARM_UP = 3;
const WARM_CLAIMS = 30;
const WARM_WITHIN_MS = 60_000;
const AIM_OF_BARE = 1.15;
const AIM_WARM_MS = 10;

export const provision: Bench = {
  name: "provision",
  describe:
    "a docker hand until it takes calls, against a bare create and start; and one that was made ahead",
  async run(context) {
    const whyNot = whyNoDocker();
    if (whyNot !== undefined) throw new Error(`this bench needs a Docker engine: ${whyNot}`);
    const engine = await useDocker();
    context.defer(() => engine.release());
    const image = await ensureNodeImage(engine);
    const hands = await BenchHands.start(context, engine, image);
    context.say("measuring cold …");
    const rounds = Math.max(1, Math.round(ROUNDS * context.scale));
    const bare = new Docker({ socketPath: engine.socketPath });
    const samples = await interleave(
      [
        { name: "cold", once: async () => [await hands.coldMs()] },
        { name: "bare", once: async () => [await bareMs(bare, image)] },
      ],
      { rounds, perRound: PER_ROUND, warmUp: WARM_UP },
    );
    const cold = percentile(samples.get("cold")?.ms ?? [], 0.5);
    const baseline = percentile(samples.get("bare")?.ms ?? [], 0.5);
    context.say("measuring hands made ahead …");
    const claims: number[] = [];
    const wanted = Math.max(3, Math.round(WARM_CLAIMS * context.scale));
    for (let i = 0; i < wanted; i++) claims.push(await hands.warmMs());
    const warm = percentile(claims, 0.5);
    const figures: Figure[] = [
      {
        figure: "cold provision p50, against create + start",
        unit: "ms",
        product: cold,
        baseline,
        aim: `≤ ${AIM_OF_BARE}× baseline`,
        met: cold <= AIM_OF_BARE * baseline,
      },
      {
        figure: "claim of a hand made ahead, p50",
        unit: "ms",
        product: warm,
        baseline: undefined,
        aim: `≤ ${AIM_WARM_MS} ms`,
        met: warm <= AIM_WARM_MS,
      },
    ];
    return figures;
  },
};

class BenchHands {
  private readonly driver: DockerDriver;
  private readonly image: string;
  private madeAhead = 0;
  private claimed = 0;

  private constructor(driver: DockerDriver, image: string) {
    this.driver = driver;
    this.image = image;
  }

  static async start(context: BenchContext, engine: TestEngine, image: string): Promise<BenchHands> {
    const dataDir = await mkdtemp(join(tmpdir(), "tendon-bench-docker-"));
    context.defer(() => rm(dataDir, { recursive: true, force: true }));
    const driver = new DockerDriver({
      dataDir,
      clock: systemClock,
      log: createLogger("bench", "silent"),
      tools: [],
      engine: { host: engine.host },
      installationId: () => "inst_bench",
    });
    context.defer(() => driver.close());
    return new BenchHands(driver, image);
  }

  /** Until the hand takes calls; its removal is not counted. */
  async coldMs(): Promise<number> {
    const startedMs = performance.now();
    const hand = await this.provision();
    const ms = performance.now() - startedMs;
    await hand.destroy();
    return ms;
  }

  /** Until a hand that was made ahead is its caller's; the first call begins the pool. */
  async warmMs(): Promise<number> {
    const warm: WarmSpec = {
      size: 1,
      maxAgeMs: 3_600_000,
      setup: { key: "bench", run: async () => void this.madeAhead++ },
    };
    if (this.madeAhead === 0) await (await this.provision(warm)).destroy();
    await eventually(() => this.madeAhead > this.claimed, { withinMs: WARM_WITHIN_MS });
    const startedMs = performance.now();
    const hand = await this.provision(warm);
    const ms = performance.now() - startedMs;
    this.claimed += 1;
    if (hand.isSetUp !== true) throw new Error("no hand had been made ahead");
    await hand.destroy();
    return ms;
  }

  private provision(warm?: WarmSpec): Promise<Hand> {
    const handId = `hand_bench_${randomBytes(6).toString("hex")}`;
    const container = { image: this.image, pull: false };
    return this.driver.provision({ handId, container, ...(warm === undefined ? {} : { warm }) });
  }
}

async function bareMs(docker: Docker, image: string): Promise<number> {
  const startedMs = performance.now();
  const container = await docker.createContainer({
    Image: image,
    Cmd: ["sleep", "86400"],
    HostConfig: { NetworkMode: "none" },
  });
  await container.start();
  const ms = performance.now() - startedMs;
  await container.remove({ force: true });
  return ms;
}

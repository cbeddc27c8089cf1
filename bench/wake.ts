/**
 * A brain's death: from SIGKILL of the harness that holds sessions in the middle of their model's answer to the next model
 * request of each, from another harness. The server leaves 300 ms of it to the old one, in which it could come back.
 */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { AdminService } from "../proto/gen/tendon/v1/admin_service_pb.js";
import { eventually } from "../test/kit/eventually.ts";
import { hang, turn } from "../test/kit/fake-messages-api.ts";
import { type RunningProgram, startProgram } from "../test/kit/program.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";
import { percentile } from "./frame/measure.ts";
import { ModelPlatform, wallMs } from "./frame/model-platform.ts";

const ROUNDS = 12;
const SESSIONS = 5;
/** Of a machine that is very busy. */
const WITHIN_MS = 60_000;
const GRACE_MS = 300;
const AIM_P95_MS = 1_000;

export const wake: Bench = {
  name: "wake",
  describe: `SIGKILL of a harness that holds ${SESSIONS} sessions to the next model request of each, from another one`,
  async run(context) {
    const rounds = Math.max(2, Math.round(ROUNDS * context.scale));
    const fleet = await Fleet.start(context);
    await fleet.round("mark-warm"); // not counted
    const samples: number[] = [];
    for (let round = 1; round <= rounds; round++) {
      context.say(`round ${round} of ${rounds} …`);
      samples.push(...(await fleet.round(`mark-${round}`)));
    }
    const figure = (p: number, aim?: number): Figure => {
      const product = percentile(samples, p);
      return {
        figure: `SIGKILL to the next model request, p${p * 100}`,
        unit: "ms",
        product,
        baseline: GRACE_MS,
        aim: aim === undefined ? undefined : `≤ ${aim} ms`,
        met: aim === undefined ? undefined : product <= aim,
        note: `${samples.length} sessions; beside it the time in which the old harness could come back, which is always waited for`,
      };
    };
    return [figure(0.5), figure(0.95, AIM_P95_MS), figure(1)];
  },
};

class Fleet {
  private readonly rig: ModelPlatform;
  private readonly env: Readonly<Record<string, string>>;
  private holder: RunningProgram;

  private constructor(rig: ModelPlatform, env: Readonly<Record<string, string>>, holder: RunningProgram) {
    this.rig = rig;
    this.env = env;
    this.holder = holder;
  }

  static async start(context: BenchContext): Promise<Fleet> {
    const rig = await ModelPlatform.start(context, {
      programs: [],
      // The answer that its holder does not live to see, and then one that ends the turn.
      answer: (_mark, n) => (n === 1 ? hang : turn(["Done."])),
    });
    const { platform, model } = rig;
    const env = {
      TENDON_URL: platform.url,
      TENDON_HARNESS_KEY: (await readFile(join(platform.dataDir, "harness.key"), "utf8")).trim(),
      ANTHROPIC_BASE_URL: model.url,
      ANTHROPIC_API_KEY: model.apiKey,
    };
    const fleet = new Fleet(rig, env, startProgram("harness", env));
    context.defer(() => fleet.holder.end("SIGTERM").then(() => {}));
    await fleet.connected(1);
    return fleet;
  }

  /** Kills who holds the sessions, and says how long each of them waited for its next model request. */
  async round(mark: string): Promise<number[]> {
    const { rig } = this;
    const marks = Array.from({ length: SESSIONS }, (_, n) => `${mark}-${n}`);
    for (const one of marks) await rig.say(await rig.newSession(), one);
    const askedTimes = (n: number) =>
      eventually(() => marks.every((one) => (rig.asked.get(one)?.length ?? 0) >= n), {
        withinMs: WITHIN_MS,
        everyMs: 10,
      });
    await askedTimes(1);
    const next = startProgram("harness", this.env);
    await this.connected(2);
    const killed = this.holder;
    this.holder = next;
    const killedMs = wallMs();
    await killed.end("SIGKILL");
    await askedTimes(2);
    await this.connected(1);
    return marks.map((one) => (rig.asked.get(one)?.[1] as number) - killedMs);
  }

  private async connected(count: number): Promise<void> {
    const admin = this.rig.platform.client(AdminService);
    await eventually(async () => (await admin.getStatus({})).harnesses.length === count, {
      withinMs: WITHIN_MS,
    });
  }
}

/**
 * Time to the first token: from a user's message to the first text of the model at a watcher. Coupled: a container is made, a
 * repository cloned and a process started before the first model call, as a design in one container must, whether or not the
 * session needs any of it. Decoupled: this design, where a third of the sessions never need a hand, and the others get theirs,
 * with the same clone, while the model already talks.
 *
 * Hands are meant to be on other machines than brains. With both on the same processors, the first forty messages wait for the
 * containers of the sessions before them; so it is measured twice: on the same processors, and with the Docker engine, the hand
 * agent and the clones on one half of them, the brains on the other. What is coupled has all of them.
 */
import { setMaxListeners } from "node:events";
import { EnvironmentService } from "../proto/gen/tendon/v1/environment_service_pb.js";
import { HandService } from "../proto/gen/tendon/v1/hand_service_pb.js";
import { useDocker, whyNoDocker } from "../test/kit/docker.ts";
import { ensureNodeImage } from "../test/kit/docker-images.ts";
import { toolUse, turn } from "../test/kit/fake-messages-api.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";
import { percentile } from "./frame/measure.ts";
import { arrive, ModelPlatform, wallMs } from "./frame/model-platform.ts";
import { OneContainer, startGitServer } from "./frame/one-container.ts";
import { FOR_HANDS, keepApart, whyNotApart } from "./frame/processors.ts";

const SESSIONS = 40;
const PER_SECOND = 10;
const MODEL_MS = 50;
const COUPLED = "mark-coupled";
const ALONE = "mark-alone";
const WARM_UP = 3;
/** A machine that is very busy ends the bench all the same. */
const WITHIN_MS = 240_000;
const AIM = { p50: 0.4, p95: 0.1, ownP50: 15, ownP95: 40 };

type Design = "coupled" | "decoupled" | "brains alone";

interface Samples {
  readonly ttft: number[];
  /** Message sent → model request at the model. */
  readonly own: number[];
}

export const ttft: Bench = {
  name: "ttft",
  describe:
    "message to first token at a watcher, against a design that makes a container first; 40 sessions, 10 a second",
  async run(context) {
    const whyNot = whyNoDocker();
    if (whyNot !== undefined) throw new Error(`this bench needs a Docker engine: ${whyNot}`);
    const rig = await start(context);
    const count = Math.max(4, Math.round(SESSIONS * context.scale));
    context.say("warming up …");
    await rig.arrivals("mark-warm", WARM_UP, "decoupled");
    context.say(`${count} sessions without hands …`);
    const alone = await rig.arrivals(ALONE, count, "brains alone");
    context.say(`${count} sessions, decoupled …`);
    const decoupled = await rig.arrivals("mark-decoupled", count, "decoupled");
    await rig.handsGone();
    context.say(`${count} sessions, coupled …`);
    const coupled = await rig.arrivals(COUPLED, count, "coupled");
    context.say(`${count} sessions, decoupled and apart …`);
    const apart = await measureApart(context, rig, count);
    context.say(distribution("decoupled", decoupled.ttft));
    context.say(distribution("decoupled, apart", apart.ttft));
    context.say(distribution("coupled", coupled.ttft));
    context.say(distribution("message sent → model asked", decoupled.own));
    context.say(distribution("message sent → model asked, apart", apart.own));
    context.say(distribution("message sent → model asked, no hands", alone.own));
    return [
      ...figures(decoupled, coupled, ""),
      ...figures(apart, coupled, ", hands apart"),
      ...ownShare(alone, ", no hands at all"),
    ];
  },
};

async function measureApart(context: BenchContext, rig: Awaited<ReturnType<typeof start>>, count: number) {
  const whyNot = whyNotApart();
  if (whyNot !== undefined) throw new Error(`this bench puts hands on processors of their own: it ${whyNot}`);
  const together = await keepApart(context);
  const apart = await rig.arrivals("mark-apart", count, "decoupled", FOR_HANDS);
  await rig.handsGone();
  await together();
  return apart;
}

async function start(context: BenchContext) {
  const engine = await useDocker();
  context.defer(() => engine.release());
  const image = await ensureNodeImage(engine);
  const gitUrl = await startGitServer(context);
  const { socketPath } = engine;
  const one = await OneContainer.create(context, { socketPath, image, gitUrl });
  const rig = await ModelPlatform.start(context, {
    programs: ["harness", "hand-agent"],
    env: { "hand-agent": { DOCKER_HOST: engine.host, TENDON_HAND_AGENT_CAPACITY: "200" } },
    answer(mark, n) {
      // Where everything is in one container, there is nothing to be made for a call.
      const hasHand = !mark.startsWith(COUPLED) && !mark.startsWith(ALONE);
      const needsHand = hasHand && Number(mark.split("-").at(-1)) % 3 !== 0;
      const firstDelta = () => new Promise((resolve) => setTimeout(resolve, MODEL_MS));
      const call = needsHand && n === 1 ? [toolUse("bash", { command: "true" })] : [];
      return turn(["I will look at it.", ...call], { before: { firstDelta } });
    },
  });
  const { environment } = await rig.platform
    .client(EnvironmentService)
    .createEnvironment({ spec: { name: "bench docker", driver: "docker", image } });
  const environmentId = environment?.id ?? "";
  return {
    arrivals: (mark: string, count: number, design: Design, cloneOn?: string) =>
      measure({ rig, one, environmentId, cloneOn }, mark, count, design),
    /** What one phase made is no burden of the next. */
    async handsGone(): Promise<void> {
      const client = rig.platform.client(HandService);
      for (;;) {
        const { hands } = await client.listHands({ pageSize: 100 });
        if (hands.length === 0) return;
        await Promise.all(hands.map(({ id }) => client.releaseHand({ handId: id })));
      }
    },
  };
}

async function measure(
  {
    rig,
    one,
    environmentId,
    cloneOn,
  }: { rig: ModelPlatform; one: OneContainer; environmentId: string; cloneOn: string | undefined },
  mark: string,
  count: number,
  design: Design,
): Promise<Samples> {
  const samples: Samples = { ttft: [], own: [] };
  const sessionIds: string[] = [];
  for (let n = 0; n < count; n++) sessionIds.push(await rig.newSession(environmentId));
  const late = AbortSignal.timeout(WITHIN_MS);
  setMaxListeners(0, late);
  const seen = sessionIds.map((sessionId) => rig.firstToken(sessionId, late));
  for (const one of seen) one.catch(() => {}); // awaited below
  await arrive(count, PER_SECOND, async (n) => {
    const sessionId = sessionIds[n] as string;
    const name = `${mark}-${n}`;
    const arrivedMs = wallMs();
    if (design === "coupled") await one.prepare(name);
    const saidMs = wallMs();
    await rig.say(sessionId, name);
    samples.ttft.push((await (seen[n] as Promise<number>)) - arrivedMs);
    samples.own.push((rig.asked.get(name)?.[0] ?? Number.NaN) - saidMs);
    // The hand's session works on its repository too, only later.
    if (design === "decoupled" && n % 3 !== 0) await one.clone(await one.newFolder(name), cloneOn);
  });
  await allRest(rig, sessionIds, late);
  return samples;
}

async function allRest(rig: ModelPlatform, sessionIds: readonly string[], late: AbortSignal): Promise<void> {
  for (const sessionId of sessionIds) {
    for await (const { kind } of rig.sessions.watchEvents({ sessionId }, { signal: late })) {
      if (kind.case === "event" && kind.value.type === "session.status_idle") break;
    }
  }
}

function figures(decoupled: Samples, coupled: Samples, how: string): Figure[] {
  const against = (p: number, aim: number): Figure => {
    const product = percentile(decoupled.ttft, p);
    const baseline = percentile(coupled.ttft, p);
    return {
      figure: `time to first token p${p * 100}, against coupled${how}`,
      unit: "ms",
      product,
      baseline,
      aim: `≤ ${aim}× baseline`,
      met: product <= aim * baseline,
    };
  };
  return [against(0.5, AIM.p50), against(0.95, AIM.p95), ...ownShare(decoupled, how)];
}

function ownShare({ own }: Samples, how: string): Figure[] {
  const share = (p: number, aim: number): Figure => {
    const product = percentile(own, p);
    return {
      figure: `Tendon's own share p${p * 100}: message sent → model asked${how}`,
      unit: "ms",
      product,
      baseline: undefined,
      aim: `≤ ${aim} ms`,
      met: product <= aim,
      note: `counted from before the client's call; the model takes ${MODEL_MS} ms to its first token`,
    };
  };
  return [share(0.5, AIM.ownP50), share(0.95, AIM.ownP95)];
}

function distribution(name: string, ms: readonly number[]): string {
  const at = [0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 1].map((p) => `p${p * 100} ${percentile(ms, p).toFixed(0)}`);
  return `${name}: ${at.join("  ")} ms (${ms.length} sessions)`;
}

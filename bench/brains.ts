/**
 * Many brains in one harness: sessions that all run at once, each asking its model again and again. Throughput beside that of
 * bare clients which send the same number of requests to the same fake model; what a live session costs in memory; and what
 * lies between the end of a model's answer and the next request, which is all Tendon's.
 */
import { readFileSync } from "node:fs";
import { toolUse, turn } from "../test/kit/fake-messages-api.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";
import { percentile } from "./frame/measure.ts";
import { ModelPlatform, wallMs } from "./frame/model-platform.ts";

const SESSIONS = 200;
/** Model requests of a turn: all but the last make a call that needs no hand. */
const STEPS = 5;
const ANSWER_MS = 200;
const AIM_MIB = 2;
const WITHIN_MS = 300_000;

export const brains: Bench = {
  name: "brains",
  describe: `${SESSIONS} sessions at once on one harness, against bare clients of the same model`,
  async run(context) {
    const rig = await Rig.start(context, Math.max(10, Math.round(SESSIONS * context.scale)));
    await rig.warmUp();
    const bare = await rig.bare();
    const live = await rig.live();
    const run = await rig.turns();
    return figuresOf(rig.sessions, bare, live, run);
  },
};

function figuresOf(
  sessions: number,
  bare: { perSecond: number },
  live: { mibPerSession: number; idleMib: number },
  run: { perSecond: number; overheadMs: readonly number[] },
): Figure[] {
  const overhead = (p: number): Figure => ({
    figure: `between an answer and the next request, p${p * 100}`,
    unit: "ms",
    product: percentile(run.overheadMs, p),
    baseline: undefined,
    aim: undefined,
    met: undefined,
    note: "recording the answer, its call and the call's result, and the next request, while all sessions run",
  });
  return [
    {
      figure: "model requests a second",
      unit: "/s",
      product: run.perSecond,
      baseline: bare.perSecond,
      aim: undefined,
      met: undefined,
      note: `${sessions} sessions; each answer takes the fake model ${ANSWER_MS} ms, so no more than ${(sessions * 1_000) / ANSWER_MS} are possible`,
    },
    {
      figure: "memory of a live session",
      unit: "MiB",
      product: live.mibPerSession,
      baseline: undefined,
      aim: `≤ ${AIM_MIB} MiB`,
      met: live.mibPerSession <= AIM_MIB,
      note: `resident, over an idle harness's ${live.idleMib.toFixed(0)} MiB, while all wait for their model`,
    },
    overhead(0.5),
    overhead(0.95),
  ];
}

class Rig {
  readonly sessions: number;
  private readonly rig: ModelPlatform;
  private readonly context: BenchContext;
  /** Between answers and the requests after them, in milliseconds. */
  private readonly overheadMs: readonly number[];
  private readonly hold: { until: Promise<void> };

  private constructor(
    context: BenchContext,
    rig: ModelPlatform,
    sessions: number,
    overheadMs: readonly number[],
    hold: { until: Promise<void> },
  ) {
    this.context = context;
    this.rig = rig;
    this.sessions = sessions;
    this.overheadMs = overheadMs;
    this.hold = hold;
  }

  static async start(context: BenchContext, sessions: number): Promise<Rig> {
    const hold = { until: Promise.resolve() };
    /** By mark: when its newest answer was whole. */
    const answeredMs = new Map<string, number>();
    const overheadMs: number[] = [];
    const rig = await ModelPlatform.start(context, {
      programs: ["harness"],
      env: { harness: { TENDON_HARNESS_CAPACITY: String(sessions + 10) } },
      answer(mark, n) {
        const before = answeredMs.get(mark);
        if (mark.startsWith("mark-turn") && before !== undefined) overheadMs.push(wallMs() - before);
        const end = async () => {
          await new Promise((resolve) => setTimeout(resolve, ANSWER_MS));
          await hold.until;
          answeredMs.set(mark, wallMs());
        };
        const isLast = mark.startsWith("mark-live") || n % STEPS === 0;
        // A call that is answered without a hand: there is no such tool.
        const blocks = isLast ? ["That was all."] : ["One moment.", toolUse("nonesuch", { n })];
        return turn(blocks, { before: { end } });
      },
    });
    return new Rig(context, rig, sessions, overheadMs, hold);
  }

  async warmUp(): Promise<void> {
    this.context.say("warming up …");
    await this.runAll("mark-warm", 10);
  }

  /** The same requests from bare clients in this process, over the same loopback. */
  async bare(): Promise<{ perSecond: number }> {
    this.context.say("bare clients …");
    const { model } = this.rig;
    const startedMs = performance.now();
    const body = (mark: string) =>
      JSON.stringify({
        model: "claude-bench",
        max_tokens: 1_000,
        stream: true,
        messages: [{ role: "user", content: mark }],
      });
    const one = async (n: number) => {
      for (let step = 0; step < STEPS; step++) {
        const response = await fetch(`${model.url}/v1/messages`, {
          method: "POST",
          headers: {
            "x-api-key": model.apiKey,
            "anthropic-version": "2023-06-01",
            "content-type": "application/json",
          },
          body: body(`mark-live-bare-${n}`),
        });
        await response.text();
      }
    };
    await Promise.all(Array.from({ length: this.sessions }, (_, n) => one(n)));
    return { perSecond: (this.sessions * STEPS * 1_000) / (performance.now() - startedMs) };
  }

  /** All sessions wait for the end of an answer at once. */
  async live(): Promise<{ mibPerSession: number; idleMib: number }> {
    const { context, rig, sessions, hold } = this;
    context.say(`${sessions} live sessions …`);
    const { pid } = rig.platform.program("harness");
    const ids = await this.newSessions();
    const idleMib = residentMib(pid);
    let release = () => {};
    hold.until = new Promise((resolve) => {
      release = resolve;
    });
    await Promise.all(ids.map((id, n) => rig.say(id, `mark-live-${n}`)));
    const startedMs = performance.now();
    const isAsked = () => ids.every((_, n) => rig.asked.has(`mark-live-${n}`));
    while (!isAsked()) {
      if (performance.now() - startedMs > WITHIN_MS) throw new Error("not all sessions asked their model");
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    // What was only needed to get there goes.
    await new Promise((resolve) => setTimeout(resolve, 2_000));
    const mibPerSession = (residentMib(pid) - idleMib) / sessions;
    release();
    await this.rested(ids);
    return { mibPerSession, idleMib };
  }

  /** Every session runs one turn of several steps. */
  async turns(): Promise<{ perSecond: number; overheadMs: readonly number[] }> {
    this.context.say(`${this.sessions} turns at once …`);
    const startedMs = performance.now();
    await this.runAll("mark-turn", this.sessions);
    const perSecond = (this.sessions * STEPS * 1_000) / (performance.now() - startedMs);
    return { perSecond, overheadMs: this.overheadMs };
  }

  private async runAll(prefix: string, count: number): Promise<void> {
    const ids = await this.newSessions(count);
    await Promise.all(ids.map((id, n) => this.rig.say(id, `${prefix}-${n}`)));
    await this.rested(ids);
  }

  private async newSessions(count = this.sessions): Promise<string[]> {
    const ids: string[] = [];
    while (ids.length < count) {
      const few = Math.min(20, count - ids.length);
      ids.push(...(await Promise.all(Array.from({ length: few }, () => this.rig.newSession()))));
    }
    return ids;
  }

  private async rested(ids: readonly string[]): Promise<void> {
    for (const sessionId of ids) {
      const signal = AbortSignal.timeout(WITHIN_MS);
      for await (const { kind } of this.rig.sessions.watchEvents({ sessionId }, { signal })) {
        if (kind.case === "event" && kind.value.type === "session.status_idle") break;
      }
    }
  }
}

function residentMib(pid: number): number {
  const kib = /VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1];
  return Number(kib) / 1_024;
}

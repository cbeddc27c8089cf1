/**
 * What a call costs: brain → server → hand agent → `true` in the hand → back, against starting `true` directly on the same
 * machine, and against the same command over a multiplexed OpenSSH connection.
 *
 * The bench is the brain: it holds a lease and sends calls as a harness does, each one journalled and synced on the agent's
 * disk, bound in Postgres before it is sent, and its result appended to the log before it comes back. What the disk takes
 * of that is measured in the same stretch: the same number of small writes, each synced before the next.
 */
import { spawn } from "node:child_process";
import { mkdtemp, open, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { dial } from "../kit/dial/dial.ts";
import { newId } from "../kit/ids.ts";
import type { BidiCall, Client } from "../kit/rpc/client.ts";
import { AgentService } from "../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../proto/gen/tendon/v1/environment_service_pb.js";
import type { LeaseProof } from "../proto/gen/tendon/v1/event_pb.js";
import { HandService } from "../proto/gen/tendon/v1/hand_service_pb.js";
import {
  type Assignment,
  HarnessService,
  type WorkRequestSchema,
  type WorkResponseSchema,
} from "../proto/gen/tendon/v1/harness_service_pb.js";
import { SessionService } from "../proto/gen/tendon/v1/session_service_pb.js";
import { type Platform, startPlatform } from "../test/kit/platform.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";
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

export const execute: Bench = {
  name: "execute",
  describe: "one bash call of `true` through the platform, against a bare process and against OpenSSH",
  async run(context) {
    const brain = await startBrain(context);
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
    const rounds = Math.max(1, Math.round(ROUNDS * context.scale));
    await brain.intend((rounds * PER_ROUND + WARM_UP) * 2);
    const samples = await interleave(contenders, { rounds, perRound: PER_ROUND, warmUp: WARM_UP });
    const at = (name: string, p: number) => percentile(samples.get(name)?.ms ?? [], p);
    return figures(at, whyNot);
  },
};

function figures(at: (name: string, p: number) => number, whyNoSsh: string | undefined): Figure[] {
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

interface Brain {
  /** Appends so many tool uses, whose calls are then made one by one. */
  intend(calls: number): Promise<void>;
  call(): Promise<void>;
}

async function startBrain(context: BenchContext): Promise<Brain> {
  context.say("starting the platform …");
  const platform = await startPlatform({ programs: ["hand-agent"] });
  context.defer(() => platform.stop());
  const key = (await readFile(join(platform.dataDir, "harness.key"), "utf8")).trim();
  const connection = dial({ url: platform.url, token: () => key, proxy: {} });
  context.defer(() => connection.close());
  const sessionId = await createSession(platform);
  const { assignment, stop } = await takeSession(connection.client(HarnessService).work(), sessionId);
  context.defer(stop);
  return new BenchBrain(
    connection.client(SessionService),
    connection.client(HandService),
    sessionId,
    assignment.lease as LeaseProof,
  );
}

async function createSession(platform: Platform): Promise<string> {
  const { agent } = await platform.client(AgentService).createAgent({
    spec: { name: "bench", tools: [{ kind: { case: "handToolset", value: {} } }] },
  });
  const { environment } = await platform
    .client(EnvironmentService)
    .createEnvironment({ spec: { name: "bench", driver: "process" } });
  const payload = JSON.stringify({ content: [{ type: "text", text: "go" }] });
  const { session } = await platform.client(SessionService).createSession({
    agentId: agent?.id ?? "",
    environmentId: environment?.id ?? "",
    initialEvents: [{ type: "user.message", payload }],
  });
  return session?.id ?? "";
}

/** Holds the session's lease until `stop`. */
async function takeSession(
  work: BidiCall<typeof WorkRequestSchema, typeof WorkResponseSchema>,
  sessionId: string,
): Promise<{ assignment: Assignment; stop: () => void }> {
  await work.send({
    kind: {
      case: "hello",
      value: { instanceId: newId("harness"), protocolVersion: 1, loops: ["claude"], capacity: 1 },
    },
  });
  const responses = work.responses[Symbol.asyncIterator]();
  for (;;) {
    const { value, done } = await responses.next();
    if (done) throw new Error("the server ended the stream");
    if (value.kind.case !== "assignment" || value.kind.value.session?.id !== sessionId) continue;
    const assignment = value.kind.value;
    const renew = setInterval(
      () =>
        void work
          .send({ kind: { case: "renew", value: { leaseIds: [assignment.lease?.leaseId ?? ""] } } })
          .catch(() => {}),
      5_000,
    );
    const drain = (async () => {
      while (!(await responses.next()).done);
    })().catch(() => {});
    const stop = () => {
      clearInterval(renew);
      work.cancel();
      void drain;
    };
    return { assignment, stop };
  }
}

type SessionClient = Client<typeof SessionService>;
type HandClient = Client<typeof HandService>;

const INPUT = JSON.stringify({ command: "true" });
const EVENTS_PER_APPEND = 200;

class BenchBrain implements Brain {
  private readonly sessions: SessionClient;
  private readonly hands: HandClient;
  private readonly sessionId: string;
  private readonly lease: LeaseProof;
  private readonly intended: string[] = [];

  constructor(sessions: SessionClient, hands: HandClient, sessionId: string, lease: LeaseProof) {
    this.sessions = sessions;
    this.hands = hands;
    this.sessionId = sessionId;
    this.lease = lease;
  }

  async intend(calls: number): Promise<void> {
    const payload = JSON.stringify({ name: "bash", input: JSON.parse(INPUT) });
    for (let left = calls; left > 0; left -= EVENTS_PER_APPEND) {
      const ids = Array.from({ length: Math.min(left, EVENTS_PER_APPEND) }, () => newId("event"));
      const events = ids.map((id) => ({ id, type: "agent.tool_use", payload }));
      await this.sessions.emitEvents({ sessionId: this.sessionId, events, lease: this.lease });
      this.intended.push(...ids);
    }
  }

  async call(): Promise<void> {
    const executionId = this.intended.pop();
    if (executionId === undefined) throw new Error("more calls than tool uses");
    const { sessionId, lease } = this;
    for await (const { kind } of this.hands.execute({
      sessionId,
      executionId,
      name: "bash",
      input: INPUT,
      lease,
    })) {
      if (kind.case !== "result") continue;
      if (kind.value.isError) throw new Error(`the call failed: ${kind.value.content}`);
      return;
    }
    throw new Error("the call ended without a result");
  }
}

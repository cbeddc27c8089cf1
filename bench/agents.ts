/**
 * What hand agents cost: one on its own machine, and many at their server.
 *
 * The server's memory for an agent is the slope between half and all of the agents, each with a connection of its own and
 * signs of life both ways, after garbage was collected; so what a warm server needs anyway is in neither. The agents are
 * the product's own, some hundred in one process. The baseline is a grpc-js server that holds one stream on each of as many
 * connections and does nothing.
 */
import { spawn } from "node:child_process";
import { AdminService } from "../proto/gen/tendon/v1/admin_service_pb.js";
import { startAgentSwarm } from "../test/kit/agent-swarm.ts";
import { eventually } from "../test/kit/eventually.ts";
import {
  type Platform,
  type PlatformOptions,
  type RunningProgram,
  startPlatform,
} from "../test/kit/platform.ts";
import { residentBytes } from "../test/kit/process-tree.ts";
import { COLLECTS_ON_SIGNAL, settledBytes } from "../test/kit/settled-memory.ts";
import { createCertificates } from "../test/kit/test-certificates.ts";
import { Arrivals } from "./frame/arrivals.ts";
import { startBareGrpc } from "./frame/bare-grpc.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";
import { percentile } from "./frame/measure.ts";

const AGENTS = 1_000;
const STARTS = 10;
const KB = 1024;
const MB = 1024 ** 2;
/** How long an agent is left alone before its memory is looked at: several signs of life, one in the smallest run. */
const IDLE_MS = 15_000;
const SHORTEST_IDLE_MS = 5_000;
/** For all agents to come online, however busy the machine is. */
const ALL_WITHIN_MS = 180_000;
/** Aims of the product. */
const AIM = { agentMb: 80, onlineMs: 1_000, clearKb: 60, tlsKb: 110, reconnectS: 60 };

export const agents: Bench = {
  name: "agents",
  describe:
    "hand agents at rest: memory of an agent, of its server for each, start to online, reconnect of all",
  async run(context) {
    const one = await measureOne(context);
    const clear = await measureMany(context, undefined);
    const certificates = await createCertificates();
    context.defer(() => certificates.remove());
    const issued = await certificates.issue("server");
    const tls = await measureMany(context, { caFile: certificates.caFile, ...issued });
    const bare = await measureBare(context);
    return [...one, ...perAgent(clear, tls, bare), ...reconnected(clear, tls)];
  },
};

interface Many {
  readonly count: number;
  readonly perAgentBytes: number;
  readonly reconnectMs: number;
}

function perAgent(clear: Many, tls: Many, bareBytes: number): Figure[] {
  const row = (figure: string, { perAgentBytes }: Many, aimKb: number): Figure => ({
    figure,
    unit: "KB",
    product: perAgentBytes / KB,
    baseline: bareBytes / KB,
    aim: `≤ ${aimKb} KB`,
    met: perAgentBytes / KB <= aimKb,
    note: `slope between ${clear.count / 2} and ${clear.count} agents; the baseline speaks no TLS`,
  });
  return [
    row("server, RSS for an idle agent", clear, AIM.clearKb),
    row("server, RSS for an idle agent with TLS", tls, AIM.tlsKb),
  ];
}

function reconnected(clear: Many, tls: Many): Figure[] {
  const row = (figure: string, { reconnectMs }: Many): Figure => ({
    figure,
    unit: "s",
    product: reconnectMs / 1_000,
    baseline: undefined,
    aim: `≤ ${AIM.reconnectS} s`,
    met: reconnectMs <= AIM.reconnectS * 1_000,
    note: "from the kill of the server until the last agent is online at the next one; server, database and agents share this machine",
  });
  return [
    row(`${clear.count} agents back after a kill`, clear),
    row(`${tls.count} agents back after a kill, with TLS`, tls),
  ];
}

async function measureOne(context: BenchContext): Promise<Figure[]> {
  context.say("one agent …");
  const platform = await startPlatform({ programs: ["hand-agent"] });
  context.defer(() => platform.stop());
  const starts = Math.max(1, Math.round(STARTS * context.scale));
  const online: number[] = [];
  const bare: number[] = [];
  for (let start = 0; start < starts; start += 1) {
    await platform.program("hand-agent").end("SIGTERM");
    bare.push(await bareStart());
    const old = platform.program("hand-agent");
    const starting = platform.start("hand-agent");
    const started = await eventually(() => newer(platform, old), { everyMs: 1, withinMs: 20_000 });
    const began = performance.now();
    await eventually(() => started.log().includes('"msg":"connected"'), { everyMs: 1, withinMs: 20_000 });
    online.push(performance.now() - began);
    await starting;
  }
  await idle(context);
  const agentBytes = residentBytes(platform.program("hand-agent").pid);
  const bareBytes = await bareIdle();
  const onlineMs = percentile(online, 0.5);
  return [
    {
      figure: "agent, start to online, p50",
      unit: "ms",
      product: onlineMs,
      baseline: percentile(bare, 0.5),
      aim: `≤ ${AIM.onlineMs} ms`,
      met: onlineMs <= AIM.onlineMs,
      note: "the baseline is Node starting and ending",
    },
    {
      figure: "agent, idle RSS",
      unit: "MB",
      product: agentBytes / MB,
      baseline: bareBytes / MB,
      aim: `≤ ${AIM.agentMb} MB`,
      met: agentBytes / MB <= AIM.agentMb,
      note: "the baseline is a Node that waits for a timer",
    },
  ];
}

/** The process that takes the place of the old one. */
function newer(platform: Platform, old: RunningProgram): RunningProgram | undefined {
  const program = platform.program("hand-agent");
  return program === old ? undefined : program;
}

async function measureMany(context: BenchContext, tls: PlatformOptions["tls"]): Promise<Many> {
  const count = 2 * Math.max(1, Math.round((AGENTS / 2) * context.scale));
  context.say(`${count} agents${tls === undefined ? "" : " with TLS"} …`);
  const platform = await startPlatform({
    programs: [],
    env: { server: COLLECTS_ON_SIGNAL },
    ...(tls === undefined ? {} : { tls }),
  });
  const stops: (() => Promise<void>)[] = [() => platform.stop()];
  try {
    const bytes: number[] = [];
    for (let half = 1; half <= 2; half += 1) {
      const admin = platform.client(AdminService);
      const trust = tls === undefined ? {} : { caFile: tls.caFile };
      const swarm = await startAgentSwarm({ count: count / 2, url: platform.url, admin, ...trust });
      stops.unshift(() => swarm.stop());
      await connected(platform, (half * count) / 2);
      await idle(context);
      bytes.push(await settledBytes(platform.program("server").pid));
    }
    const began = performance.now();
    await platform.program("server").end("SIGKILL");
    await platform.start("server");
    await connected(platform, count);
    const [half = 0, all = 0] = bytes;
    return { count, perAgentBytes: (all - half) / (count / 2), reconnectMs: performance.now() - began };
  } finally {
    for (const stop of stops) await stop();
  }
}

/** So many agents have a connection that this process of the server has noted in its log. */
async function connected(platform: Platform, count: number): Promise<void> {
  const at = () =>
    new Set(
      platform
        .program("server")
        .log()
        .match(/"handAgentId":"[^"]+"[^\n]+"a hand agent connected"/g),
    ).size;
  await eventually(() => at() >= count, { withinMs: ALL_WITHIN_MS, everyMs: 100 });
}

/** Bytes that a server needs for a stream on a connection of its own, when it does nothing. */
async function measureBare(context: BenchContext): Promise<number> {
  const count = 2 * Math.max(1, Math.round((AGENTS / 2) * context.scale));
  context.say(`${count} bare streams …`);
  const bare = await startBareGrpc(context, COLLECTS_ON_SIGNAL);
  const bytes: number[] = [];
  for (let half = 0; half < 2; half += 1) {
    await bare.openStreams(count / 2, new Arrivals(), 1);
    bytes.push(await settledBytes(bare.pid));
  }
  const [half = 0, all = 0] = bytes;
  return (all - half) / (count / 2);
}

function idle({ scale }: BenchContext): Promise<void> {
  const idleMs = Math.max(SHORTEST_IDLE_MS, Math.min(1, scale) * IDLE_MS);
  return new Promise((resolve) => setTimeout(resolve, idleMs));
}

function bareStart(): Promise<number> {
  const began = performance.now();
  return new Promise((resolve, reject) => {
    spawn(process.execPath, ["-e", ""], { stdio: "ignore" })
      .once("error", reject)
      .once("exit", () => resolve(performance.now() - began));
  });
}

async function bareIdle(): Promise<number> {
  const child = spawn(process.execPath, ["-e", "setInterval(() => {}, 1000)"], { stdio: "ignore" });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const untilMs = performance.now() + 2_000;
  await eventually(() => performance.now() >= untilMs);
  const bytes = residentBytes(child.pid ?? 0);
  child.kill("SIGKILL");
  await ended;
  return bytes;
}

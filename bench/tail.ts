/**
 * How soon a watcher has what was appended: from the call of EmitEvents until the event is there.
 *
 * The baseline is what no log that keeps its promises can do without, each measured by itself in the same stretch: a bare
 * unary call with the same bytes, a bare row, and the way of the same bytes down an open stream. Three times: one watcher;
 * 1,000 watchers each of its own session, with appends to one session at a time; 1,000 watchers of one session, where the
 * same bytes go down 1,000 bare streams. The database connections that the server has meanwhile are counted (R19).
 */
import { create, toBinary } from "@bufbuild/protobuf";
import {
  EmitEventsRequestSchema,
  WatchEventsResponseSchema,
} from "../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../test/kit/eventually.ts";
import { Arrivals, atMs } from "./frame/arrivals.ts";
import { ALL_STREAMS, type BareGrpc, startBareGrpc } from "./frame/bare-grpc.ts";
import { type BareInserts, openBareInserts } from "./frame/bare-inserts.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";
import { interleave, percentile } from "./frame/measure.ts";
import { POOL_SIZE, type PrivatePostgres, startPrivatePostgres } from "./frame/private-postgres.ts";
import { SAMPLE_PAYLOAD, SAMPLE_TYPE, sampleEvent } from "./frame/sample-event.ts";
import { type ServerProcess, type SessionClient, startServerProcess } from "./frame/server-process.ts";

const WATCHERS = 1_000;
const WATCHERS_PER_CONNECTION = 100;
const ROUNDS = 10;
const PER_ROUND = 20;
const WARM_UP = 100;
/** Of those that reach 1,000 watchers: each is 1,000 samples. */
const FAN_OUT_PER_ROUND = 2;
const FAN_OUT_WARM_UP = 10;
const AIM = 1.5;

export const tail: Bench = {
  name: "tail",
  describe: "from an append's call to its watchers, against a bare call, a bare row and a bare stream",
  async run(context) {
    const postgres = await startPrivatePostgres(context);
    const bench: TailBench = {
      context,
      postgres,
      server: await startServerProcess(context, postgres),
      inserts: await openBareInserts(context, { url: postgres.url, connections: 1 }),
      bare: await startBareGrpc(context),
      bareArrivals: new Arrivals(),
    };
    const figures = [await oneWatcher(bench)];
    await bench.bare.openStreams(WATCHERS - 1, bench.bareArrivals);
    figures.push(await manySessions(bench));
    figures.push(...(await oneSession(bench)));
    return figures;
  },
};

interface TailBench {
  readonly context: BenchContext;
  readonly postgres: PrivatePostgres;
  readonly server: ServerProcess;
  readonly inserts: BareInserts;
  readonly bare: BareGrpc;
  readonly bareArrivals: Arrivals;
}

async function oneWatcher(bench: TailBench): Promise<Figure> {
  const sessionIds = await bench.server.newSessions(1);
  const watchers = await watch(bench, sessionIds);
  await bench.bare.openStreams(1, bench.bareArrivals);
  const figure = await compare(bench, {
    figure: "1 watcher",
    product: () => appended(bench, watchers, { sessionId: sessionIds[0] as string, watchers: 1 }),
    stream: () => pushed(bench, { stream: 0, streams: 1 }),
  });
  watchers.stop();
  return figure;
}

async function manySessions(bench: TailBench): Promise<Figure> {
  const sessionIds = await bench.server.newSessions(WATCHERS);
  const watchers = await watch(bench, sessionIds);
  const any = () => Math.floor(Math.random() * WATCHERS);
  const figure = await compare(bench, {
    figure: `${WATCHERS} watchers of as many sessions, appends to one at a time`,
    product: () => appended(bench, watchers, { sessionId: sessionIds[any()] as string, watchers: 1 }),
    stream: () => pushed(bench, { stream: any(), streams: 1 }),
  });
  watchers.stop();
  return figure;
}

async function oneSession(bench: TailBench): Promise<Figure[]> {
  const [sessionId = ""] = await bench.server.newSessions(1);
  const watchers = await watch(
    bench,
    Array.from({ length: WATCHERS }, () => sessionId),
  );
  let connections = 0;
  const figure = await compare(bench, {
    figure: `${WATCHERS} watchers of one session`,
    perRound: FAN_OUT_PER_ROUND,
    warmUp: FAN_OUT_WARM_UP,
    product: async () => {
      const samples = await appended(bench, watchers, { sessionId, watchers: WATCHERS });
      connections = Math.max(connections, await serverConnections(bench));
      return samples;
    },
    stream: () => pushed(bench, { stream: ALL_STREAMS, streams: WATCHERS }),
  });
  watchers.stop();
  const bound = POOL_SIZE + 1;
  return [
    figure,
    {
      figure: `database connections of the server, under ${WATCHERS} watchers`,
      unit: "",
      product: connections,
      baseline: bound,
      aim: "≤ its pool and one that listens",
      met: connections <= bound,
    },
  ];
}

interface Comparison {
  readonly figure: string;
  readonly perRound?: number;
  readonly warmUp?: number;
  readonly product: () => Promise<readonly number[]>;
  readonly stream: () => Promise<readonly number[]>;
}

async function compare({ context, inserts, bare }: TailBench, comparison: Comparison): Promise<Figure> {
  const { figure, perRound = PER_ROUND, warmUp = WARM_UP, product, stream } = comparison;
  context.say(`measuring ${figure} …`);
  const request = create(EmitEventsRequestSchema, { sessionId: "x".repeat(36), events: [sampleEvent()] });
  const bytes = Buffer.from(toBinary(EmitEventsRequestSchema, request));
  const samples = await interleave(
    [
      { name: "tendon", once: product },
      { name: "call", once: () => bare.echo(bytes) },
      { name: "row", once: () => inserts.insert(0, SAMPLE_PAYLOAD) },
      { name: "stream", once: stream },
    ],
    { rounds: Math.max(1, Math.round(ROUNDS * context.scale)), perRound, warmUp },
  );
  const at = (name: string, p: number) => percentile(samples.get(name)?.ms ?? [], p);
  const baseline = at("call", 0.5) + at("row", 0.5) + at("stream", 0.5);
  const parts = ["call", "row", "stream"].map((name) => `${name} ${at(name, 0.5).toFixed(2)}`).join(", ");
  return {
    figure: `${figure}, p50`,
    unit: "ms",
    product: at("tendon", 0.5),
    baseline,
    aim: `≤ ${AIM}× baseline`,
    met: at("tendon", 0.5) <= AIM * baseline,
    note: `baseline: ${parts} ms; product p99 ${at("tendon", 0.99).toFixed(2)} ms`,
  };
}

/** From the call to each of the watchers; over once the call is answered too. */
async function appended(
  { server }: TailBench,
  { arrivals }: Watchers,
  { sessionId, watchers }: { sessionId: string; watchers: number },
): Promise<readonly number[]> {
  const arriving = arrivals.next(watchers);
  const calledMs = atMs();
  const [times] = await Promise.all([
    arriving,
    server.sessions.emitEvents({ sessionId, events: [sampleEvent()] }),
  ]);
  return times.map((timeMs) => timeMs - calledMs);
}

/** From the first write, in the other process, to each of the streams' readers. */
async function pushed(
  { bare, bareArrivals }: TailBench,
  { stream, streams }: { stream: number; streams: number },
): Promise<readonly number[]> {
  const arriving = bareArrivals.next(streams);
  const [times, writtenMs] = await Promise.all([arriving, bare.push(stream, WATCHED_BYTES)]);
  return times.map((timeMs) => timeMs - writtenMs);
}

/** What a watcher of the product is sent for one event. */
const WATCHED_BYTES = Buffer.from(
  toBinary(
    WatchEventsResponseSchema,
    create(WatchEventsResponseSchema, {
      kind: {
        case: "event",
        value: {
          ...sampleEvent(),
          type: SAMPLE_TYPE,
          position: 1_000n,
          createdAt: { seconds: 1_700_000_000n, nanos: 123_000_000 },
        },
      },
    }),
  ),
);

interface Watchers {
  readonly arrivals: Arrivals;
  stop(): void;
}

/** One watcher for each id. Resolves when all of them have been told where the log stands. */
async function watch({ context, server }: TailBench, sessionIds: readonly string[]): Promise<Watchers> {
  const arrivals = new Arrivals();
  const calls: { cancel(): void }[] = [];
  let isStopped = false;
  const stop = () => {
    isStopped = true;
    for (const call of calls) call.cancel();
  };
  context.defer(stop);
  let standing = 0;
  let failure: unknown;
  const follow = async (client: SessionClient, sessionId: string) => {
    let isStanding = false;
    const call = client.watchEvents({ sessionId, afterPosition: -1n });
    calls.push(call);
    for await (const { kind } of call) {
      if (kind.case === "event") arrivals.arrived(atMs());
      if (kind.case !== "progress" || isStanding) continue;
      isStanding = true;
      standing += 1;
    }
  };
  let client = server.connect();
  for (const [index, sessionId] of sessionIds.entries()) {
    if (index % WATCHERS_PER_CONNECTION === 0) client = server.connect();
    follow(client, sessionId).catch((error: unknown) => {
      if (!isStopped) failure = error;
    });
  }
  await eventually(
    () => {
      if (failure !== undefined) throw failure;
      return standing === sessionIds.length;
    },
    { withinMs: 60_000 },
  );
  return { arrivals, stop };
}

async function serverConnections({ postgres }: TailBench): Promise<number> {
  const { rows } = await postgres.pool.query<{ count: number }>(
    "select count(*)::integer as count from pg_stat_activity where application_name like 'tendon server%'",
  );
  return rows[0]?.count ?? 0;
}

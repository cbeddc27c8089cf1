/**
 * What an append costs, acknowledged when it is on disk.
 *
 * At the store's interface: against one bare row by `pg`, one writer and 64. Over gRPC, to a server process: against a bare
 * unary call with the same bytes to a process that does nothing with them, plus the bare row; and 64 writers against 64
 * bare callers, who have nothing written at all. Each writer has a session of its own. All of it goes to one Postgres.
 */
import { create, toBinary } from "@bufbuild/protobuf";
import { EmitEventsRequestSchema } from "../proto/gen/tendon/v1/session_service_pb.js";
import { createEventStore } from "../server/store/postgres/events.ts";
import { createWorld } from "../test/kit/session-rig.ts";
import { type BareGrpc, startBareGrpc } from "./frame/bare-grpc.ts";
import { type BareInserts, openBareInserts } from "./frame/bare-inserts.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";
import { interleave, percentile, type Samples } from "./frame/measure.ts";
import { type PrivatePostgres, startPrivatePostgres } from "./frame/private-postgres.ts";
import { SAMPLE_PAYLOAD, sampleEvent } from "./frame/sample-event.ts";
import { startServerProcess } from "./frame/server-process.ts";
import { throughput } from "./frame/throughput.ts";

const WRITERS = 64;
const ROUNDS = 20;
const PER_ROUND = 50;
const WARM_UP = 200;
const WINDOWS = 5;
const WINDOW_MS = 1_000;

const AIM_STORE_P50 = 1.5;
const AIM_STORE_THROUGHPUT = 2.5;
const AIM_GRPC_P50 = 1.3;
const AIM_GRPC_THROUGHPUT = 0.8;

/** Appends one event to the writer's session. */
type Append = (writer: number) => Promise<void>;

export const append: Bench = {
  name: "append",
  describe: "one event into a log, at the store and over gRPC, against a bare row and a bare call",
  async run(context) {
    const postgres = await startPrivatePostgres(context);
    const inserts = await openBareInserts(context, { url: postgres.url, connections: WRITERS });
    const bare = await startBareGrpc(context);
    const atStore = await storeAppend(context, postgres);
    const overGrpc = await grpcAppend(context, postgres);
    return [
      ...(await oneWriter(context, { atStore, overGrpc, inserts, bare })),
      ...(await manyWriters(context, { atStore, overGrpc, inserts, bare })),
    ];
  },
};

interface Contest {
  readonly atStore: Append;
  readonly overGrpc: Append;
  readonly inserts: BareInserts;
  readonly bare: BareGrpc;
}

async function storeAppend(context: BenchContext, { pool }: PrivatePostgres): Promise<Append> {
  const world = await createWorld(pool);
  const sessionIds: string[] = [];
  for (let n = 0; n < WRITERS; n++) sessionIds.push(await world.newSession());
  const events = createEventStore(pool);
  context.defer(() => events.close());
  return async (writer) => {
    const event = { ...sampleEvent(), threadId: "", internal: undefined };
    await events.append({ sessionId: sessionIds[writer] as string, events: [event], authority: "client" });
  };
}

async function grpcAppend(context: BenchContext, postgres: PrivatePostgres): Promise<Append> {
  const server = await startServerProcess(context, postgres);
  const sessionIds = await server.newSessions(WRITERS);
  return async (writer) => {
    await server.sessions.emitEvents({ sessionId: sessionIds[writer] as string, events: [sampleEvent()] });
  };
}

/** As many bytes as an append's request has. */
function requestBytes(): Buffer {
  const request = create(EmitEventsRequestSchema, { sessionId: "x".repeat(36), events: [sampleEvent()] });
  return Buffer.from(toBinary(EmitEventsRequestSchema, request));
}

async function oneWriter(
  context: BenchContext,
  { atStore, overGrpc, inserts, bare }: Contest,
): Promise<Figure[]> {
  context.say("measuring one writer …");
  const bytes = requestBytes();
  const samples = await interleave(
    [
      { name: "store", once: () => atStore(0) },
      { name: "insert", once: () => inserts.insert(0, SAMPLE_PAYLOAD) },
      { name: "grpc", once: () => overGrpc(0) },
      { name: "echo", once: () => bare.echo(bytes) },
    ],
    { rounds: Math.max(1, Math.round(ROUNDS * context.scale)), perRound: PER_ROUND, warmUp: WARM_UP },
  );
  return [
    ...[0.5, 0.99].map((p) =>
      atMost({
        figure: `store, 1 writer, p${p * 100}, against a bare row`,
        product: at(samples, "store", p),
        baseline: at(samples, "insert", p),
        times: p === 0.5 ? AIM_STORE_P50 : undefined,
      }),
    ),
    ...[0.5, 0.99].map((p) =>
      atMost({
        figure: `gRPC, 1 writer, p${p * 100}, against a bare call plus a bare row`,
        product: at(samples, "grpc", p),
        baseline: at(samples, "echo", p) + at(samples, "insert", p),
        times: p === 0.5 ? AIM_GRPC_P50 : undefined,
      }),
    ),
  ];
}

async function manyWriters(
  context: BenchContext,
  { atStore, overGrpc, inserts, bare }: Contest,
): Promise<Figure[]> {
  context.say(`measuring ${WRITERS} writers …`);
  const bytes = requestBytes();
  const rates = await throughput(
    [
      { name: "store", once: atStore },
      { name: "insert", once: (writer) => inserts.insert(writer, SAMPLE_PAYLOAD) },
      { name: "grpc", once: overGrpc },
      { name: "echo", once: () => bare.echo(bytes) },
    ],
    { rounds: WINDOWS, windowMs: Math.max(50, WINDOW_MS * context.scale), workers: WRITERS },
  );
  const rate = (name: string) => rates.get(name) ?? 0;
  return [
    atLeast({
      figure: `store, ${WRITERS} writers, against as many connections`,
      product: rate("store"),
      baseline: rate("insert"),
      times: AIM_STORE_THROUGHPUT,
    }),
    atLeast({
      figure: `gRPC, ${WRITERS} writers, against bare calls`,
      product: rate("grpc"),
      baseline: rate("echo"),
      times: AIM_GRPC_THROUGHPUT,
    }),
  ];
}

interface Compared {
  readonly figure: string;
  readonly product: number;
  readonly baseline: number;
}

function atMost({ times, ...compared }: Compared & { times: number | undefined }): Figure {
  const aim = times === undefined ? undefined : `≤ ${times}× baseline`;
  const met = times === undefined ? undefined : compared.product <= times * compared.baseline;
  return { ...compared, unit: "ms", aim, met };
}

function atLeast({ times, ...compared }: Compared & { times: number }): Figure {
  const met = compared.product >= times * compared.baseline;
  return { ...compared, unit: "/s", aim: `≥ ${times}× baseline`, met };
}

function at(samples: Map<string, Samples>, name: string, p: number): number {
  return percentile(samples.get(name)?.ms ?? [], p);
}

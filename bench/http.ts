/**
 * What the HTTP API costs beside the calls that it translates to, and beside bare HTTP.
 *
 * The first figure makes a session, opens its stream, says something and has the first event; the baseline does the same by
 * gRPC in the same stretch. The second appends to one session that 500 streams follow; the baseline is 500 open responses of a
 * plain Node server that the same bytes are written to, and before it, as the product does, a row of its own.
 */
import { Arrivals, atMs } from "./frame/arrivals.ts";
import { startBareHttp } from "./frame/bare-http.ts";
import { type BareInserts, openBareInserts } from "./frame/bare-inserts.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";
import { createHttpClient, type HttpClient } from "./frame/http-client.ts";
import { interleave, percentile } from "./frame/measure.ts";
import { startPrivatePostgres } from "./frame/private-postgres.ts";
import { SAMPLE_PAYLOAD, SAMPLE_TYPE, sampleEvent } from "./frame/sample-event.ts";
import { type ServerProcess, startServerProcess } from "./frame/server-process.ts";

const STREAMS = 500;
const ROUNDS = 10;
const PER_ROUND = 10;
const WARM_UP = 30;
const FAN_OUT_PER_ROUND = 3;
const AIM = 1.5;

export const http: Bench = {
  name: "http",
  describe:
    "a session's first event over HTTP against gRPC; 500 streams of events against 500 bare responses",
  async run(context) {
    const postgres = await startPrivatePostgres(context);
    const server = await startServerProcess(context, postgres);
    const client = createHttpClient(context, server.url, server.key);
    const inserts = await openBareInserts(context, { url: postgres.url, connections: 1 });
    return [await firstEvent(context, server, client), await fanOut(context, server, client, inserts)];
  },
};

async function firstEvent(context: BenchContext, server: ServerProcess, client: HttpClient): Promise<Figure> {
  context.say("measuring a session's first event …");
  const samples = await interleave(
    [
      { name: "http", once: () => firstOverHttp(server, client) },
      { name: "grpc", once: () => firstOverGrpc(server) },
    ],
    { rounds: rounds(context), perRound: PER_ROUND, warmUp: WARM_UP },
  );
  const at = (name: string, p: number) => percentile(samples.get(name)?.ms ?? [], p);
  return {
    figure: "create a session, follow it, say something, have it; p50",
    unit: "ms",
    product: at("http", 0.5),
    baseline: at("grpc", 0.5),
    aim: `≤ ${AIM}× gRPC`,
    met: at("http", 0.5) <= AIM * at("grpc", 0.5),
    note: `p99 ${at("http", 0.99).toFixed(1)} ms, gRPC ${at("grpc", 0.99).toFixed(1)} ms`,
  };
}

async function firstOverHttp({ agentId, environmentId }: ServerProcess, client: HttpClient): Promise<void> {
  const body = JSON.stringify({ agent: agentId, environment_id: environmentId });
  const { id } = JSON.parse(await client.call("POST", "/v1/sessions", body)) as { id: string };
  const arrivals = new Arrivals();
  const arriving = arrivals.next(1);
  const stream = await client.open(`/v1/sessions/${id}/events/stream`, arrivals);
  await client.call("POST", `/v1/sessions/${id}/events`, EVENTS);
  await arriving;
  stream.close();
}

async function firstOverGrpc({ agentId, environmentId, sessions }: ServerProcess): Promise<void> {
  const { session } = await sessions.createSession({ agentId, environmentId });
  const sessionId = session!.id;
  const watch = sessions.watchEvents({ sessionId, afterPosition: -1n });
  for await (const { kind } of watch) {
    if (kind.case === "event") break;
    if (kind.case === "progress") await sessions.emitEvents({ sessionId, events: [sampleEvent()] });
  }
  watch.cancel();
}

async function fanOut(
  context: BenchContext,
  server: ServerProcess,
  client: HttpClient,
  inserts: BareInserts,
): Promise<Figure> {
  context.say(`opening ${STREAMS} streams …`);
  const bare = await startBareHttp(context);
  const [arrivals, bareArrivals] = [new Arrivals(), new Arrivals()];
  const [sessionId = ""] = await server.newSessions(1);
  for (let n = 0; n < STREAMS; n++) await client.open(`/v1/sessions/${sessionId}/events/stream`, arrivals);
  await bare.openStreams(STREAMS, bareArrivals);
  context.say(`measuring ${STREAMS} streams …`);
  const product = async () => {
    const arriving = arrivals.next(STREAMS);
    const calledMs = atMs();
    const [times] = await Promise.all([
      arriving,
      client.call("POST", `/v1/sessions/${sessionId}/events`, EVENTS),
    ]);
    return times.map((timeMs) => timeMs - calledMs);
  };
  const baseline = async () => {
    const arriving = bareArrivals.next(STREAMS);
    const calledMs = atMs();
    await inserts.insert(0, SAMPLE_PAYLOAD);
    const [times] = await Promise.all([arriving, bare.push(FRAME)]);
    return times.map((timeMs) => timeMs - calledMs);
  };
  const samples = await interleave(
    [
      { name: "tendon", once: product },
      { name: "bare", once: baseline },
    ],
    { rounds: rounds(context), perRound: FAN_OUT_PER_ROUND, warmUp: 5 },
  );
  const at = (name: string, p: number) => percentile(samples.get(name)?.ms ?? [], p);
  return {
    figure: `from the call to ${STREAMS} streams of one session, p50`,
    unit: "ms",
    product: at("tendon", 0.5),
    baseline: at("bare", 0.5),
    aim: `≤ ${AIM}× bare streams and a row`,
    met: at("tendon", 0.5) <= AIM * at("bare", 0.5),
    note: `p99 ${at("tendon", 0.99).toFixed(1)} ms, bare ${at("bare", 0.99).toFixed(1)} ms`,
  };
}

const rounds = ({ scale }: BenchContext) => Math.max(1, Math.round(ROUNDS * scale));

const EVENTS = JSON.stringify({ events: [{ type: SAMPLE_TYPE, ...JSON.parse(SAMPLE_PAYLOAD) }] });

/** What a stream of the product is sent for one event. */
const FRAME = `event: ${SAMPLE_TYPE}\nid: 1000\ndata: ${JSON.stringify({
  id: sampleEvent().id,
  type: SAMPLE_TYPE,
  processed_at: null,
  ...JSON.parse(SAMPLE_PAYLOAD),
})}\n\n`;

/** One user message, followed over all programs: two server replicas, a harness at the one, a hand agent at the other. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Connection, dial } from "../../kit/dial/dial.ts";
import { parseTraceParent, traceOfEvent } from "../../kit/trace.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { callEnds } from "../kit/fault-platform.ts";
import { freePort } from "../kit/free-port.ts";
import { createTestDatabase } from "../kit/postgres.ts";
import { type ProgramName, startProgram } from "../kit/program.ts";
import { type ReceivedSpan, type SpanReceiver, startSpanReceiver } from "../kit/span-receiver.ts";

const TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT_SPAN = "00f067aa0ba902b7";
const SECRET_WORD = "marzipan-nobody-else-says";

const cleanups: (() => Promise<unknown> | unknown)[] = [];
let receiver: SpanReceiver;
let admin: Connection;
let agentId = "";
let url = "";
let key = "";

beforeAll(async () => {
  receiver = await startSpanReceiver();
  cleanups.push(() => receiver.stop());
  const database = await createTestDatabase();
  cleanups.push(() => database.drop());
  const a = await startReplica(database.url);
  key = (await readFile(join(a.dataDir, "admin.key"), "utf8")).trim();
  url = a.url;
  admin = dial({ url: a.url, token: () => key, proxy: {} });
  cleanups.push(() => admin.close());
  const b = await startReplica(database.url);
  await eventually(
    async () => /^tendon_peer_replicas 1$/m.test(await (await fetch(`${a.url}/metrics`)).text()),
    { withinMs: 60_000 },
  );
  await admin.client(EnvironmentService).createEnvironment({ spec: { name: "default" }, makeDefault: true });
  start("harness", { TENDON_URL: a.url, TENDON_HARNESS_KEY_FILE: join(a.dataDir, "harness.key") });
  const { secret } = await admin.client(AdminService).createJoinToken({});
  const agent = start("hand-agent", {
    TENDON_URL: b.url,
    TENDON_JOIN_TOKEN: secret,
    TENDON_HAND_AGENT_DATA_DIR: join(a.dataDir, "hand-agent"),
  });
  await eventually(() => agent.log().includes('"connected"'), { withinMs: 60_000 });
  const tools = [{ kind: { case: "handToolset" as const, value: {} } }];
  agentId =
    (await admin.client(AgentService).createAgent({ spec: { name: "traced", tools } })).agent?.id ?? "";
});

afterAll(async () => {
  for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) await cleanup();
});

function start(name: ProgramName, env: Record<string, string>) {
  const program = startProgram(name, { TENDON_OTLP_ENDPOINT: receiver.url, ...env });
  cleanups.push(() => program.end("SIGTERM"));
  return program;
}

async function startReplica(databaseUrl: string) {
  const dataDir = await mkdtemp(join(tmpdir(), "tendon-trace-"));
  cleanups.push(() => rm(dataDir, { recursive: true, force: true }));
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  start("server", {
    TENDON_DATABASE_URL: databaseUrl,
    TENDON_DATABASE_POOL: "4",
    TENDON_DATA_DIR: dataDir,
    TENDON_PORT: String(port),
    TENDON_PEER_URL: url,
  });
  await eventually(async () => (await fetch(`${url}/readyz`)).ok, { withinMs: 60_000 });
  return { url, dataDir };
}

async function say(words: string, headers: Record<string, string>) {
  const sessions = admin.client(SessionService);
  const { session } = await sessions.createSession({ agentId });
  const sessionId = session?.id ?? "";
  const payload = JSON.stringify({ content: [{ type: "text", text: words }] });
  const { receipts } = await sessions.emitEvents(
    { sessionId, events: [{ type: "user.message", payload }] },
    { headers },
  );
  await eventually(
    async () => {
      const { session: now } = await sessions.getSession({ sessionId });
      return now?.status === SessionStatus.IDLE && !now.hasWork;
    },
    { withinMs: 60_000, everyMs: 50 },
  );
  const { events } = await sessions.getEvents({ sessionId, limit: 1_000 });
  return { events, messageId: receipts[0]?.id ?? "" };
}

const spansOf = (trace: string) => receiver.spans.filter(({ traceId }) => traceId === trace);
const spansOfTrace = () => spansOf(TRACE);

async function spanNamed(name: string | RegExp): Promise<ReceivedSpan> {
  const fits = (span: ReceivedSpan) => (typeof name === "string" ? span.name === name : name.test(span.name));
  return eventually(() => spansOfTrace().find(fits));
}

/** From a span up to where the trace came from. */
function pathFrom(span: ReceivedSpan): string[] {
  const parent = spansOfTrace().find(({ spanId }) => spanId === span.parentSpanId);
  const here = `${span.service} ${span.name}`;
  return parent === undefined ? [here, span.parentSpanId] : [here, ...pathFrom(parent)];
}

describe("one user message of a client that traces", () => {
  test("is one connected trace over server, harness, the other server, hand agent and the tool's process", async () => {
    const { events } = await say(`run: echo ${SECRET_WORD} > /dev/null; echo $TRACEPARENT`, {
      traceparent: `00-${TRACE}-${CLIENT_SPAN}-01`,
    });
    const process = await spanNamed("process");
    await spanNamed("turn");
    // Every span of the trace leads to the client, once those above it have come: each program hands its own over by itself.
    await expect
      .poll(() => [...new Set(spansOfTrace().map((span) => pathFrom(span).at(-1)))])
      .toEqual([CLIENT_SPAN]);
    expect(pathFrom(process)).toEqual([
      "tendon-hand-agent process",
      "tendon-hand-agent execution",
      "tendon-server /tendon.v1.HandService/Execute",
      "tendon-harness tool call",
      "tendon-harness turn",
      "tendon-server /tendon.v1.SessionService/EmitEvents",
      CLIENT_SPAN,
    ]);
    expect(await spanNamed("model request")).toMatchObject({ service: "tendon-harness", failed: false });
    expect(await spanNamed("assign")).toMatchObject({ service: "tendon-server" });
    // What the tool's process sees is its own span.
    const [call] = callEnds(events);
    expect(parseTraceParent(call?.text.trim())).toEqual({
      traceId: TRACE,
      spanId: process.spanId,
      sampled: true,
    });
    for (const { startNanos, endNanos } of spansOfTrace()) expect(endNanos >= startNanos).toBe(true);
  });

  test("shows nothing that anybody said in any span", () => {
    expect(receiver.bodies.length).toBeGreaterThan(0);
    expect(receiver.bodies.filter((body) => body.includes(SECRET_WORD))).toEqual([]);
    expect(receiver.bodies.filter((body) => body.includes("echo"))).toEqual([]);
  });

  test("leaves its trace id in the log, where every client can read it, and no span when the client records none", async () => {
    const [quiet, told] = [TRACE.replace("4bf9", "6bf9"), TRACE.replace("4bf9", "7bf9")];
    const { events } = await say("run: true", { traceparent: `00-${quiet}-${CLIENT_SPAN}-00` });
    const consumed = events.find(({ type }) => type === "brain.inputs_consumed");
    expect(JSON.parse(consumed?.payload ?? "{}")).toMatchObject({ trace_id: quiet });
    // Each program hands its spans over in order: when those of a later message are here, all of this one would be.
    await say("run: true", { traceparent: `00-${told}-${CLIENT_SPAN}-01` });
    const inAll = [/EmitEvents/, /Execute/, /^turn$/, /^execution$/];
    await eventually(() => inAll.every((name) => spansOf(told).some((span) => name.test(span.name))));
    expect(spansOf(quiet)).toEqual([]);
  });

  test("is followed over plain HTTP as it is over gRPC", async () => {
    const { session } = await admin.client(SessionService).createSession({ agentId });
    const traceId = TRACE.replace("4bf9", "5bf9");
    const payload = JSON.stringify({ content: [{ type: "text", text: "hello" }] });
    const answer = await fetch(`${url}/tendon.v1.SessionService/EmitEvents`, {
      method: "POST",
      headers: {
        "content-type": "application/json",
        authorization: `Bearer ${key}`,
        traceparent: `00-${traceId}-${CLIENT_SPAN}-01`,
      },
      body: JSON.stringify({ sessionId: session?.id, events: [{ type: "user.message", payload }] }),
    });
    expect(answer.status).toBe(200);
    const turn = await eventually(
      () => receiver.spans.find((span) => span.traceId === traceId && span.name === "turn"),
      { withinMs: 60_000 },
    );
    expect(turn.attributes["tendon.session_id"]).toBe(session?.id);
  });

  test("that tells no trace, begins one at the server", async () => {
    const { events, messageId } = await say("hello", {});
    const consumed = events.find(({ type }) => type === "brain.inputs_consumed");
    const { trace_id: traceId } = JSON.parse(consumed?.payload ?? "{}") as { trace_id: string };
    expect(traceId).not.toBe(traceOfEvent(messageId).traceId);
    await eventually(() => spansOf(traceId).find(({ name }) => name === "turn"));
    const roots = () => spansOf(traceId).filter(({ parentSpanId }) => parentSpanId === "");
    // The server hands its spans over by itself, maybe after the harness.
    await eventually(() => roots().length > 0);
    expect(roots().map(({ name }) => name)).toEqual(["/tendon.v1.SessionService/EmitEvents"]);
  });
});

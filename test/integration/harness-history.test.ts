/** The memory that histories take, bounded: real harnesses at a real server, the model faked at its wire. */
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { HistoryRoom } from "../../harness/history-room.ts";
import { TURN_MS } from "../../harness/history-room-rules.ts";
import { systemClock } from "../../kit/clock.ts";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { EventText, SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { type Brains, startBrains } from "../kit/brains.ts";
import { eventually } from "../kit/eventually.ts";
import { FakeClock } from "../kit/fake-clock.ts";
import {
  type FakeMessagesApi,
  gate,
  type Script,
  startFakeMessagesApi,
  turn,
} from "../kit/fake-messages-api.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { residentBytes } from "../kit/process-tree.ts";
import { startProgram } from "../kit/program.ts";
import { startServer, type TestServer } from "../kit/server.ts";

const MIB = 1024 * 1024;

let database: TestDatabase;
let server: TestServer;
let agentId: string;
let api: FakeMessagesApi;
const brains: Brains[] = [];
/** What the model does in the running test. */
let script: Script;

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  api = await startFakeMessagesApi({ script: (request, n) => script(request, n) });
  const spec = {
    name: "reader",
    model: { id: "claude-test" },
    loopSettings: `{"context":{"compact":false}}`,
  };
  const { agent } = await server.client(AgentService).createAgent({ spec });
  agentId = agent!.id;
  await server.client(EnvironmentService).createEnvironment({ spec: { name: "default" }, makeDefault: true });
});
afterEach(async () => {
  for (const brain of brains.splice(0)) await brain.stop();
  expect(api.refusals).toEqual([]);
});
afterAll(async () => {
  await api?.stop();
  await server?.stop();
  await database?.drop();
});

async function addHarness(room: HistoryRoom): Promise<void> {
  const { url, apiKey } = api;
  const key = await server.localKey("harness");
  brains.push(await startBrains({ url: server.url, key, room, model: { url, apiKey } }));
  await eventually(() => brains.at(-1)!.harness.isConnected);
}

/** A session that is given a document of so many bytes of base64. */
async function sessionWith(bytes: number): Promise<string> {
  const sessions = server.client(SessionService);
  const { session } = await sessions.createSession({ agentId });
  const source = { type: "base64", media_type: "application/pdf", data: "A".repeat(bytes) };
  const payload = Buffer.from(JSON.stringify({ content: [{ type: "document", source }] }));
  const call = sessions.emitLargeEvents();
  const sessionId = session!.id;
  await call.send({ kind: { case: "request", value: { sessionId, events: [{ type: "user.message" }] } } });
  for (let at = 0; at < payload.length; at += MIB) {
    const piece = { eventIndex: 0, text: EventText.PAYLOAD, chunk: payload.subarray(at, at + MIB) };
    await call.send({ kind: { case: "piece", value: piece } });
  }
  await call.send({ kind: { case: "end", value: {} } });
  await call.end();
  return sessionId;
}

async function rested(sessionId: string): Promise<readonly Event[]> {
  return eventually(
    async () => {
      const { events } = await server.client(SessionService).getEvents({ sessionId, limit: 100 });
      const { type } = events.at(-1)!;
      if (type === "session.status_idle") return events;
      throw new Error(`the log has ${events.map((event) => event.type)}`);
    },
    { withinMs: 60_000, everyMs: 20 },
  );
}

const saysOf = (events: readonly Event[], type: string) =>
  events.filter((event) => event.type === type).map(({ payload }) => JSON.parse(payload));
const stopOf = (events: readonly Event[]) => saysOf(events, "session.status_idle").at(-1).stop_reason.type;

it("sessions with more files than there is room for all get their turn, and never take more than the room", async () => {
  const room = new HistoryRoom(2.5 * MIB, systemClock);
  const held: number[] = [];
  const both = gate();
  script = async () => {
    held.push(room.takenBytes);
    await both.opened;
    return turn(["read"]);
  };
  // Each takes 1 MiB beside what every session has of its own, so two fit.
  const ids = await Promise.all([1, 2, 3, 4, 5].map(() => sessionWith(3 * MIB)));
  await addHarness(room);
  await eventually(() => held.length === 2 && room.waiting > 0);
  both.open();
  for (const id of ids) expect(stopOf(await rested(id))).toBe("end_turn");
  expect(held).toHaveLength(5);
  expect(Math.max(...held)).toBeLessThanOrEqual(2.5 * MIB);
  expect(Math.max(...held)).toBeGreaterThan(1 * MIB);
  await eventually(() => room.takenBytes === 0);
});

it("a history that is larger than all the room ends its turn and says so; sessions beside it go on", async () => {
  script = () => turn(["read"]);
  const [large, small] = await Promise.all([sessionWith(5 * MIB), sessionWith(3 * MIB)]);
  const room = new HistoryRoom(2.5 * MIB, systemClock);
  await addHarness(room);
  const events = await rested(large);
  expect(stopOf(events)).toBe("retries_exhausted");
  expect(saysOf(events, "session.error")).toMatchObject([
    { error: { part: "harness", reason: "HISTORY_TOO_LARGE", message: expect.stringContaining("2 MiB") } },
  ]);
  expect(events.map(({ type }) => type)).not.toContain("span.model_request_start");
  expect(stopOf(await rested(small))).toBe("end_turn");
  // A harness with room for it goes on where it was.
  for (const brain of brains.splice(0)) await brain.stop();
  await addHarness(new HistoryRoom(16 * MIB, systemClock));
  const again = { type: "user.message", payload: `{"content":[{"type":"text","text":"again"}]}` };
  await server.client(SessionService).emitEvents({ sessionId: large, events: [again] });
  await eventually(async () => stopOf(await rested(large)) === "end_turn");
  expect(room.takenBytes).toBe(0);
});

it("a session that has had its turn makes room for one that waits, at another harness, and nothing is lost", async () => {
  const clock = new FakeClock();
  const room = new HistoryRoom(1.5 * MIB, clock);
  const overloaded = gate();
  let asked = 0;
  script = async () => {
    asked += 1;
    if (asked > 1) return turn(["read"]);
    // It would wait for the model now, and hold its history meanwhile.
    await overloaded.opened;
    return {
      kind: "http_failure",
      status: 529,
      errorType: "overloaded_error",
      message: "busy",
      headers: { "retry-after": "10" },
    };
  };
  const first = await sessionWith(3 * MIB);
  await addHarness(room);
  await eventually(() => asked === 1);
  const second = await sessionWith(3 * MIB);
  await eventually(() => room.waiting === 1);
  await addHarness(new HistoryRoom(1.5 * MIB, systemClock));
  await clock.advance(TURN_MS + 1_000);
  overloaded.open();
  for (const id of [first, second]) expect(stopOf(await rested(id))).toBe("end_turn");
  expect(asked).toBe(3);
});

it("a harness that stops gives back what waits for room, and another one takes it", async () => {
  const answered = gate();
  script = async () => {
    await answered.opened;
    return turn(["read"]);
  };
  // Its clock stands still: nobody is sent away for waiting too long.
  const room = new HistoryRoom(1.5 * MIB, new FakeClock());
  await addHarness(room);
  const ids = await Promise.all([sessionWith(3 * MIB), sessionWith(3 * MIB)]);
  await eventually(() => room.waiting === 1 && room.takenBytes > 0);
  const [first] = brains.splice(0);
  await first!.stop();
  answered.open();
  await addHarness(new HistoryRoom(1.5 * MIB, systemClock));
  for (const id of ids) expect(stopOf(await rested(id))).toBe("end_turn");
});

it("a harness lives with less heap than the files of its sessions would take together, and runs them all", async () => {
  const together = gate();
  let asked = 0;
  script = async () => {
    asked += 1;
    await together.opened;
    return turn(["read"]);
  };
  const ids = await Promise.all([1, 2, 3, 4, 5, 6].map(() => sessionWith(6 * MIB)));
  const program = startProgram("harness", {
    TENDON_URL: server.url,
    TENDON_HARNESS_KEY: await server.localKey("harness"),
    TENDON_HARNESS_HISTORY_MIB: "16",
    ANTHROPIC_API_KEY: api.apiKey,
    ANTHROPIC_BASE_URL: api.url,
    NODE_OPTIONS: "--max-old-space-size=112",
  });
  try {
    // Three have room at a time.
    await eventually(() => asked >= 3);
    together.open();
    for (const id of ids) expect(stopOf(await rested(id))).toBe("end_turn");
    expect(residentBytes(program.pid, { peak: true })).toBeLessThan(500 * MIB);
  } finally {
    expect(await program.end("SIGTERM")).toBe(0);
  }
});

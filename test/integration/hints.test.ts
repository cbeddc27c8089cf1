/** NOTIFY is a hint between replicas: who is alone gives none (R19), and a second replica still hears everything (L4). */
import pg from "pg";
import { afterAll, beforeAll, expect, test } from "vitest";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { HINT_CHANNEL } from "../../server/store/postgres/head-hints.ts";
import { eventually } from "../kit/eventually.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startServer, type TestServer } from "../kit/server.ts";

let database: TestDatabase;
let listener: pg.Client;
const heard: string[] = [];
const servers: TestServer[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  listener = new pg.Client({ connectionString: database.url });
  listener.on("notification", ({ payload }) => heard.push(payload ?? ""));
  await listener.connect();
  await listener.query(`listen ${HINT_CHANNEL}`);
});
afterAll(async () => {
  await listener.end();
  for (const server of servers) await server.stop();
  await database.drop();
});

async function start(): Promise<TestServer> {
  const server = await startServer({ databaseUrl: database.url });
  servers.push(server);
  return server;
}

async function append(server: TestServer, sessionId: string): Promise<void> {
  const payload = '{"content":[{"type":"text","text":"more"}]}';
  await server.client(SessionService).emitEvents({ sessionId, events: [{ type: "user.message", payload }] });
}

test("a replica that is alone notifies nobody; once there is another it does, and that one misses nothing (R19, L4)", async () => {
  const first = await start();
  await first.client(EnvironmentService).createEnvironment({ spec: { name: "e" }, makeDefault: true });
  const { agent } = await first.client(AgentService).createAgent({ spec: { name: "a" } });
  const { session } = await first.client(SessionService).createSession({ agentId: agent?.id ?? "" });
  const sessionId = session?.id ?? "";
  await append(first, sessionId);
  await append(first, sessionId);
  // What was notified before the answer to this comes before it.
  await listener.query("select 1");
  expect(heard.filter((payload) => payload.includes(sessionId))).toEqual([]);

  const second = await start();
  const positions: bigint[] = [];
  const watch = second.client(SessionService, first.adminKey).watchEvents({ sessionId });
  const reading = (async () => {
    for await (const { kind } of watch) if (kind.case === "event") positions.push(kind.value.position);
  })().catch(() => {});
  await append(first, sessionId);
  await eventually(() => positions.length === 3);
  await eventually(async () => {
    await append(first, sessionId);
    return heard.some((payload) => payload.includes(sessionId));
  });
  watch.cancel();
  await reading;
  expect(positions.map(Number)).toEqual(positions.map((_, index) => index + 1));
});

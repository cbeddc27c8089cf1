/** Copies and hand-overs that are asked of one replica while the hand agent, a real one, is connected to another. */
import { randomBytes } from "node:crypto";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { HandAgent } from "../../hand-agent/hand-agent.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { agentInProcess, makeAgentDir } from "../kit/hand-agent-program.ts";
import { copyIn, copyOut, pack, unpack } from "../kit/hand-copies.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startServer, type TestServer } from "../kit/server.ts";

let database: TestDatabase;
let a: TestServer;
let b: TestServer;
let adminKey = "";
let agent: HandAgent;
let dir: Awaited<ReturnType<typeof makeAgentDir>>;
let handId = "";

const hands = (server: TestServer) => server.client(HandService, adminKey);
const startAgent = async (joinToken: string) => {
  agent = agentInProcess({ url: a.url, dataDir: dir.path, joinToken, drainMs: 200 });
  await agent.start();
};
const listed = async () => unpack(await copyOut(hands(a), { handId, path: ".", tar: true }));
const reasonOf = (promise: Promise<unknown>) =>
  promise.then(
    () => "no error",
    (error: { reason: string }) => error.reason,
  );

beforeAll(async () => {
  database = await createTestDatabase();
  dir = await makeAgentDir();
  a = await startServer({ databaseUrl: database.url, peers: true });
  adminKey = a.adminKey;
  b = await startServer({ databaseUrl: database.url, peers: true });
  await a.client(EnvironmentService).createEnvironment({ spec: { name: "default" }, makeDefault: true });
  const { secret } = await a.client(AdminService).createJoinToken({ uses: 2 });
  await startAgent(secret);
  handId = (await hands(b).provision({ requestId: "over b" }, { deadlineMs: 60_000 })).hand!.id;
});
afterAll(async () => {
  await agent?.stop();
  for (const server of [b, a]) await server?.stop();
  await dir?.remove();
  await database?.drop();
});

test("files and trees go in and out over a replica that the agent is not connected to", async () => {
  const bytes = randomBytes(4_000_000);
  await copyIn(hands(b), { handId, path: "big" }, bytes);
  expect((await copyOut(hands(b), { handId, path: "big" })).equals(bytes)).toBe(true);
  expect((await copyOut(hands(a), { handId, path: "big" })).equals(bytes)).toBe(true);
  await copyIn(hands(b), { handId, path: "t", tar: true }, pack(["x", "1"], ["d/y", "2", { mode: 0o755 }]));
  const out = await unpack(await copyOut(hands(b), { handId, path: "t", tar: true }));
  expect(out).toEqual([". directory 700", "d directory 700", "d/y file 755 2", "x file 644 1"]);
  expect(await reasonOf(copyOut(hands(b), { handId, path: "nothing" }))).toBe("NOT_FOUND");
  expect(await reasonOf(copyIn(hands(b), { handId, path: "../../x" }, bytes))).toBe("INVALID_FIELD");
});

test("a caller that goes away there is missed here: what was there stays, and the agent is free again", async () => {
  await copyIn(hands(b), { handId, path: "f" }, Buffer.from("whole"));
  const call = hands(b).copyIn();
  await call.send({ kind: { case: "target", value: { handId, path: "f" } } });
  await call.send({ kind: { case: "chunk", value: randomBytes(1_000_000) } });
  await eventually(async () => (await listed()).some((entry) => entry.includes(".tendon-")), {
    withinMs: 60_000,
  });
  call.cancel();
  await eventually(async () => !(await listed()).some((entry) => entry.includes(".tendon-")), {
    withinMs: 60_000,
  });
  expect((await copyOut(hands(a), { handId, path: "f" })).toString()).toBe("whole");
});

test("an agent that stops in the midst of a copy ends it as unavailable, and the same copy again is whole", async () => {
  const call = hands(b).copyIn();
  await call.send({ kind: { case: "target", value: { handId, path: "f" } } });
  await call.send({ kind: { case: "chunk", value: randomBytes(100_000) } });
  await eventually(async () => (await listed()).some((entry) => entry.includes(".tendon-")), {
    withinMs: 60_000,
  });
  await agent.stop();
  expect(await reasonOf(call.end())).toBe("UNAVAILABLE");
  await startAgent("not needed again");
  const again = () => copyIn(hands(b), { handId, path: "f" }, Buffer.from("second"));
  await eventually(() => again().then(() => true), { withinMs: 60_000 });
  expect((await copyOut(hands(b), { handId, path: "f" })).toString()).toBe("second");
});

test("a hand-over that is asked there reaches the agent here, which refuses the owner before (H6)", async () => {
  const { agent: definition } = await a.client(AgentService).createAgent({ spec: { name: "t" } });
  const { session } = await b.client(SessionService, adminKey).createSession({ agentId: definition!.id });
  const request = { requestId: "over", handId, toSessionId: session!.id };
  const { hand } = await hands(b).handOver(request);
  expect(hand).toMatchObject({ sessionId: session!.id, ownerNumber: 2n });
  const noted = () =>
    (
      agent as unknown as { parts: { hands: { statuses(): { ownerNumber: bigint }[] } } }
    ).parts.hands.statuses()[0];
  await eventually(() => noted()!.ownerNumber === 2n, { withinMs: 60_000 });
  expect(await reasonOf(copyOut(hands(a), { handId, path: "f" }))).toBe("ROLE_NOT_ALLOWED");
  const read = copyOut(hands(b), { handId, path: "f", reason: "to see" });
  expect((await read).toString()).toBe("second");
  expect((await hands(a).handOver(request)).hand).toMatchObject({ ownerNumber: 2n });
});

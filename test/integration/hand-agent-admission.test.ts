import { afterAll, beforeAll, expect, test } from "vitest";
import { HandRig } from "../kit/hand-rig.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";

let database: TestDatabase;
let rig: HandRig;

beforeAll(async () => {
  database = await createTestDatabase();
  rig = new HandRig({ pool: database.pool() });
  await rig.start();
});
afterAll(async () => {
  await rig?.stop();
  await database?.drop();
});

const AGENTS = 30;
const ATTEMPTS = 3;
/** More than the server takes in at a time. */
const AT_ONCE = 10;

test("agents that gave up while the database was slow leave no work behind, and all get in with the next attempt (R10)", async () => {
  const agents = await Promise.all(Array.from({ length: AGENTS }, () => rig.agent()));
  const greeting = { protocolVersion: 1, journalId: "jrnl_1", capacityHands: 1 };
  const slow = await database.pool().connect();
  await slow.query("begin");
  await slow.query("lock table hand_agents in share mode");
  for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
    const calls = agents.map(async ({ handAgentId }) => {
      const principal = { kind: "hand_agent", handAgentId, workspaceId: rig.workspaceId, pool: "" } as const;
      const client = rig.agentService(principal);
      const call = client.connect();
      const answer = call.responses[Symbol.asyncIterator]().next();
      answer.catch(() => {});
      await call.send({ kind: { case: "greeting", value: greeting } });
      // On the same connection, and refused without the database: what was sent before has been taken by then.
      await expect(client.enroll({})).rejects.toMatchObject({ reason: "INVALID_FIELD" });
      return call;
    });
    for (const call of await Promise.all(calls)) call.cancel();
  }
  await slow.query("commit");
  slow.release();
  await Promise.all(agents.map((agent) => agent.connect()));
  const { rows } = await database
    .pool()
    .query<{ generations: string }>("select sum(generation) as generations from hand_agents");
  // Those whose turn it was when they left, and the ones that stand.
  expect(Number(rows[0]?.generations)).toBeLessThanOrEqual(AGENTS + AT_ONCE);
  expect(agents.every(({ isOnline }) => isOnline)).toBe(true);
});

/** The short way of a call on a hand that its session had before: one statement binds, one finishes, nothing is promised less. */
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { ExecutionOutcome } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { Pool } from "../../server/store/postgres/pool.ts";
import { eventually } from "../kit/eventually.ts";
import { collectExecution as collect, textOfResult as textOf } from "../kit/execution-stream.ts";
import { HandRig, type RigSession } from "../kit/hand-rig.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import type { ScriptedHandAgent } from "../kit/scripted-hand-agent.ts";

const DEEPER_THAN_POSTGRES = 50_000;

let database: TestDatabase;
let rig: HandRig;
let agent: ScriptedHandAgent;
let session: RigSession;
let statements: { sql: string; values: readonly unknown[] }[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.drop());
beforeEach(async () => {
  rig = new HandRig({ pool: noting(database.pool()) });
  await rig.start();
  agent = await rig.agent();
  await agent.connect();
  session = await rig.session();
  // From now on the hand is known.
  await collect(rig.harness.execute(await session.toolUse("echo", { text: "first" })));
  await eventually(() => agent.journal.size === 0);
  statements = [];
});
afterEach(async () => {
  await rig.stop();
  await database.pool().query("update hand_agents set revoked_at = now()");
  await database.pool().query("update environments set is_default = false");
});

/** The same pool, whose statements are kept. */
function noting(pool: Pool): Pool {
  const note = (sql: string, values: readonly unknown[] = []) => statements.push({ sql, values });
  return {
    ...pool,
    query: (sql, values) => {
      note(sql, values);
      return pool.query(sql, values);
    },
    async connect() {
      const connection = await pool.connect();
      return {
        ...connection,
        query: (sql, values) => {
          note(sql, values);
          return connection.query(sql, values);
        },
      };
    },
  };
}

const runs = () => [...agent.runs.values()].reduce((sum, times) => sum + times, 0);
const run = async (call: Parameters<typeof rig.harness.execute>[0]) => collect(rig.harness.execute(call));

test("a call costs one statement before it is sent and one for its result, which is in the log (X1a, X3)", async () => {
  const call = await session.toolUse("echo", { text: "x" });
  statements = [];
  const ran = await run(call);
  expect(textOf(ran.result)).toBe("x");
  // What the server looks at every so often, whoever calls, is not the call's.
  const looksAround = /^select execution_key, result from executions where execution_key = any/;
  const ofTheCall = statements.filter(
    ({ sql, values }) =>
      !looksAround.test(sql) &&
      JSON.stringify(values, (_, one) => (typeof one === "bigint" ? String(one) : one)).includes(
        call.executionId ?? "",
      ),
  );
  expect(ofTheCall.map(({ sql }) => sql)).toEqual([
    expect.stringContaining("from bind_call("),
    expect.stringContaining("from finish_call("),
  ]);
  const results = await session.events("agent.tool_result");
  expect(results).toHaveLength(2);
  expect(results[1]?.payload).toMatchObject({ tool_use_id: call.executionId, hand_id: ran.hand });
  const advance = { sessionId: session.id, head: BigInt(results[1]!.position), hasWork: true };
  expect(rig.announced.at(-1)).toMatchObject(advance);
  const { rows } = await rig.pool.query<{ head: number; work: number }>(
    "select head, work_position as work from sessions where session_id = $1",
    [session.id],
  );
  expect(rows[0]).toEqual({ head: results[1]!.position, work: results[1]!.position });
});

test("it runs once however many ask at once, and the result stands (X1, X3)", async () => {
  const call = await session.toolUse("echo", { text: "once" });
  const asked = await Promise.all([1, 2, 3, 4, 5].map(() => run(call)));
  expect(asked.map(({ result }) => textOf(result))).toEqual(Array(5).fill("once"));
  expect(textOf((await run(call)).result)).toBe("once");
  expect(runs()).toBe(2);
  expect(await session.events("agent.tool_result")).toHaveLength(2);
});

test("a tool use that Postgres cannot read, because it is nested too deeply, takes the long way and runs", async () => {
  const call = await session.toolUse("echo", { text: "x" });
  const deep = "[".repeat(DEEPER_THAN_POSTGRES) + "]".repeat(DEEPER_THAN_POSTGRES);
  await expect(rig.pool.query("select $1::json", [deep])).rejects.toMatchObject({ code: "54001" });
  await rig.pool.query(
    "update events set payload = left(payload, -1) || ',\"more\":' || $2 || '}' where event_id = $1",
    [call.executionId, deep],
  );
  expect(textOf((await run(call)).result)).toBe("x");
});

test("a fenced brain sends nothing (E1)", async () => {
  const call = await session.toolUse("echo", { text: "x" });
  await session.takeOver();
  await expect(run(call)).rejects.toMatchObject({ reason: "LEASE_FENCED", metadata: { epoch: "2" } });
  expect(runs()).toBe(1);
  expect(textOf((await run({ ...call, lease: session.lease })).result)).toBe("x");
});

test("a call that is not the one in the log is refused; one that is only written differently runs", async () => {
  const call = await session.toolUse("echo", { text: "x", n: 1 });
  const message = await session.append("agent.message", { content: [] });
  const refused = async (change: object, field: string) =>
    expect(run({ ...call, ...change })).rejects.toMatchObject({
      reason: "INVALID_FIELD",
      metadata: { field },
    });
  await refused({ name: "bash" }, "name");
  await refused({ input: '{"text":"y","n":1}' }, "input");
  await refused({ executionId: message }, "execution_id");
  expect(runs()).toBe(1);
  expect(textOf((await run({ ...call, input: '{ "n": 1, "text": "x" }' })).result)).toBe("x");
});

test("texts that Postgres does not read as JSON run all the same", async () => {
  const call = await session.toolUse("echo", { text: "a\u0000b" });
  expect(textOf((await run(call)).result)).toBe("a\u0000b");
});

test("an archived session takes no calls", async () => {
  const call = await session.toolUse("echo", { text: "x" });
  await rig.pool.query("update sessions set archived_at = now() where session_id = $1", [session.id]);
  await expect(run(call)).rejects.toMatchObject({ reason: "SESSION_ARCHIVED" });
  expect(runs()).toBe(1);
});

test("a call that was cancelled before it came does not run (X1c, X3)", async () => {
  const call = await session.toolUse("echo", { text: "x" });
  const { sessionId, executionId, lease } = call;
  await rig.harness.cancelExecution({ sessionId, executionId, lease });
  expect((await run(call)).result).toMatchObject({ isError: true, outcome: ExecutionOutcome.CANCELLED });
  expect(runs()).toBe(1);
  expect(await session.events("agent.tool_result")).toHaveLength(2);
});

test("a call that was answered by other means gets that answer and does not run (X3)", async () => {
  const call = await session.toolUse("echo", { text: "x" });
  const content = [{ type: "text", text: "by hand" }];
  await session.append("agent.tool_result", { tool_use_id: call.executionId, content, is_error: false });
  expect(textOf((await run(call)).result)).toBe("by hand");
  expect(runs()).toBe(1);
});

test("a hand that is gone is not used again: the next call gets a new one (H2)", async () => {
  const { hand } = await run(await session.toolUse("echo", { text: "x" }));
  await rig.admin.releaseHand({ handId: hand! });
  const next = await run(await session.toolUse("echo", { text: "y" }));
  expect(textOf(next.result)).toMatch(/^Note: the environment that earlier calls ran in was released.*\ny$/);
  expect(next.hand).not.toBe(hand);
});

test("what the next result has to say first is said once", async () => {
  await rig.pool.query("update hands set notice = 'Note: new shell.' where session_id = $1", [session.id]);
  const said = await run(await session.toolUse("echo", { text: "x" }));
  expect(said.result?.content).toContain("Note: new shell.");
  const after = await run(await session.toolUse("echo", { text: "y" }));
  expect(after.result?.content).not.toContain("Note");
});

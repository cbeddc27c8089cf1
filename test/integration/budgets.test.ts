import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { eventually } from "../kit/eventually.ts";
import { expectWhole, payloads, TreeRig } from "../kit/tree-rig.ts";

let rig: TreeRig;
beforeAll(async () => {
  rig = await TreeRig.start();
});
afterAll(() => rig.stop());

const THREADS = 8;
const TOKENS_A_REQUEST = 100;
const usage = { inputTokens: 60, outputTokens: 30, cacheReadInputTokens: 10 };

/** The database's own word on a budget, told late where the budget is spent. */
const LATE_STANDING = `
alter function budget_standing(text) rename to budget_standing_now;
create function budget_standing(
  of_session text,
  out budget text, out age_ms bigint, out tokens bigint, out list_cost_nano_usd bigint, out unpriced_requests bigint,
  out model_requests bigint
) returns setof record language plpgsql as $body$
begin
  return query select * from budget_standing_now(of_session);
  perform pg_advisory_xact_lock(11) from budget_standing_now(of_session) s where s.model_requests >= 4;
end
$body$`;
const STANDING =
  "drop function budget_standing(text); alter function budget_standing_now(text) rename to budget_standing";

/** A lead that fans out to workers that ask their model again and again, until `rounds` are over. */
async function fanOut(name: string, rounds: () => number) {
  const worker = await rig.agent(`${name} worker`, async (request) => {
    if (request >= rounds()) return { say: "finished", usage };
    return { calls: [{ name: "thread_list" }], usage };
  });
  return rig.agent(
    `${name} lead`,
    (request) => {
      const calls = Array.from({ length: THREADS }, () => ({
        name: "thread_create",
        input: { agent: `${name} worker`, message: "work" },
      }));
      if (request === 1) return { calls, usage };
      if (request === 2) return { calls: [{ name: "thread_wait" }], usage };
      return { say: "All finished.", usage };
    },
    { members: [worker] },
  );
}

async function spentTokens(sessionId: string): Promise<number> {
  const { usage: sum } = (await rig.get(sessionId)).tree!;
  return Number(sum!.inputTokens + sum!.outputTokens + sum!.cacheReadInputTokens);
}

async function allHeld(sessionId: string): Promise<void> {
  await eventually(
    async () => {
      const { tree } = await rig.get(sessionId);
      return tree?.liveThreads === THREADS && tree.running === 0 && tree.atBudget === THREADS + 1;
    },
    { withinMs: 60_000 },
  );
}

describe("a budget of a tree", () => {
  it("stops a fan-out at its cap and at most one request for each live thread, also across a restart (R24)", async () => {
    const cap = 3_000;
    let rounds = Number.POSITIVE_INFINITY;
    const lead = await fanOut("tokens", () => rounds);
    const sessionId = await rig.talk(lead, "go", { budget: { maxTokens: BigInt(cap) } });
    await eventually(async () => (await spentTokens(sessionId).catch(() => 0)) > cap / 3, {
      withinMs: 60_000,
    });
    await rig.restart();
    await allHeld(sessionId);
    const spent = await spentTokens(sessionId);
    expect(spent).toBeGreaterThanOrEqual(cap);
    expect(spent).toBeLessThanOrEqual(cap + (THREADS + 1) * TOKENS_A_REQUEST);
    expect((await rig.get(sessionId)).stopReason).toBe(StopReason.BUDGET_REACHED);
    const [thread] = await rig.threadsOf(sessionId);
    const log = await rig.log(thread!.id);
    expect(payloads(log, "session.status_idle").at(-1)).toMatchObject({
      stop_reason: { type: "budget_reached" },
      stop_details: { type: "budget_reached", limit: "max_tokens", allowed: String(cap) },
    });
    const shown = (await rig.log(sessionId)).filter(({ type }) => type === "session.thread_status_idle");
    expect(shown.at(-1)!.payload).toContain("budget_reached");

    // A message changes nothing of that.
    await rig.say(sessionId, "go on");
    await eventually(async () => !(await rig.get(sessionId)).hasWork);
    expect(await spentTokens(sessionId)).toBe(spent);

    rounds = 0;
    await rig.sessions.updateSession({ sessionId, budget: { maxTokens: BigInt(cap * 10) } });
    await rig.rested(sessionId, StopReason.END_TURN, 60_000);
    expect(payloads(await rig.log(sessionId), "agent.message").at(-1)).toMatchObject({
      content: [{ text: "All finished." }],
    });
    for (const { id } of await rig.threadsOf(sessionId)) {
      expect((await rig.get(id)).stopReason).toBe(StopReason.END_TURN);
      expectWhole(await rig.log(id));
    }
  });

  it("is said to be spent by a root that begins to wait for threads which rest because of it", async () => {
    let letGo = () => {};
    const gate = new Promise<void>((resolve) => {
      letGo = resolve;
    });
    const worker = await rig.agent("spender", () => ({ calls: [{ name: "thread_list" }] }));
    const lead = await rig.agent(
      "late waiter",
      async (request) => {
        const create = { name: "thread_create", input: { agent: "spender", message: "spend" } };
        if (request === 1) return { calls: [create] };
        await gate;
        return request === 2 ? { calls: [{ name: "thread_wait" }] } : { say: "." };
      },
      { members: [worker] },
    );
    const sessionId = await rig.talk(lead, "go", { budget: { maxTurns: 6n } });
    await eventually(async () => (await rig.get(sessionId)).tree?.atBudget === 1);
    letGo();
    await rig.rested(sessionId, StopReason.BUDGET_REACHED);
    await rig.threads.stopTree({ sessionId });
    await rig.rested(sessionId, StopReason.END_TURN);
    expectWhole(await rig.log(sessionId));
  });

  it("that is changed is told to threads that work, too: one may be about to rest at the old one", async () => {
    let letGo = () => {};
    const gate = new Promise<void>((resolve) => {
      letGo = resolve;
    });
    const worker = await rig.agent("at work", async () => {
      await gate;
      return { say: "." };
    });
    const lead = await rig.agent(
      "raises",
      (request) =>
        request === 1
          ? { calls: [{ name: "thread_create", input: { agent: "at work", message: "m" } }] }
          : { say: "." },
      { members: [worker] },
    );
    const sessionId = await rig.talk(lead, "go", { budget: { maxTurns: 10n } });
    await rig.rested(sessionId, StopReason.END_TURN);
    const [thread] = await rig.threadsOf(sessionId);
    await eventually(async () =>
      (await rig.log(thread!.id)).some(({ type }) => type === "span.model_request_start"),
    );
    await rig.sessions.updateSession({ sessionId, budget: { maxTurns: 20n } });
    expect(payloads(await rig.log(thread!.id), "session.updated")).toMatchObject([
      { budget: { maxTurns: "20" } },
    ]);
    letGo();
    await rig.rested(thread!.id, StopReason.END_TURN);
    expectWhole(await rig.log(thread!.id));
    // It rests, so it has nothing to look at again.
    await rig.sessions.updateSession({ sessionId, budget: { maxTurns: 30n } });
    expect(payloads(await rig.log(thread!.id), "session.updated")).toHaveLength(1);
  });

  it("that is raised while a thread is about to rest at the old one lets it go on", async () => {
    let letGo = () => {};
    const gate = new Promise<void>((resolve) => {
      letGo = resolve;
    });
    const worker = await rig.agent("raised", async (request) => {
      await gate;
      return request < 3 ? { calls: [{ name: "thread_list" }] } : { say: "went on" };
    });
    const lead = await rig.agent(
      "raiser",
      (request) =>
        request === 1
          ? { calls: [{ name: "thread_create", input: { agent: "raised", message: "m" } }] }
          : { say: "." },
      { members: [worker] },
    );
    const database = await rig.database.pool().connect();
    const sessionId = await rig.talk(lead, "go", { budget: { maxTurns: 4n } });
    await rig.rested(sessionId, StopReason.END_TURN);
    try {
      // Whoever has looked at a budget that is spent waits for this connection before it hears the answer.
      await database.query("select pg_advisory_lock(11)");
      await database.query(LATE_STANDING);
      letGo();
      await eventually(async () => {
        // All databases of the machine's Postgres are seen there.
        const here = "database = (select oid from pg_database where datname = current_database())";
        const { rowCount } = await database.query(
          `select 1 from pg_locks where locktype = 'advisory' and ${here} and objid = 11 and not granted`,
        );
        return rowCount > 0;
      });
      const [thread] = await rig.threadsOf(sessionId);
      await rig.sessions.updateSession({ sessionId, budget: { maxTurns: 20n } });
      await database.query("select pg_advisory_unlock(11)");
      await rig.rested(thread!.id, StopReason.END_TURN);
      expectWhole(await rig.log(thread!.id));
    } finally {
      await database.query("select pg_advisory_unlock_all()");
      await database.query(STANDING);
      database.release();
    }
  });

  it("counts model requests, and says which limit it was", async () => {
    const agent = await rig.agent("turns", (request) =>
      request < 10 ? { calls: [{ name: "thread_list" }] } : { say: "." },
    );
    const sessionId = await rig.talk(agent, "go", { budget: { maxTurns: 3n } });
    const session = await rig.rested(sessionId, StopReason.BUDGET_REACHED);
    expect(session.usage!.modelRequests).toBe(3n);
    expect(payloads(await rig.log(sessionId), "session.status_idle").at(-1)).toMatchObject({
      stop_details: { limit: "max_turns", used: "3", allowed: "3" },
    });
    await rig.sessions.updateSession({ sessionId, budget: { maxTurns: 20n } });
    await rig.rested(sessionId, StopReason.END_TURN);
    expectWhole(await rig.log(sessionId));
  });

  it("ends with the time that it allows; what waited then is answered once there is more", async () => {
    const agent = await rig.agent("clocked", (request) => ({ say: `turn ${request}` }));
    const sessionId = await rig.talk(agent, "go", { budget: { maxWallClockMs: 60_000n } });
    await rig.rested(sessionId, StopReason.END_TURN);
    await rig.sessions.updateSession({ sessionId, budget: { maxWallClockMs: 1n } });
    await rig.say(sessionId, "again");
    await rig.rested(sessionId, StopReason.BUDGET_REACHED);
    await rig.sessions.updateSession({ sessionId, budget: {} });
    await rig.rested(sessionId, StopReason.END_TURN);
    expect(payloads(await rig.log(sessionId), "agent.message")).toHaveLength(2);
  });

  it("by list price ends with the first request whose model has no price", async () => {
    const agent = await rig.agent("unpriced", (request) =>
      request < 5 ? { calls: [{ name: "thread_list" }], usage } : { say: "." },
    );
    const sessionId = await rig.talk(agent, "go", { budget: { maxListCostCents: 100n } });
    const session = await rig.rested(sessionId, StopReason.BUDGET_REACHED);
    expect(session.usage).toMatchObject({ modelRequests: 1n, unpricedRequests: 1n });
  });

  it("belongs to the root: a thread takes none of its own", async () => {
    const child = await rig.agent("poor", () => ({ say: "." }));
    const lead = await rig.agent(
      "rich",
      (request) =>
        request === 1
          ? { calls: [{ name: "thread_create", input: { agent: "poor", message: "m" } }] }
          : { say: "." },
      { members: [child] },
    );
    const sessionId = await rig.talk(lead);
    const [thread] = await eventually(async () => {
      const threads = await rig.threadsOf(sessionId);
      return threads.length === 1 ? threads : undefined;
    });
    await expect(
      rig.sessions.updateSession({ sessionId: thread!.id, budget: { maxTurns: 1n } }),
    ).rejects.toMatchObject({ reason: "INVALID_FIELD" });
  });
});

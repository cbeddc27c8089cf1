/** What an append makes of what its events say: answers to calls, and the state, usage and work of the session. */
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { EventStore } from "../../server/store/events.ts";
import { appendWithin } from "../../server/store/postgres/append-within.ts";
import type { Pool } from "../../server/store/postgres/pool.ts";
import { inTransaction } from "../../server/store/postgres/transaction.ts";
import { type AppendRig, client, event, server, startAppendRig } from "../kit/append-rig.ts";
import { failure } from "../kit/failure.ts";
import type { SessionWorld } from "../kit/session-rig.ts";

let rig: AppendRig;
let pool: Pool;
let world: SessionWorld;
let events: EventStore;

beforeAll(async () => {
  rig = await startAppendRig();
  ({ pool, world, events } = rig);
});

afterAll(() => rig?.stop());

describe("answers", () => {
  test("X3: a call has one result; a client's second is refused, the server's gets the receipt of the first", async () => {
    const sessionId = await world.newSession();
    const call = event("agent.custom_tool_use", { name: "ask" });
    await events.append(server(sessionId, call));
    const result = () => event("user.custom_tool_result", { custom_tool_use_id: call.id });
    const first = result();
    await events.append(client(sessionId, first));
    expect(await failure(events.append(client(sessionId, result())))).toMatchObject({
      reason: "CALL_ALREADY_ANSWERED",
      metadata: { tool_use_id: call.id, event_id: first.id, position: "2" },
    });
    const other = event("acme.noted");
    const answer = await events.append(server(sessionId, result(), other));
    expect(answer.receipts).toEqual([
      { id: first.id, position: 2, duplicate: true },
      { id: other.id, position: 3, duplicate: false },
    ]);
  });

  test("X3: of many results at once, by clients and the server, exactly one is kept", async () => {
    const sessionId = await world.newSession();
    const call = event("agent.tool_use", { name: "bash" });
    await events.append(server(sessionId, call));
    const outcomes = await Promise.allSettled(
      Array.from({ length: 30 }, (_, n) =>
        n % 2 === 0
          ? events.append(server(sessionId, event("agent.tool_result", { tool_use_id: call.id })))
          : events.append(client(sessionId, event("user.tool_result", { tool_use_id: call.id }))),
      ),
    );
    for (const [n, outcome] of outcomes.entries()) {
      if (n % 2 === 0) expect(outcome).toMatchObject({ status: "fulfilled", value: { head: 2 } });
      else if (outcome.status === "rejected") expect(outcome.reason.reason).toBe("CALL_ALREADY_ANSWERED");
    }
    expect((await rig.all(sessionId)).events).toHaveLength(2);
  });

  test("a client's result or confirmation of a call that the log does not have is refused", async () => {
    const sessionId = await world.newSession();
    const failed = await failure(
      events.append(
        client(sessionId, event("user.tool_confirmation", { tool_use_id: "sevt_none", result: "allow" })),
      ),
    );
    expect(failed).toMatchObject({
      reason: "INVALID_FIELD",
      metadata: { field: "events[0].payload.tool_use_id" },
    });
  });

  test("appends in another noun's transaction are seen with its commit, not before, and not after a rollback", async () => {
    const sessionId = await world.newSession();
    await inTransaction(pool, async (transaction) => {
      const { advance } = await appendWithin(transaction, server(sessionId, event("user.message")));
      expect(advance).toEqual({ sessionId, head: 1n, hasWork: true });
      expect((await rig.all(sessionId)).events).toHaveLength(0);
    });
    expect((await rig.all(sessionId)).events).toHaveLength(1);
    const stop = new Error("no");
    const failed = inTransaction(pool, async (transaction) => {
      await appendWithin(transaction, server(sessionId, event()));
      throw stop;
    });
    await expect(failed).rejects.toBe(stop);
    expect((await events.append(client(sessionId, event()))).head).toBe(2);
  });
});

describe("folds", () => {
  test("E3: status, stop reason and running time follow the events, with their last word in a batch", async () => {
    const sessionId = await world.newSession();
    await events.append(server(sessionId, event("session.status_running")));
    expect(await rig.row(sessionId)).toMatchObject({ status: "running", running_since: expect.any(Date) });
    await delay(15);
    const idle = event("session.status_idle", { stop_reason: { type: "end_turn" } });
    await events.append(server(sessionId, idle));
    const rested = await rig.row(sessionId);
    expect(rested).toMatchObject({ status: "idle", stop_reason: "end_turn", running_since: null });
    expect(rested.active_ms).toBeGreaterThanOrEqual(10);
    await events.append(
      server(
        sessionId,
        event("session.status_running"),
        event("session.status_rescheduled"),
        event("session.status_running"),
      ),
    );
    expect(await rig.row(sessionId)).toMatchObject({ status: "running", stop_reason: "end_turn" });
    // A repeat counts nothing twice.
    await events.append(server(sessionId, idle));
    expect((await rig.row(sessionId)).status).toBe("running");
  });

  test("usage is the sum of what the model reported; what is no count is not counted", async () => {
    const sessionId = await world.newSession();
    const end = (usage: object) => event("span.model_request_end", { model_usage: usage });
    const usage = {
      input_tokens: 3,
      output_tokens: 5,
      cache_read_input_tokens: 7,
      cache_creation_input_tokens: 11,
    };
    await events.append(server(sessionId, end(usage), event(), end(usage)));
    await events.append(
      server(sessionId, end({ input_tokens: -4, output_tokens: "9" }), event("span.model_request_end")),
    );
    expect(await rig.row(sessionId)).toMatchObject({
      model_requests: 4,
      input_tokens: 6,
      output_tokens: 10,
      cache_read_input_tokens: 14,
      cache_creation_input_tokens: 22,
    });
  });

  test("what clients ask and what the server answers is work; what a brain writes itself is not", async () => {
    const sessionId = await world.newSession();
    expect((await events.append(client(sessionId, event("acme.noted")))).hasWork).toBe(false);
    expect((await events.append(client(sessionId, event("user.message"), event("acme.noted")))).hasWork).toBe(
      true,
    );
    const since = (await rig.row(sessionId)).work_since;
    await delay(3);
    await events.append(client(sessionId, event("user.interrupt")));
    expect(await rig.row(sessionId)).toMatchObject({ work_position: 4, work_since: since });
    await pool.query("update sessions set rested_position = head where session_id = $1", [sessionId]);
    const brain = await rig.lease(sessionId);
    await pool.query("update sessions set rested_position = head where session_id = $1", [sessionId]);
    const calls = [event("agent.tool_use"), event("agent.tool_use")];
    const own = event("agent.tool_result", { tool_use_id: calls[0]!.id });
    const byBrain = { sessionId, events: [...calls, own], authority: "brain", lease: brain } as const;
    expect((await events.append(byBrain)).hasWork).toBe(false);
    const byServer = server(sessionId, event("agent.tool_result", { tool_use_id: calls[1]!.id }));
    expect((await events.append(byServer)).hasWork).toBe(true);
    const after = await rig.row(sessionId);
    expect(after.work_position).toBe(after.head);
    expect((after.work_since as Date).getTime()).toBeGreaterThan((since as Date).getTime());
  });

  test("L6: processed_at is the time of the marker that first took the event in", async () => {
    const sessionId = await world.newSession();
    const [taken, queued] = [event("user.message"), event("user.message")];
    await events.append(client(sessionId, taken, queued));
    const marker = () => event("brain.inputs_consumed", { event_ids: [taken.id], turn: 1 });
    await events.append(server(sessionId, marker(), event("span.model_request_start")));
    await delay(3);
    await events.append(server(sessionId, marker()));
    const list = (await rig.all(sessionId)).events;
    expect(list.map(({ processedAt }) => processedAt)).toEqual([
      list[2]!.createdAt,
      undefined,
      undefined,
      undefined,
      undefined,
    ]);
  });
});

/** Whoever appends to a log that is tamper-evident, every event is hashed, in each place alike. */
import { describe, expect, test } from "vitest";
import { eventHash, sha256Hex } from "../../kit/chain/event-hash.ts";
import { newId } from "../../kit/ids.ts";
import { createExecutionStore } from "../../server/store/postgres/executions.ts";
import { appendToLog } from "../../server/store/postgres/hand-log.ts";
import { inTransaction } from "../../server/store/postgres/transaction.ts";
import { primaryThreadId } from "../../server/store/tree-events.ts";
import type { SessionReplica } from "../kit/session-rig.ts";
import {
  client,
  event,
  expectHashed,
  exported,
  first,
  harness,
  idle,
  lease,
  newSession,
  plain,
  plainAdmin,
  query,
  rowsOf,
  say,
  second,
  signedAt,
  useTamperRig,
  verified,
  world,
} from "../kit/tamper-rig.ts";
import { trickyPayloads } from "../kit/tricky-payloads.ts";

useTamperRig();

describe("hashes", () => {
  test("whoever appends, every event has the hash of itself and all before it, as it is documented", async () => {
    const initialEvents = [say("one"), { type: "acme.noted", payload: '{"b":1, "a":2}' }];
    const { session } = await client.createSession({ agentId: world.agentId, initialEvents });
    const sessionId = session!.id;
    expect(session!.tamperEvident).toBe(true);
    await client.emitEvents({
      sessionId,
      events: [{ type: "acme.noted", threadId: primaryThreadId(sessionId) }],
    });
    const held = await lease(sessionId);
    const use = event("agent.tool_use", { name: "bash", input: {} }, '{"blocks":[ 1.0 ]}');
    await harness.emitEvents({ sessionId, lease: held, events: [event("session.status_running"), use] });
    await finishCall(sessionId, use.id);
    await inTransaction(first.pool, (transaction) =>
      appendToLog(transaction, sessionId, { type: "hand.lost", payload: '{"hand_id":"hand_1"}' }),
    );
    await client.updateSession({ sessionId, title: "another" });
    await harness.emitEvents({ sessionId, lease: held, events: [idle()] });
    await client.archiveSession({ sessionId, interrupt: true });
    const rows = await expectHashed(sessionId);
    expect(rows.map(({ type }) => type)).toEqual([
      "user.message",
      "acme.noted",
      "acme.noted",
      "session.status_running",
      "agent.tool_use",
      "agent.tool_result",
      "hand.lost",
      "session.updated",
      "session.status_idle",
      "session.status_terminated",
    ]);
    await signedAt(sessionId, 10);
    expect(await verified(sessionId)).toMatchObject({
      problems: [],
      events: 10,
      checkpoints: 2,
      signedUpTo: 10,
    });
  });

  /** A call's result as the server stores it: one statement. */
  async function finishCall(sessionId: string, executionId: string): Promise<void> {
    const executionKey = `${sessionId}/${executionId}`;
    await query(
      `insert into executions (execution_key, workspace_id, session_id, execution_id, name, input, input_hash, timeout_ms,
         answers_tool_use) values ($1, $2, $3, $4, 'bash', '{}', '\\x00', 1000, true)`,
      [executionKey, world.workspaceId, sessionId, executionId],
    );
    const store = createExecutionStore(first.pool);
    const execution = (await store.find(executionKey))!;
    const payload = JSON.stringify({ tool_use_id: executionId, content: [] });
    await store.finish({ execution, result: "{}", event: { type: "agent.tool_result", payload } });
  }

  test("the database and the kit hash alike, whatever the fields hold", async () => {
    const texts = ["", "a", "ä:1,\n", "12:x,", "😀\u0001", "'\\\""];
    for (const [index, text] of texts.entries()) {
      for (const internal of [undefined, text]) {
        const previous = sha256Hex(`${index}`);
        const createdAt = new Date(index === 0 ? -1 : 1_900_000_000_123 + index);
        const event = { id: `sevt_${text}`, position: 10 ** index, type: text, createdAt, threadId: text };
        const [row] = await query<{ hash: string }>(
          "select encode(event_hash($1, $2, $3, $4, $5, $6, $7, $8, $9), 'hex') as hash",
          [
            Buffer.from(previous, "hex"),
            text,
            event.position,
            event.id,
            text,
            createdAt,
            text,
            text,
            internal ?? null,
          ],
        );
        const internalSha256 = internal === undefined ? undefined : sha256Hex(internal);
        const hashed = { ...event, payloadSha256: sha256Hex(text), internalSha256 };
        expect(row!.hash).toBe(eventHash(previous, text, hashed));
      }
    }
  });

  test("texts of every kind are hashed byte for byte", async () => {
    const sessionId = await newSession();
    const payloads = Object.values(trickyPayloads);
    await client.emitEvents({
      sessionId,
      events: payloads.map((payload) => ({ type: "acme.noted", payload })),
    });
    for (const payload of payloads)
      await client.emitEvents({ sessionId, events: [{ type: "acme.noted", payload }] });
    await expectHashed(sessionId);
    expect((await verified(sessionId)).problems).toEqual([]);
  });

  test("a workspace's choice counts for sessions that are made from then on; the others have no hashes, ever", async () => {
    const { session } = await plainAdmin.createSession({ agentId: plain.agentId, initialEvents: [say("a")] });
    const before = session!.id;
    await query("update workspaces set tamper_evident = true where workspace_id = $1", [plain.workspaceId]);
    const later = (await plainAdmin.createSession({ agentId: plain.agentId })).session!;
    await query("update workspaces set tamper_evident = false where workspace_id = $1", [plain.workspaceId]);
    await plainAdmin.emitEvents({ sessionId: before, events: [say("b"), say("c")] });
    await plainAdmin.emitEvents({ sessionId: later.id, events: [say("b"), say("c")] });
    expect([session!.tamperEvident, later.tamperEvident]).toEqual([false, true]);
    expect((await rowsOf(before)).map(({ hash }) => hash)).toEqual([null, null, null]);
    await expectHashed(later.id);
    const text = (await exported(before, plainAdmin)).toString();
    expect(text).not.toMatch(/hash|server_key|checkpoint/);
  });

  test("L1: with many writers on two replicas, in sessions with hashes and without, every chain holds", async () => {
    const hashed = await Promise.all(Array.from({ length: 5 }, newSession));
    const unhashed = await Promise.all(Array.from({ length: 5 }, () => plain.newSession()));
    const all = [...hashed, ...unhashed];
    const write = async (replica: SessionReplica, writer: number) => {
      for (let n = 0; n < 20; n++) {
        const sessionId = all[(writer * 7 + n * 3) % all.length]!;
        const events = Array.from({ length: 1 + ((writer + n) % 4) }, (_, at) => ({
          id: newId("event"),
          type: at === 2 ? "session.status_idle" : "acme.noted",
          threadId: "",
          payload: JSON.stringify({ writer, n, at }),
          internal: n % 3 === 0 ? `{"n":${n}}` : undefined,
        }));
        await replica.events.append({ sessionId, events, authority: "server" });
      }
    };
    await Promise.all(Array.from({ length: 20 }, (_, writer) => write(writer % 2 ? first : second, writer)));
    for (const sessionId of hashed) expect((await expectHashed(sessionId)).length).toBeGreaterThan(20);
    for (const sessionId of unhashed) {
      const rows = await rowsOf(sessionId);
      expect(rows.length).toBeGreaterThan(20);
      expect(rows.every(({ hash }) => hash === null)).toBe(true);
    }
    const signed = await query("select 1 from checkpoints where session_id = any($1)", [unhashed]);
    expect(signed).toEqual([]);
  });

  test("a repeated append adds no hash, and refused ones change none", async () => {
    const sessionId = await newSession();
    const events = [event("acme.noted"), event("acme.noted")];
    await client.emitEvents({ sessionId, events });
    await client.emitEvents({ sessionId, events: [...events, event("acme.noted")] });
    await expect(
      client.emitEvents({ sessionId, events: [event("acme.noted")], expectedPosition: 1n }),
    ).rejects.toMatchObject({ reason: "POSITION_MISMATCH" });
    expect(await expectHashed(sessionId)).toHaveLength(3);
  });
});

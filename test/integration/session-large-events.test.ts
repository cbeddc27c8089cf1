import { createHash, randomBytes } from "node:crypto";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import { EventText } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { emitLarge } from "../kit/emit-large.ts";
import { failure } from "../kit/failure.ts";
import type { TestDatabase } from "../kit/postgres.ts";
import {
  bytesOf,
  event,
  eventsOf,
  type SessionCallers,
  type Sessions,
  say,
  startSessionCallers,
} from "../kit/session-callers.ts";
import type { SessionWorld } from "../kit/session-rig.ts";

let callers: SessionCallers;
let database: TestDatabase;
let world: SessionWorld;
let client: Sessions;
let harness: Sessions;
let stranger: Sessions;

beforeAll(async () => {
  callers = await startSessionCallers();
  ({ database, world, client, harness, stranger } = callers);
});

afterAll(() => callers?.stop());

describe("large events", () => {
  test("an event of 32 MiB is appended in pieces, told by its size and digest, and read byte for byte from any offset", async () => {
    const sessionId = await world.newSession();
    const payload = JSON.stringify({
      a: randomBytes(12 * 1024 * 1024).toString("base64"),
      b: "ä😀".repeat(1024 * 1024),
    });
    const padded = `${payload}${" ".repeat(32 * 1024 * 1024 - Buffer.byteLength(payload))}`;
    const { receipts, head } = await emitLarge(client, sessionId, padded);
    expect(head).toBe(2n);
    const eventId = receipts[1]!.id;
    const { events } = await client.getEvents({ sessionId });
    expect(events[1]).toMatchObject({
      payload: "",
      payloadOmitted: {
        sizeBytes: BigInt(32 * 1024 * 1024),
        sha256: createHash("sha256").update(padded).digest("hex"),
      },
    });
    const whole = await bytesOf(client.readPayload({ sessionId, eventId }));
    expect(whole.equals(Buffer.from(padded))).toBe(true);
    const offset = 20 * 1024 * 1024 + 7;
    const rest = await bytesOf(client.readPayload({ sessionId, eventId, offsetBytes: BigInt(offset) }));
    expect(rest.equals(Buffer.from(padded).subarray(offset))).toBe(true);
    // A repeat is the same request, in whatever pieces it comes.
    const fork = await client.forkSession({ sessionId });
    const copied = await bytesOf(client.readPayload({ sessionId: fork.session!.id, eventId }));
    expect(copied.equals(whole)).toBe(true);
  });

  test("a slice of many events that are left out for their size ends before their digests take long, and goes on", async () => {
    const sessionId = await world.newSession();
    await database.pool().query(
      `insert into events (session_id, position, event_id, type, payload)
         select $1, n, 'sevt_' || n, 'acme.noted', '{"a":"' || repeat('x', 8 * 1024 * 1024) || '"}' from generate_series(1, 40) n`,
      [sessionId],
    );
    await database.pool().query("update sessions set head = 40 where session_id = $1", [sessionId]);
    const first = await client.getEvents({ sessionId });
    expect(first).toMatchObject({ hasMore: true, head: 40n });
    expect(first.events.length).toBeLessThanOrEqual(16);
    expect(await eventsOf(callers, sessionId)).toHaveLength(40);
  });

  test("a brain's large internal comes with its lease; a fenced one is refused", async () => {
    const sessionId = await world.newSession();
    await client.emitEvents({ sessionId, events: [say("go")] });
    const held = await callers.lease(sessionId);
    const internal = JSON.stringify({ blocks: "x".repeat(4 * 1024 * 1024) });
    const { receipts } = await emitLarge(harness, sessionId, "{}", { lease: held, internal });
    const read = harness.readPayload({
      sessionId,
      eventId: receipts[1]!.id,
      text: EventText.INTERNAL,
      lease: held,
    });
    expect((await bytesOf(read)).toString()).toBe(internal);
    const stale = { leaseId: newId("lease"), epoch: held.epoch };
    expect(await failure(emitLarge(harness, sessionId, "{}", { lease: stale, internal }))).toMatchObject({
      reason: "LEASE_FENCED",
    });
    expect(await failure(emitLarge(client, sessionId, "{}", { internal }))).toMatchObject({
      reason: "INVALID_FIELD",
    });
  });

  test("too much, not UTF-8, not JSON, a wrong order and other workspaces are refused, and nothing is appended", async () => {
    const sessionId = await world.newSession();
    const big = JSON.stringify({ a: "x".repeat(32 * 1024 * 1024) });
    expect(await failure(emitLarge(client, sessionId, big))).toMatchObject({ reason: "MESSAGE_TOO_LARGE" });
    expect(await failure(emitLarge(client, sessionId, '{"a":'))).toMatchObject({ reason: "INVALID_FIELD" });
    expect(await failure(emitLarge(stranger, sessionId, "{}"))).toMatchObject({ reason: "NOT_FOUND" });
    const piece = { case: "piece" as const, value: { eventIndex: 0, chunk: Buffer.from([0xff]) } };
    const request = { case: "request" as const, value: { sessionId, events: [{ type: "acme.noted" }] } };
    const early = client.emitLargeEvents();
    await early.send({ kind: piece });
    expect(await failure(early.end())).toMatchObject({
      reason: "INVALID_FIELD",
      metadata: { field: "request" },
    });
    const broken = client.emitLargeEvents();
    await broken.send({ kind: request });
    await broken.send({ kind: piece });
    await broken.send({ kind: { case: "end", value: {} } });
    expect(await failure(broken.end())).toMatchObject({
      reason: "INVALID_FIELD",
      metadata: { field: "events[0].payload" },
    });
    const beyond = client.emitLargeEvents();
    await beyond.send({ kind: request });
    await beyond.send({ kind: { case: "piece", value: { eventIndex: 1, chunk: Buffer.from("{}") } } });
    expect(await failure(beyond.end())).toMatchObject({ reason: "INVALID_FIELD" });
    expect((await client.getSession({ sessionId })).session!.head).toBe(0n);
  });
});

test("a call that is given up while texts are under way appends nothing, whatever was sent by then (L2)", async () => {
  const sessionId = await world.newSession();
  const all = {
    case: "request" as const,
    value: { sessionId, events: [event("acme.noted"), event("acme.noted")] },
  };
  // Its payload would be whole by now, and could pass for all that was to come.
  const payload = {
    case: "piece" as const,
    value: { eventIndex: 0, text: EventText.PAYLOAD, chunk: Buffer.from("{}") },
  };
  const empty = { ...all, value: { sessionId, events: [{ type: "acme.noted", id: newId("event") }] } };
  for (let round = 0; round < 50; round += 1) {
    for (const messages of [[all], [empty, payload]]) {
      const call = client.emitLargeEvents();
      for (const kind of messages) await call.send({ kind });
      call.cancel();
      expect(await failure(call.end())).toBeDefined();
    }
  }
  // Whole calls after it show that those were dealt with.
  await emitLarge(client, sessionId, "{}");
  expect((await client.getSession({ sessionId })).session!.head).toBe(2n);
  const unended = client.emitLargeEvents();
  await unended.send({ kind: all });
  expect(await failure(unended.end())).toMatchObject({ reason: "INVALID_FIELD", metadata: { field: "end" } });
});

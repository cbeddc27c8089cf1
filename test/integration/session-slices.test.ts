import { createHash } from "node:crypto";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import { EventOrder, EventText } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { failure } from "../kit/failure.ts";
import type { TestDatabase } from "../kit/postgres.ts";
import {
  brained,
  collect,
  eventsOf,
  type SessionCallers,
  type Sessions,
  say,
  startSessionCallers,
  talk,
} from "../kit/session-callers.ts";
import type { SessionWorld } from "../kit/session-rig.ts";

let callers: SessionCallers;
let database: TestDatabase;
let world: SessionWorld;
let client: Sessions;
let harness: Sessions;

beforeAll(async () => {
  callers = await startSessionCallers();
  ({ database, world, client, harness } = callers);
});

afterAll(() => callers?.stop());

describe("slices", () => {
  test("both directions, by type, with limits; the n before an event; from where one last read", async () => {
    const sessionId = await world.newSession();
    for (let n = 1; n <= 12; n++) {
      await client.emitEvents({ sessionId, events: [{ type: n % 3 === 0 ? "acme.third" : "acme.one" }] });
    }
    const positions = async (request: object) => {
      const { events, hasMore, head } = await client.getEvents({ sessionId, ...request });
      expect(head).toBe(12n);
      return [events.map(({ position }) => Number(position)).join(" "), hasMore];
    };
    expect(await positions({ limit: 3 })).toEqual(["1 2 3", true]);
    expect(await positions({ afterPosition: 9n, limit: 3 })).toEqual(["10 11 12", false]);
    expect(await positions({ afterPosition: 12n })).toEqual(["", false]);
    const descending = { order: EventOrder.DESCENDING };
    expect(await positions({ beforePosition: 7n, limit: 3, ...descending })).toEqual(["6 5 4", true]);
    expect(await positions({ beforePosition: 3n, limit: 3, ...descending })).toEqual(["2 1", false]);
    expect(await positions({ types: ["acme.third"], limit: 2 })).toEqual(["3 6", true]);
    expect(await positions({ types: ["acme.third", "acme.no"], limit: 4 })).toEqual(["3 6 9 12", false]);
    expect(await positions({ afterPosition: 3n, beforePosition: 6n })).toEqual(["4 5", false]);
    expect(await failure(client.getEvents({ sessionId, afterPosition: 13n }))).toMatchObject({
      reason: "RESYNC",
      metadata: { head: "12" },
    });
  });

  test("what is no part of the log is not read; types and positions that nothing can have are answered", async () => {
    const sessionId = await world.newSession();
    await client.emitEvents({ sessionId, events: [say("1"), say("2")] });
    // As somebody with the database's password might: beyond the head, where no append puts anything.
    await database.pool().query(
      `insert into events (session_id, position, event_id, type, thread_id, payload)
        values ($1, 3, 'sevt_forged', 'agent.message', '', '{}')`,
      [sessionId],
    );
    const positions = async (request: object) =>
      (await client.getEvents({ sessionId, ...request })).events.map(({ position }) => Number(position));
    expect(await positions({})).toEqual([1, 2]);
    expect(await positions({ order: EventOrder.DESCENDING })).toEqual([2, 1]);
    expect((await client.getEvents({ sessionId })).head).toBe(2n);
    for (const beforePosition of [2n ** 63n - 1n, 2n ** 53n]) {
      expect(await positions({ beforePosition, order: EventOrder.DESCENDING })).toEqual([2, 1]);
    }
    expect(await failure(client.getEvents({ sessionId, types: ["a\0"] }))).toMatchObject({
      reason: "INVALID_FIELD",
      metadata: { field: "types[0]" },
    });
    expect(await failure(client.getEvents({ sessionId, untilTypes: ["acme.x", "\0"] }))).toMatchObject({
      reason: "INVALID_FIELD",
      metadata: { field: "until_types[1]" },
    });
    const watch = client.watchEvents({ sessionId, types: ["\0"], afterPosition: -1n });
    expect(await failure(collect(watch))).toMatchObject({ reason: "INVALID_FIELD" });
  });

  test("bytes are limited, but one event is always given", async () => {
    const sessionId = await world.newSession();
    const payload = JSON.stringify({ a: "x".repeat(1000) });
    await client.emitEvents({
      sessionId,
      events: Array.from({ length: 5 }, () => ({ type: "acme.a", payload })),
    });
    const read = async (maxBytes: number) => {
      const { events, hasMore } = await client.getEvents({ sessionId, maxBytes });
      return [events.length, hasMore];
    };
    expect(await read(10)).toEqual([1, true]);
    expect(await read(2 * payload.length)).toEqual([2, true]);
    expect(await read(5 * payload.length)).toEqual([5, false]);
  });

  test("a large text is described instead, and streamed on request from any byte", async () => {
    const { sessionId, lease: proof } = await brained(callers);
    const payload = `{"a":"${"é".repeat(900_000)}"}`;
    const internal = `{"b":"${"z".repeat(700_000)}"}`;
    await harness.emitEvents({ sessionId, lease: proof, events: [{ type: "agent.big", payload, internal }] });
    const bytes = Buffer.from(payload);
    const { events } = await harness.getEvents({
      sessionId,
      lease: proof,
      afterPosition: 1n,
      inlineLimitBytes: 500_000,
    });
    const sha256 = createHash("sha256").update(bytes).digest("hex");
    expect(events[0]).toMatchObject({
      payload: "",
      payloadOmitted: { sizeBytes: BigInt(bytes.length), sha256 },
      internal: "",
      internalOmitted: { sizeBytes: BigInt(internal.length) },
    });
    const eventId = events[0]!.id;
    const read = async (request: object) =>
      Buffer.concat(
        (await collect(harness.readPayload({ sessionId, eventId, ...request }))).map(({ chunk }) => chunk),
      );
    expect((await read({})).equals(bytes)).toBe(true);
    expect((await read({ offsetBytes: 1_500_001n })).equals(bytes.subarray(1_500_001))).toBe(true);
    expect(await read({ offsetBytes: BigInt(bytes.length) })).toHaveLength(0);
    expect((await read({ text: EventText.INTERNAL, lease: proof })).toString()).toBe(internal);
    expect((await failure(read({ offsetBytes: BigInt(bytes.length + 1) }))).reason).toBe("RESYNC");
    expect((await failure(read({ text: EventText.INTERNAL }))).reason).toBe("LEASE_FENCED");
    const none = collect(client.readPayload({ sessionId, eventId: newId("event") }));
    expect((await failure(none)).reason).toBe("NOT_FOUND");
  });

  test("internal is shown to the holder of the newest lease alone", async () => {
    const { sessionId, lease: proof } = await brained(callers);
    await harness.emitEvents({
      sessionId,
      lease: proof,
      events: [{ type: "agent.message", internal: '"secret"' }],
    });
    const asClient = await client.getEvents({ sessionId });
    expect(JSON.stringify(asClient.events.map(({ internal }) => internal))).not.toContain("secret");
    expect((await failure(client.getEvents({ sessionId, lease: proof }))).reason).toBe("ROLE_NOT_ALLOWED");
    const old = { ...proof, epoch: proof.epoch + 1n };
    expect((await failure(harness.getEvents({ sessionId, lease: old }))).reason).toBe("LEASE_FENCED");
    for await (const { kind } of client.watchEvents({ sessionId, afterPosition: 1n })) {
      expect(kind.case === "event" && kind.value.internal).toBe("");
      break;
    }
  });
});

describe("cursors", () => {
  test("from an event on, the n before an event, and back to the call before it are one call each", async () => {
    const { sessionId, use } = await talk(callers);
    const all = await eventsOf(callers, sessionId);
    const positions = async (request: object) =>
      (await client.getEvents({ sessionId, ...request })).events.map(({ position }) => Number(position));
    expect(await positions({ afterEventId: all[6]!.id })).toEqual([8, 9, 10]);
    expect(await positions({ beforeEventId: all[7]!.id, limit: 2, order: 2 })).toEqual([7, 6]);
    const calls = ["agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use"];
    expect(await positions({ beforeEventId: all[9]!.id, untilTypes: calls, order: 2 })).toEqual([9, 8, 7, 6]);
    expect(all[5]!.id).toBe(use.id);
    // Without one it goes to the log's end; forwards it ends behind it; only what fits the types is given.
    expect(await positions({ beforeEventId: all[5]!.id, untilTypes: calls, order: 2 })).toEqual([
      5, 4, 3, 2, 1,
    ]);
    expect(await positions({ afterPosition: 1n, untilTypes: calls })).toEqual([2, 3, 4, 5, 6]);
    expect(await positions({ afterPosition: 1n, untilTypes: calls, types: ["agent.tool_use"] })).toEqual([6]);
    expect(
      await positions({ afterPosition: 4n, afterEventId: all[6]!.id, beforeEventId: all[8]!.id }),
    ).toEqual([8]);
  });

  test("the end of a slice at a type is not what limits cut", async () => {
    const { sessionId } = await talk(callers);
    const slice = await client.getEvents({ sessionId, untilTypes: ["agent.tool_use"], order: 2 });
    expect(slice).toMatchObject({ hasMore: false, head: 10n });
    const cut = await client.getEvents({ sessionId, untilTypes: ["agent.tool_use"], order: 2, limit: 2 });
    expect(cut.hasMore).toBe(true);
  });

  test("an event that the session does not have is not found", async () => {
    const { sessionId } = await talk(callers);
    for (const id of [newId("event"), "sevt_x", "nothing"]) {
      expect(await failure(client.getEvents({ sessionId, beforeEventId: id }))).toMatchObject({
        reason: "NOT_FOUND",
      });
    }
  });
});

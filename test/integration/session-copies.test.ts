import { createHash, randomBytes } from "node:crypto";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { isTendonError, type TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { SessionStatus, StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { EventText, type SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { Principal } from "../../server/ports/principal.ts";
import { createLeaseStore } from "../../server/store/postgres/leases.ts";
import { createVaultStore } from "../../server/store/postgres/vaults.ts";
import { eventually } from "../kit/eventually.ts";
import { failure } from "../kit/failure.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { createWorld, type SessionReplica, type SessionWorld, startReplica } from "../kit/session-rig.ts";
import { trickyPayloads } from "../kit/tricky-payloads.ts";

type Sessions = Client<typeof SessionService>;

let database: TestDatabase;
let world: SessionWorld;
let other: SessionWorld;
let replica: SessionReplica;
let client: Sessions;
let admin: Sessions;
let harness: Sessions;
let stranger: Sessions;

const clientOf = (workspaceId: string): Principal => ({ kind: "client", keyId: "apikey_1", workspaceId });

beforeAll(async () => {
  database = await createTestDatabase();
  world = await createWorld(database.pool());
  other = await createWorld(database.pool());
  replica = await startReplica({ url: database.url, world });
  client = replica.client(clientOf(world.workspaceId));
  stranger = replica.client(clientOf(other.workspaceId));
  admin = replica.client({ kind: "admin", keyId: "apikey_3", workspaceId: world.workspaceId });
  harness = replica.client({ kind: "harness", keyId: "apikey_2", workspaceId: undefined });
});

afterAll(async () => {
  await replica?.stop();
  await database?.drop();
});

const say = (text: string) => ({
  type: "user.message",
  payload: JSON.stringify({ content: [{ type: "text", text }] }),
});
const event = (type: string, payload: object = {}, internal = "") => ({
  id: newId("event"),
  type,
  payload: JSON.stringify(payload),
  internal,
});

async function lease(sessionId: string) {
  const taken = await createLeaseStore(replica.pool).acquire({
    sessionId,
    leaseId: newId("lease"),
    harnessId: newId("harness"),
    replicaId: replica.replicaId,
    ttlMs: 30_000,
  });
  return { leaseId: taken!.leaseId, epoch: taken!.epoch };
}

/** What a turn with one call leaves: a message, a call with its result, an answer, at rest. Positions are in order. */
async function talk() {
  const sessionId = await world.newSession();
  const message = (await client.emitEvents({ sessionId, events: [say("go")] })).receipts[0]!;
  const held = await lease(sessionId);
  const use = event("agent.tool_use", { name: "bash", input: { b: 1, a: 2 } }, '{"blocks":[ 1.0 ]}');
  const events = [
    event("session.status_running"),
    event("brain.inputs_consumed", { event_ids: [message.id], turn: 1 }),
    event("span.model_request_start"),
    event("span.model_request_end", { model_usage: { input_tokens: 10, output_tokens: 5 } }),
    use,
    event("hand.provisioned", { hand_id: "hand_1", slot: "" }),
    event("agent.tool_result", { tool_use_id: use.id, content: [] }),
    event("agent.message", { content: [{ type: "text", text: "done" }] }, '{"secret":"thought"}'),
    event("session.status_idle", { stop_reason: { type: "end_turn" } }),
  ];
  await harness.emitEvents({ sessionId, lease: held, events });
  await createLeaseStore(replica.pool).release({
    leaseId: held.leaseId,
    restedPosition: 10n,
    retryAfterMs: undefined,
  });
  return { sessionId, use };
}

async function newVault(): Promise<string> {
  const id = newId("vault");
  await createVaultStore(database.pool()).create({
    id,
    workspaceId: world.workspaceId,
    displayName: "a vault",
    metadata: {},
    request: { requestId: "", contentHash: new Uint8Array(32) },
    audit: { actor: "test", action: "vault.create", subject: id },
  });
  return id;
}

async function eventsOf(sessionId: string): Promise<Event[]> {
  const found: Event[] = [];
  for (;;) {
    const slice = await admin.getEvents({ sessionId, afterPosition: BigInt(found.length), limit: 1000 });
    found.push(...slice.events);
    if (!slice.hasMore) return found;
  }
}

/** Everything that the log's rows hold. */
async function rowsOf(sessionId: string, upTo = 1e9): Promise<unknown[]> {
  const { rows } = await database.pool().query(
    `select position, event_id, type, thread_id, payload, internal, answers, created_at
       from events where session_id = $1 and position <= $2 order by position`,
    [sessionId, upTo],
  );
  return rows;
}

async function collect(chunks: AsyncIterable<{ chunk: Uint8Array }>): Promise<Buffer> {
  const list: Uint8Array[] = [];
  for await (const { chunk } of chunks) list.push(chunk);
  return Buffer.concat(list);
}

const exported = (sessionId: string, withInternal = true) =>
  collect(admin.exportSession({ sessionId, withInternal }));

async function importAs(who: Sessions, bytes: Buffer, start: object = {}, chunkBytes = 256 * 1024) {
  const call = who.importSession();
  const sending = (async () => {
    await call.send({ kind: { case: "start", value: start } });
    for (let at = 0; at < bytes.length; at += chunkBytes) {
      await call.send({ kind: { case: "chunk", value: bytes.subarray(at, at + chunkBytes) } });
    }
  })();
  // A refused import ends before everything is sent.
  await sending.catch(() => {});
  return (await call.end()).session!;
}

/** The log with its digest made right again. */
function withEnd(lines: string[]): Buffer {
  const body = lines.map((line) => `${line}\n`).join("");
  const sha256 = createHash("sha256").update(body).digest("hex");
  return Buffer.from(`${body}${JSON.stringify({ end: { events: lines.length - 1, sha256 } })}\n`);
}

const linesOf = (bytes: Buffer) => bytes.toString().trimEnd().split("\n");

async function leftovers(): Promise<number> {
  const { rows } = await database
    .pool()
    .query<{ n: number }>(
      "select (select count(*) from unfinished_logs) + (select count(*) from events e where not exists (select 1 from sessions s where s.session_id = e.session_id)) as n",
    );
  return rows[0]!.n;
}

describe("forks", () => {
  test("a fork at the end of a turn has the same events byte for byte, what it is and a hand that is lost (H2), and rests", async () => {
    const { sessionId } = await talk();
    const { session } = await client.forkSession({ sessionId, title: "second try" });
    expect(session).toMatchObject({
      title: "second try",
      forkedFromSessionId: sessionId,
      forkedFromPosition: 10n,
      head: 12n,
      status: SessionStatus.IDLE,
      stopReason: StopReason.UNSPECIFIED,
      usage: { inputTokens: 0n, modelRequests: 0n, activeMs: 0n },
      vaultIds: [],
    });
    expect(await rowsOf(session!.id, 10)).toEqual(await rowsOf(sessionId));
    const added = (await eventsOf(session!.id)).slice(10);
    expect(added.map(({ type, payload }) => [type, JSON.parse(payload)])).toEqual([
      ["session.forked", { origin_session_id: sessionId, position: 10 }],
      ["hand.lost", expect.objectContaining({ hand_id: "hand_1", slot: "" })],
    ]);
    expect(await client.wakeSession({ sessionId: session!.id })).toMatchObject({ hasWork: false });
    const [message] = await eventsOf(session!.id);
    expect(message!.processedAt).toBeDefined();
    expect((await client.getSession({ sessionId })).session).toMatchObject({ head: 10n });
  });

  test("a fork in the middle of a call ends the call with an error (X3), and the turn goes on as work of a new brain", async () => {
    const { sessionId, use } = await talk();
    const { session } = await client.forkSession({ sessionId, position: 7n });
    const added = (await eventsOf(session!.id)).slice(7);
    expect(added.map(({ type }) => type)).toEqual(["session.forked", "agent.tool_result", "hand.lost"]);
    expect(JSON.parse(added[1]!.payload)).toEqual({
      tool_use_id: use.id,
      content: [{ type: "text", text: "forked before it ended" }],
      is_error: true,
    });
    expect(session!.status).toBe(SessionStatus.IDLE);
    expect(await client.wakeSession({ sessionId: session!.id })).toMatchObject({ hasWork: true });
    // It has no lease, and the origin's is not its own.
    const { rows } = await database
      .pool()
      .query("select lease_id, lease_epoch from sessions where session_id = $1", [session!.id]);
    expect(rows).toEqual([{ lease_id: null, lease_epoch: 0 }]);
  });

  test("a fork behind a message that nobody has taken in has work; before everything it is empty but for its own event", async () => {
    const { sessionId } = await talk();
    const atMessage = await client.forkSession({ sessionId, position: 1n });
    expect(await client.wakeSession({ sessionId: atMessage.session!.id })).toMatchObject({ hasWork: true });
    const [message] = await eventsOf(atMessage.session!.id);
    expect(message!.processedAt).toBeUndefined();
  });

  test("budget and vaults are the forker's; metadata, agent and environment the origin's", async () => {
    const [first, second] = await Promise.all([newVault(), newVault()]);
    const made = await client.createSession({
      agentId: world.agentId,
      title: "t",
      metadata: { a: "1" },
      vaultIds: [first],
      budget: { maxTokens: 5n },
    });
    const sessionId = made.session!.id;
    const { session } = await client.forkSession({
      sessionId,
      vaultIds: [second],
      budget: { maxTurns: 3n },
    });
    expect(session).toMatchObject({
      title: "t",
      metadata: { a: "1" },
      vaultIds: [second],
      budget: { maxTurns: 3n, maxTokens: 0n },
    });
    expect(session!.agent).toEqual(made.session!.agent);
    expect(session!.environmentId).toBe(made.session!.environmentId);
  });

  test("a repeat with the same request id returns the first fork, also at once; other content is refused", async () => {
    const { sessionId } = await talk();
    const request = { requestId: newId("request"), sessionId };
    const forks = await Promise.all(Array.from({ length: 5 }, () => client.forkSession(request)));
    await client.emitEvents({ sessionId, events: [say("later")] });
    forks.push(await client.forkSession(request));
    expect(new Set(forks.map(({ session }) => session!.id)).size).toBe(1);
    expect(await failure(client.forkSession({ ...request, title: "x" }))).toMatchObject({
      reason: "REQUEST_ID_REUSED",
    });
    expect(await leftovers()).toBe(0);
  });

  test("archived sessions can be forked, and the fork goes on; so can forks", async () => {
    const { sessionId } = await talk();
    await client.archiveSession({ sessionId });
    const { session } = await client.forkSession({ sessionId });
    expect(session!.status).toBe(SessionStatus.IDLE);
    await client.emitEvents({ sessionId: session!.id, events: [say("again")] });
    const again = await client.forkSession({ sessionId: session!.id });
    const types = (await eventsOf(again.session!.id)).map(({ type }) => type);
    expect(types.filter((type) => type === "session.forked")).toHaveLength(2);
    expect(types.filter((type) => type === "hand.lost")).toHaveLength(1);
  });

  test("positions behind the head, other workspaces' sessions and sessions that are gone are refused", async () => {
    const { sessionId } = await talk();
    expect(await failure(client.forkSession({ sessionId, position: 11n }))).toMatchObject({
      reason: "RESYNC",
      metadata: { field: "position", head: "10" },
    });
    expect(await failure(stranger.forkSession({ sessionId }))).toMatchObject({ reason: "NOT_FOUND" });
    await client.deleteSession({ sessionId });
    expect(await failure(client.forkSession({ sessionId }))).toMatchObject({ reason: "NOT_FOUND" });
  });

  test("an origin that is deleted meanwhile gives a whole fork or none", async () => {
    for (let round = 0; round < 5; round++) {
      const sessionId = await world.newSession();
      await database.pool().query(
        `insert into events (session_id, position, event_id, type, payload)
           select $1, n, 'sevt_' || n, 'acme.noted', '{}' from generate_series(1, 9000) n`,
        [sessionId],
      );
      await database.pool().query("update sessions set head = 9000 where session_id = $1", [sessionId]);
      const forking = client.forkSession({ sessionId }).catch((error: unknown) => error as TendonError);
      await Promise.all([forking, client.deleteSession({ sessionId })]);
      const fork = await forking;
      if (isTendonError(fork)) expect(fork.reason).toBe("NOT_FOUND");
      else expect(await rowsOf(fork.session!.id)).toHaveLength(9001);
    }
    expect(await leftovers()).toBe(0);
  }, 60_000);

  test("100,000 events fork within 30 s and are seen all at once", async () => {
    const sessionId = await world.newSession();
    await database.pool().query(
      `insert into events (session_id, position, event_id, type, payload)
         select $1, n, 'sevt_' || n, 'acme.noted', '{"n":' || n || '}' from generate_series(1, 100000) n`,
      [sessionId],
    );
    await database.pool().query("update sessions set head = 100000 where session_id = $1", [sessionId]);
    const begun = performance.now();
    const { session } = await client.forkSession({ sessionId }, { deadlineMs: 30_000 });
    expect(performance.now() - begun).toBeLessThan(30_000);
    expect(session!.head).toBe(100_001n);
    const { rows } = await database
      .pool()
      .query<{ n: number; top: number }>(
        "select count(*) as n, max(position) as top from events where session_id = $1",
        [session!.id],
      );
    expect(rows).toEqual([{ n: 100_001, top: 100_001 }]);
    expect(await leftovers()).toBe(0);
  }, 60_000);
});

describe("export and import", () => {
  test.each(Object.entries(trickyPayloads))(
    "%s comes back byte for byte, through fork, export and import",
    async (_, payload) => {
      const sessionId = await world.newSession();
      await client.emitEvents({ sessionId, events: [{ type: "acme.noted", payload }] });
      const fork = (await client.forkSession({ sessionId })).session!;
      const imported = await importAs(client, await collect(client.exportSession({ sessionId })));
      for (const id of [fork.id, imported.id]) {
        expect(await rowsOf(id, 1)).toEqual(await rowsOf(sessionId, 1));
      }
      expect(await rowsOf(imported.id)).toMatchObject([{ payload }]);
    },
  );

  test("an imported log is the same: ids, positions, times, payloads, internal, and the session what they say", async () => {
    const { sessionId } = await talk();
    await harnessReleases(sessionId);
    const log = await exported(sessionId);
    const imported = await importAs(admin, log);
    expect(imported.id).not.toBe(sessionId);
    expect(await rowsOf(imported.id, 10)).toEqual(await rowsOf(sessionId, 10));
    const origin = (await client.getSession({ sessionId })).session!;
    expect(imported).toMatchObject({
      status: SessionStatus.IDLE,
      stopReason: StopReason.END_TURN,
      usage: origin.usage,
      environmentId: origin.environmentId,
      agent: { id: origin.agent!.id, version: 1, spec: origin.agent!.spec },
    });
    expect((await eventsOf(imported.id))[0]!.processedAt).toEqual(
      (await eventsOf(sessionId))[0]!.processedAt,
    );
    const again = linesOf(await exported(imported.id));
    expect(again.slice(1, 11)).toEqual(linesOf(log).slice(1, 11));
    expect(await client.wakeSession({ sessionId: imported.id })).toMatchObject({ hasWork: false });
    await client.emitEvents({ sessionId: imported.id, events: [say("go on")] });
    expect(await client.wakeSession({ sessionId: imported.id })).toMatchObject({ hasWork: true });
  });

  /** The hand of `talk` given back, so that nothing has to be added to an import. */
  async function harnessReleases(sessionId: string) {
    await database.pool().query(
      `with s as (update sessions set head = head + 1 where session_id = $1 returning head)
       insert into events (session_id, position, event_id, type, payload) select $1, head, 'sevt_rel', 'hand.released', '{"hand_id":"hand_1"}' from s`,
      [sessionId],
    );
  }

  test("an import at rest adds nothing; one with an open call and a hand ends both and does nothing by itself", async () => {
    const { sessionId } = await talk();
    await harnessReleases(sessionId);
    expect((await importAs(admin, await exported(sessionId))).head).toBe(11n);
    const lines = linesOf(await exported(sessionId)).slice(0, 8);
    const imported = await importAs(admin, withEnd(lines));
    const added = (await eventsOf(imported.id)).slice(7);
    expect(added.map(({ type }) => type)).toEqual(["agent.tool_result", "hand.lost"]);
    expect(added[0]!.payload).toContain("imported before it ended");
    expect(await client.wakeSession({ sessionId: imported.id })).toMatchObject({ hasWork: false });
    expect(imported.status).toBe(SessionStatus.IDLE);
  });

  test("an archived session is archived again", async () => {
    const sessionId = await world.newSession();
    await client.archiveSession({ sessionId });
    const imported = await importAs(admin, await exported(sessionId));
    expect(imported.archivedAt).toBeDefined();
    expect(imported.status).toBe(SessionStatus.TERMINATED);
  });

  test("what brains see is exported for admins alone, and only when asked for", async () => {
    const { sessionId } = await talk();
    expect((await exported(sessionId)).toString()).toContain('"internal":"{\\"secret\\":\\"thought\\"}"');
    expect((await exported(sessionId, false)).toString()).not.toContain("thought");
    expect((await collect(client.exportSession({ sessionId }))).toString()).not.toContain("thought");
    const refused = collect(client.exportSession({ sessionId, withInternal: true }));
    expect(await failure(refused)).toMatchObject({ reason: "ROLE_NOT_ALLOWED" });
    expect(await failure(collect(stranger.exportSession({ sessionId })))).toMatchObject({
      reason: "NOT_FOUND",
    });
  });

  test("clients import what clients may say; brains' events and internal are for admins", async () => {
    const { sessionId } = await talk();
    const log = await exported(sessionId, false);
    expect(await failure(importAs(client, log))).toMatchObject({
      reason: "EVENT_TYPE_NOT_ALLOWED",
      metadata: { line: "3" },
    });
    const [header, message] = linesOf(log);
    expect((await importAs(client, withEnd([header!, message!]))).head).toBe(1n);
    const sneaky = JSON.stringify({ ...JSON.parse(message!), internal: "{}" });
    expect(await failure(importAs(client, withEnd([header!, sneaky])))).toMatchObject({
      reason: "ROLE_NOT_ALLOWED",
      metadata: { line: "2" },
    });
    expect(await leftovers()).toBe(0);
  });

  test("a repeat with the same request id and bytes returns the first session; other bytes are refused", async () => {
    const { sessionId } = await talk();
    const log = await exported(sessionId);
    const start = { requestId: newId("request") };
    const first = await importAs(admin, log, start);
    expect((await importAs(admin, log, start, 1_000)).id).toBe(first.id);
    const both = await Promise.all([
      importAs(admin, log, { requestId: "r2" }),
      importAs(admin, log, { requestId: "r2" }),
    ]);
    expect(both[0].id).toBe(both[1].id);
    const shorter = withEnd(linesOf(log).slice(0, 4));
    expect(await failure(importAs(admin, shorter, start))).toMatchObject({ reason: "REQUEST_ID_REUSED" });
    expect(await leftovers()).toBe(0);
  });

  test("logs that are not whole, not in order or not known are refused with the line, and nothing is left", async () => {
    const { sessionId } = await talk();
    const lines = linesOf(await exported(sessionId)).slice(0, -1);
    const changed = (index: number, change: object) =>
      lines.map((line, at) => (at === index ? JSON.stringify({ ...JSON.parse(line), ...change }) : line));
    const cases: [Buffer, string, string][] = [
      [withEnd(lines.filter((_, index) => index !== 3)), "4", "must be 3, is 4"],
      [withEnd([lines[0]!, lines[2]!, lines[1]!]), "2", "must be 1, is 2"],
      [withEnd(changed(0, { tendon_log: 2 })), "1", "only version 1"],
      [withEnd(lines.slice(1)), "1", "is not the first line"],
      [withEnd(changed(4, { created_at: "yesterday" })), "5", "must be a time"],
      [withEnd(changed(4, { payload: "[1" })), "5", "is not JSON"],
      [withEnd(changed(4, { payload: '"\ud800"' })), "5", "surrogate"],
      [withEnd(changed(4, { id: JSON.parse(lines[2]!).id })), "5", "earlier event has the same id"],
      [withEnd(changed(4, { type: "Nothing" })), "5", "is no type"],
      [Buffer.from(lines.map((line) => `${line}\n`).join("")), "12", "is cut off"],
      [Buffer.concat([await exported(sessionId), Buffer.from("{}\n")]), "13", "nothing may follow"],
      [
        Buffer.from((await exported(sessionId)).toString().replace("done", "gone")),
        "12",
        "changed or damaged",
      ],
      [Buffer.from([0x7b, 0xff, 0x0a]), "1", "is not UTF-8"],
      [Buffer.alloc(0), "1", "is missing"],
    ];
    for (const [log, line, words] of cases) {
      const error = await failure(importAs(admin, log));
      expect(error, words).toMatchObject({ reason: "INVALID_FIELD" });
      expect(error.message).toContain(words);
      expect(error.message).toContain(`line ${line}`);
    }
    expect(await leftovers()).toBe(0);
  });

  test("an import whose caller goes away leaves nothing", async () => {
    const { sessionId } = await talk();
    const log = await exported(sessionId);
    const call = admin.importSession();
    await call.send({ kind: { case: "start", value: {} } });
    await call.send({ kind: { case: "chunk", value: log.subarray(0, log.length - 200) } });
    await eventually(async () => {
      const { rows } = await database.pool().query("select 1 from unfinished_logs");
      return rows.length === 1;
    });
    call.cancel();
    await failure(call.end());
    await eventually(async () => (await leftovers()) === 0);
  });

  test("another workspace's environments and agents are not taken over; a named environment must be the importer's", async () => {
    const { sessionId } = await talk();
    const log = await exported(sessionId, false);
    const elsewhere = replica.client({ kind: "admin", keyId: "apikey_4", workspaceId: other.workspaceId });
    const imported = await importAs(elsewhere, log);
    expect(imported).toMatchObject({ workspaceId: other.workspaceId, environmentId: other.environmentId });
    expect(imported.agent!.workspaceId).toBe(other.workspaceId);
    const named = importAs(elsewhere, log, { environmentId: world.environmentId });
    expect(await failure(named)).toMatchObject({ reason: "NOT_FOUND" });
  });

  test("logs with thousands of events, and events of many megabytes, come through in pieces of any size", async () => {
    const sessionId = await world.newSession();
    for (let batch = 0; batch < 10; batch++) {
      const events = Array.from({ length: 250 }, (_, n) => ({
        type: "acme.noted",
        payload: `{"n":${batch * 250 + n}}`,
      }));
      await client.emitEvents({ sessionId, events });
    }
    await emitLarge(client, sessionId, JSON.stringify({ a: '"\\\n'.repeat(2 * 1024 * 1024) }));
    const imported = await importAs(admin, await exported(sessionId), {}, 77_777);
    expect(await rowsOf(imported.id)).toEqual(await rowsOf(sessionId));
  }, 60_000);
});

async function emitLarge(
  who: Sessions,
  sessionId: string,
  payload: string,
  extra: { lease?: { leaseId: string; epoch: bigint }; internal?: string } = {},
) {
  const { lease: held, internal } = extra;
  const type = held ? "agent.message" : "acme.noted";
  const call = who.emitLargeEvents();
  const request = {
    sessionId,
    events: [event(type), { type, id: newId("event") }],
    ...(held && { lease: held }),
  };
  await call.send({ kind: { case: "request", value: request } });
  const pieces = async (text: EventText, bytes: Buffer) => {
    // Cut inside characters too.
    for (let at = 0; at < bytes.length; at += 1_000_003) {
      const chunk = bytes.subarray(at, at + 1_000_003);
      await call.send({ kind: { case: "piece", value: { eventIndex: 1, text, chunk } } });
    }
  };
  try {
    await pieces(EventText.PAYLOAD, Buffer.from(payload));
    if (internal !== undefined) await pieces(EventText.INTERNAL, Buffer.from(internal));
    await call.send({ kind: { case: "end", value: {} } });
  } catch {
    // The call's own error says why.
  }
  return call.end();
}

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
    const whole = await collect(client.readPayload({ sessionId, eventId }));
    expect(whole.equals(Buffer.from(padded))).toBe(true);
    const offset = 20 * 1024 * 1024 + 7;
    const rest = await collect(client.readPayload({ sessionId, eventId, offsetBytes: BigInt(offset) }));
    expect(rest.equals(Buffer.from(padded).subarray(offset))).toBe(true);
    // A repeat is the same request, in whatever pieces it comes.
    const fork = await client.forkSession({ sessionId });
    const copied = await collect(client.readPayload({ sessionId: fork.session!.id, eventId }));
    expect(copied.equals(whole)).toBe(true);
  }, 60_000);

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
    expect(await eventsOf(sessionId)).toHaveLength(40);
  }, 30_000);

  test("a brain's large internal comes with its lease; a fenced one is refused", async () => {
    const sessionId = await world.newSession();
    await client.emitEvents({ sessionId, events: [say("go")] });
    const held = await lease(sessionId);
    const internal = JSON.stringify({ blocks: "x".repeat(4 * 1024 * 1024) });
    const { receipts } = await emitLarge(harness, sessionId, "{}", { lease: held, internal });
    const read = harness.readPayload({
      sessionId,
      eventId: receipts[1]!.id,
      text: EventText.INTERNAL,
      lease: held,
    });
    expect((await collect(read)).toString()).toBe(internal);
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
  }, 30_000);
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

describe("cursors", () => {
  test("from an event on, the n before an event, and back to the call before it are one call each", async () => {
    const { sessionId, use } = await talk();
    const all = await eventsOf(sessionId);
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
    const { sessionId } = await talk();
    const slice = await client.getEvents({ sessionId, untilTypes: ["agent.tool_use"], order: 2 });
    expect(slice).toMatchObject({ hasMore: false, head: 10n });
    const cut = await client.getEvents({ sessionId, untilTypes: ["agent.tool_use"], order: 2, limit: 2 });
    expect(cut.hasMore).toBe(true);
  });

  test("an event that the session does not have is not found", async () => {
    const { sessionId } = await talk();
    for (const id of [newId("event"), "sevt_x", "nothing"]) {
      expect(await failure(client.getEvents({ sessionId, beforeEventId: id }))).toMatchObject({
        reason: "NOT_FOUND",
      });
    }
  });
});

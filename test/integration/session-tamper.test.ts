/** Tamper evidence: events are hashed as they are appended, servers sign where a session rests, and whoever changes a log is found. */
import { createHash } from "node:crypto";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { openLog } from "../../cli/verify/open-log.ts";
import { type Kept, verifyLog } from "../../cli/verify/verify-log.ts";
import { signCheckpoint } from "../../kit/chain/checkpoint.ts";
import { type ChainOrigin, eventHash, NEW_CHAIN, originHash, sha256Hex } from "../../kit/chain/event-hash.ts";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import type { SigningKey } from "../../kit/sign/key-file.ts";
import type { Checkpoint } from "../../proto/gen/tendon/v1/event_pb.js";
import type { SessionService, WatchEventsResponse } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { createExecutionStore } from "../../server/store/postgres/executions.ts";
import { appendToLog } from "../../server/store/postgres/hand-log.ts";
import { createLeaseStore } from "../../server/store/postgres/leases.ts";
import { inTransaction } from "../../server/store/postgres/transaction.ts";
import { eventually } from "../kit/eventually.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import {
  createWorld,
  newSigningKey,
  type SessionReplica,
  type SessionWorld,
  startReplica,
} from "../kit/session-rig.ts";
import { trickyPayloads } from "../kit/tricky-payloads.ts";

type Sessions = Client<typeof SessionService>;

let database: TestDatabase;
let world: SessionWorld;
/** A workspace without tamper evidence. */
let plain: SessionWorld;
let first: SessionReplica;
let second: SessionReplica;
let client: Sessions;
let admin: Sessions;
let harness: Sessions;
let plainAdmin: Sessions;

beforeAll(async () => {
  database = await createTestDatabase();
  world = await createWorld(database.pool());
  plain = await createWorld(database.pool());
  await query("update workspaces set tamper_evident = true where workspace_id = $1", [world.workspaceId]);
  first = await startReplica({ url: database.url, world });
  second = await startReplica({ url: database.url, world });
  client = first.client({ kind: "client", keyId: "apikey_1", workspaceId: world.workspaceId });
  admin = first.client({ kind: "admin", keyId: "apikey_2", workspaceId: world.workspaceId });
  plainAdmin = first.client({ kind: "admin", keyId: "apikey_3", workspaceId: plain.workspaceId });
  harness = first.client({ kind: "harness", keyId: "apikey_4", workspaceId: undefined });
});

afterAll(async () => {
  await first?.stop();
  await second?.stop();
  await database?.drop();
});

async function query<Row>(sql: string, values: unknown[] = []): Promise<Row[]> {
  return (await database.pool().query<Row>(sql, values)).rows;
}

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
const idle = () => event("session.status_idle", { stop_reason: { type: "end_turn" } });

async function lease(sessionId: string) {
  const taken = await createLeaseStore(first.pool).acquire({
    sessionId,
    leaseId: newId("lease"),
    harnessId: newId("harness"),
    replicaId: first.replicaId,
    ttlMs: 30_000,
  });
  return { leaseId: taken!.leaseId, epoch: taken!.epoch };
}

/** A turn: a message, something that a brain thinks, an answer, at rest. Four events. */
async function turn(sessionId: string, who = harness): Promise<void> {
  await client.emitEvents({ sessionId, events: [say("go")] });
  const held = await lease(sessionId);
  const events = [
    event("session.status_running"),
    event("agent.message", { content: [{ type: "text", text: "done" }] }, '{"secret":"thought"}'),
    idle(),
  ];
  const { head } = await who.emitEvents({ sessionId, lease: held, events });
  await createLeaseStore(first.pool).release({ ...held, restedPosition: head, retryAfterMs: undefined });
}

async function newSession(): Promise<string> {
  const { session } = await client.createSession({ agentId: world.agentId });
  return session!.id;
}

/** Two turns, both signed: positions 4 and 8. */
async function signedSession(): Promise<string> {
  const sessionId = await newSession();
  await turn(sessionId);
  await signedAt(sessionId, 4);
  await turn(sessionId);
  await signedAt(sessionId, 8);
  return sessionId;
}

async function signedAt(sessionId: string, position: number): Promise<void> {
  await eventually(async () => {
    const rows = await query(
      "select 1 from checkpoints where session_id = $1 and position = $2 and signature is not null",
      [sessionId, position],
    );
    return rows.length === 1;
  });
}

async function collect(chunks: AsyncIterable<{ chunk: Uint8Array }>): Promise<Buffer> {
  const list: Uint8Array[] = [];
  for await (const { chunk } of chunks) list.push(chunk);
  return Buffer.concat(list);
}

const exported = (sessionId: string, who = client, withInternal = false) =>
  collect(who.exportSession({ sessionId, withInternal }));

async function* asChunks(bytes: Buffer) {
  yield bytes;
}

const opened = (bytes: Buffer) => openLog(asChunks(bytes));

/** As `tendon session verify` does it. */
async function verified(sessionId: string, kept: Omit<Kept, "log"> & { file?: Buffer } = {}) {
  const log = await openLog(chunks(sessionId));
  return verifyLog(log, { ...kept, log: kept.file && (await opened(kept.file)) });
}

async function* chunks(sessionId: string) {
  for await (const { chunk } of client.exportSession({ sessionId })) yield chunk;
}

const problemsOf = async (...args: Parameters<typeof verified>) =>
  (await verified(...args)).problems.map(({ position, problem }) => `${position}: ${problem}`);

interface EventRow {
  position: number;
  event_id: string;
  type: string;
  thread_id: string;
  created_at: Date;
  payload: string;
  internal: string | null;
  hash: Buffer | null;
}

const rowsOf = (sessionId: string) =>
  query<EventRow>("select * from events where session_id = $1 order by position", [sessionId]);

/** The hashes as the kit computes them from what the rows hold. */
function hashesOf(sessionId: string, rows: readonly EventRow[], origin: ChainOrigin = NEW_CHAIN): string[] {
  let previous = originHash(sessionId, origin);
  return rows.map((row) => {
    previous = eventHash(previous, sessionId, {
      id: row.event_id,
      position: row.position,
      type: row.type,
      createdAt: row.created_at,
      threadId: row.thread_id,
      payloadSha256: sha256Hex(row.payload),
      internalSha256: row.internal === null ? undefined : sha256Hex(row.internal),
    });
    return previous;
  });
}

async function expectHashed(sessionId: string, origin?: ChainOrigin): Promise<EventRow[]> {
  const rows = await rowsOf(sessionId);
  expect(rows.map(({ hash }) => hash?.toString("hex"))).toEqual(hashesOf(sessionId, rows, origin));
  const [session] = await query<{ chain_hash: Buffer }>(
    "select chain_hash from sessions where session_id = $1",
    [sessionId],
  );
  if (rows.length > 0) expect(session!.chain_hash).toEqual(rows.at(-1)!.hash);
  return rows;
}

/** What somebody does who can write to the database: a new payload, and every hash after it made to fit. */
async function rewrite(sessionId: string, position: number, change = "payload = '{\"forged\":true}'") {
  await query(`update events set ${change} where session_id = $1 and position = $2`, [sessionId, position]);
  await query(
    `update events e set hash = h.hash from (
       select position, event_chain($2::bytea, session_id, position, event_id, type, created_at, thread_id, payload, internal)
         over (order by position) as hash from events where session_id = $1
     ) h where e.session_id = $1 and e.position = h.position`,
    [sessionId, Buffer.from(originHash(sessionId, NEW_CHAIN), "hex")],
  );
  await query(
    `update sessions s set chain_hash = e.hash from events e
       where s.session_id = $1 and e.session_id = $1 and e.position = s.head`,
    [sessionId],
  );
}

/** The rewritten checkpoints of a session, signed with a key that is not a server's. */
async function signAgain(sessionId: string, key: SigningKey): Promise<void> {
  const rows = await query<{ position: number; hash: Buffer; signed_at: Date }>(
    `select c.position, e.hash, c.signed_at from checkpoints c join events e using (session_id, position)
       where session_id = $1`,
    [sessionId],
  );
  for (const { position, hash, signed_at: signedAt } of rows) {
    const facts = { sessionId, position, hash: hash.toString("hex"), signedAt };
    const { publicKey, signature } = signCheckpoint(key, facts);
    await query(
      "update checkpoints set hash = $3, public_key = $4, signature = $5 where session_id = $1 and position = $2",
      [sessionId, position, hash, publicKey, Buffer.from(signature)],
    );
  }
}

describe("hashes", () => {
  test("whoever appends, every event has the hash of itself and all before it, as it is documented", async () => {
    const initialEvents = [say("one"), { type: "acme.noted", payload: '{"b":1, "a":2}' }];
    const { session } = await client.createSession({ agentId: world.agentId, initialEvents });
    const sessionId = session!.id;
    expect(session!.tamperEvident).toBe(true);
    await client.emitEvents({ sessionId, events: [{ type: "acme.noted", threadId: newId("thread") }] });
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
  }, 30_000);

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

describe("checkpoints", () => {
  /** What a watcher is told until it has seen a checkpoint at this position. */
  async function told(who: Sessions, sessionId: string, until: number, request: object = {}) {
    const heard: WatchEventsResponse["kind"][] = [];
    const stop = new AbortController();
    const options = { signal: stop.signal };
    for await (const { kind } of who.watchEvents({ sessionId, ...request }, options)) {
      heard.push(kind);
      if (kind.case === "checkpoint" && Number(kind.value.position) >= until) break;
    }
    stop.abort();
    return heard;
  }
  const checkpointsOf = (heard: WatchEventsResponse["kind"][]): Checkpoint[] =>
    heard.flatMap((kind) => (kind.case === "checkpoint" ? [kind.value] : []));

  test("each time a session rests one is signed, and told to watchers of both replicas after its event", async () => {
    const elsewhere = second.client({ kind: "client", keyId: "apikey_1", workspaceId: world.workspaceId });
    const sessionId = await newSession();
    const watches = [told(client, sessionId, 8), told(elsewhere, sessionId, 8, { types: ["user.message"] })];
    await turn(sessionId);
    await turn(sessionId);
    const rows = await rowsOf(sessionId);
    for (const heard of await Promise.all(watches)) {
      const checkpoints = checkpointsOf(heard);
      expect(checkpoints.map(({ position }) => position)).toEqual([4n, 8n]);
      for (const { position, hash, publicKey, signature, signedAt } of checkpoints) {
        expect(hash).toBe(rows[Number(position) - 1]!.hash!.toString("hex"));
        expect(Buffer.from(publicKey).toString("base64url")).toBe(first.signingKey.publicKey.x);
        expect(signature).toHaveLength(64);
        expect(Math.abs(Number(signedAt!.seconds) * 1000 - Date.now())).toBeLessThan(60_000);
      }
      const places = heard.flatMap((kind) => {
        if (kind.case === "event") return [`event ${kind.value.position}`];
        return kind.case === "checkpoint" ? [`checkpoint ${kind.value.position}`] : [];
      });
      expect(places.indexOf("checkpoint 4")).toBeGreaterThan(places.indexOf("event 4"));
    }
  });

  test("whoever comes later gets those at its cursor and after it", async () => {
    const sessionId = await signedSession();
    const positions = async (afterPosition: bigint) =>
      checkpointsOf(await told(client, sessionId, 8, { afterPosition })).map(({ position }) => position);
    expect(await positions(0n)).toEqual([4n, 8n]);
    expect(await positions(4n)).toEqual([4n, 8n]);
    expect(await positions(5n)).toEqual([8n]);
    expect(await positions(-1n)).toEqual([8n]);
  });

  test("watchers of a session without hashes are told none", async () => {
    const { session } = await plainAdmin.createSession({ agentId: plain.agentId, initialEvents: [say("a")] });
    const stop = new AbortController();
    const heard: string[] = [];
    for await (const { kind } of plainAdmin.watchEvents(
      { sessionId: session!.id },
      { signal: stop.signal },
    )) {
      heard.push(String(kind.case));
      if (kind.case === "progress") break;
    }
    stop.abort();
    expect(heard).toEqual(["event", "progress"]);
  });

  test("what a server that died should have signed is signed once, by whichever other finds it", async () => {
    const sessionId = await newSession();
    // As if the process had ended right after the commit: nobody is told.
    const append = () =>
      first.events.append({
        sessionId,
        authority: "server",
        events: [{ ...idle(), threadId: "", internal: undefined }],
      });
    await append();
    await append();
    expect(
      await query("select 1 from checkpoints where session_id = $1 and signature is null", [sessionId]),
    ).toHaveLength(2);
    await query(
      "update checkpoints set requested_at = requested_at - interval '1 minute' where session_id = $1",
      [sessionId],
    );
    first.area.signer.sweep();
    second.area.signer.sweep();
    await signedAt(sessionId, 1);
    await signedAt(sessionId, 2);
    const kept = () =>
      query<{ signature: Buffer; public_key: string }>(
        "select signature, public_key from checkpoints where session_id = $1 order by position",
        [sessionId],
      );
    const signed = await kept();
    first.area.signer.due(sessionId);
    second.area.signer.due(sessionId);
    await turn(sessionId);
    await signedAt(sessionId, 6);
    expect((await kept()).slice(0, 2)).toEqual(signed);
    expect((await verified(sessionId)).problems).toEqual([]);
  });

  test("replicas sign with their own keys, and a log that both have signed fits", async () => {
    const sessionId = await newSession();
    await turn(sessionId);
    await signedAt(sessionId, 4);
    await turn(sessionId, second.client({ kind: "harness", keyId: "apikey_4", workspaceId: undefined }));
    await signedAt(sessionId, 8);
    const verdict = await verified(sessionId);
    expect(verdict).toMatchObject({ problems: [], checkpoints: 2, signedUpTo: 8 });
    expect(verdict.keys).toEqual([
      { publicKey: first.signingKey.publicKey.x, firstPosition: 4, checkpoints: 1, isServers: true },
      { publicKey: second.signingKey.publicKey.x, firstPosition: 8, checkpoints: 1, isServers: false },
    ]);
  });

  test("they go with their session", async () => {
    const sessionId = await signedSession();
    await client.deleteSession({ sessionId });
    expect(await query("select 1 from checkpoints where session_id = $1", [sessionId])).toEqual([]);
    expect(await rowsOf(sessionId)).toEqual([]);
  });
});

describe("what was changed in the database", () => {
  test("a payload, with nothing else, is found at its position", async () => {
    const sessionId = await signedSession();
    await query("update events set payload = '{\"forged\":true}' where session_id = $1 and position = 3", [
      sessionId,
    ]);
    expect(await problemsOf(sessionId)).toEqual(["3: does not fit its hash and the one before"]);
  });

  test("a payload, with all later hashes made to fit, is found by the checkpoints, and at its position by a kept file", async () => {
    const sessionId = await signedSession();
    const file = await exported(sessionId);
    expect(await problemsOf(sessionId, { file })).toEqual([]);
    await rewrite(sessionId, 3);
    expect(await problemsOf(sessionId)).toEqual([
      "4: is not what was signed: something from position 1 to 4 was changed, and all hashes after it",
      "8: is not what was signed: something from position 1 to 8 was changed, and all hashes after it",
    ]);
    expect((await problemsOf(sessionId, { file }))[0]).toBe("3: its payload is not what was kept");
  });

  test("what lies between two checkpoints is found between them", async () => {
    const sessionId = await signedSession();
    await rewrite(sessionId, 7);
    expect(await problemsOf(sessionId)).toEqual([
      "8: is not what was signed: something from position 5 to 8 was changed, and all hashes after it",
    ]);
  });

  test.each([
    ["what only brains see", "internal = '{}'", "its internal"],
    ["a type", "type = 'acme.other'", "its type"],
    ["a time", "created_at = created_at - interval '1 hour'", "its time"],
    ["a thread", "thread_id = 'sthr_1'", "its thread"],
    ["an id", "event_id = 'sevt_other'", "its id"],
  ])("%s is found like a payload", async (_, change, words) => {
    const sessionId = await signedSession();
    const file = await exported(sessionId);
    const full = await exported(sessionId, admin, true);
    await rewrite(sessionId, 3, change);
    expect((await problemsOf(sessionId))[0]).toMatch(/^4: is not what was signed/);
    for (const kept of [file, full])
      expect((await problemsOf(sessionId, { file: kept }))[0]).toBe(`3: ${words} is not what was kept`);
  });

  test("an event that is gone is missed: in the middle, and at the end by what was kept", async () => {
    const middle = await signedSession();
    await query("delete from events where session_id = $1 and position = 3", [middle]);
    expect(await problemsOf(middle)).toEqual([
      "3: is missing in the database, or the session was deleted just now",
    ]);

    const end = await signedSession();
    const file = await exported(end);
    const [, checkpoint] = await checkpoints(end);
    await query("delete from events where session_id = $1 and position > 6", [end]);
    await query("delete from checkpoints where session_id = $1 and position > 6", [end]);
    await query("update sessions set head = 6 where session_id = $1", [end]);
    await rewrite(end, 6, "payload = payload");
    expect(await problemsOf(end)).toEqual([]);
    expect(await problemsOf(end, { file })).toEqual(["7: is missing, it was kept (agent.message)"]);
    expect(await problemsOf(end, { checkpoints: [checkpoint!] })).toEqual([
      "7: is missing: a kept checkpoint is at 8",
    ]);
  });

  const checkpoints = (sessionId: string) => {
    const list = { sessionId, fromPosition: 0, toPosition: 100, limit: 100 };
    return first.checkpoints.list(list);
  };

  test("hashes that are gone are missed", async () => {
    const sessionId = await signedSession();
    const file = await exported(sessionId);
    await query("update events set hash = null where session_id = $1 and position = 5", [sessionId]);
    expect((await problemsOf(sessionId))[0]).toBe("5: has no hash");
    await query("update sessions set chain_hash = null where session_id = $1", [sessionId]);
    const { header, problems } = await verified(sessionId, { file });
    expect(header.chain).toBeUndefined();
    expect(problems[0]).toEqual({ position: 1, problem: "its hash is not what was kept" });
  });

  test("checkpoints that are gone, changed or moved are missed", async () => {
    const gone = await signedSession();
    await query("delete from checkpoints where session_id = $1 and position = 4", [gone]);
    await query("update events set created_at = created_at - interval '2 minutes' where session_id = $1", [
      gone,
    ]);
    await rewrite(gone, 1, "payload = payload");
    await query("delete from checkpoints where session_id = $1", [gone]);
    expect(await problemsOf(gone)).toEqual([
      "4: the session came to rest, but there is no checkpoint",
      "8: the session came to rest, but there is no checkpoint",
    ]);

    const changed = await signedSession();
    await rewrite(changed, 3);
    await query(
      "update checkpoints c set hash = e.hash from events e where c.session_id = $1 and e.session_id = $1 and e.position = c.position",
      [changed],
    );
    expect(await problemsOf(changed)).toEqual([
      "4: the checkpoint's signature is not that of its key",
      "8: the checkpoint's signature is not that of its key",
    ]);

    const [one, other] = [await signedSession(), await signedSession()];
    await query(
      `update checkpoints c set hash = o.hash, signed_at = o.signed_at, public_key = o.public_key, signature = o.signature
         from checkpoints o where c.session_id = $1 and o.session_id = $2 and o.position = c.position`,
      [one, other],
    );
    expect((await problemsOf(one))[0]).toBe("4: the checkpoint's signature is not that of its key");
  });

  test("signatures with another key count for nothing against pinned keys or a kept checkpoint; without any it is said whose they are not", async () => {
    const sessionId = await signedSession();
    const file = await exported(sessionId);
    const kept = await checkpoints(sessionId);
    const forger = await newSigningKey();
    await rewrite(sessionId, 3);
    await signAgain(sessionId, forger);
    const { problems, keys } = await verified(sessionId);
    expect(problems).toEqual([]);
    expect(keys).toMatchObject([{ publicKey: forger.publicKey.x, isServers: false }]);
    const pinnedKeys = new Set([first.signingKey.publicKey.x]);
    const words = `is signed by ${forger.publicKey.x}, which is none of the pinned keys`;
    expect(await problemsOf(sessionId, { pinnedKeys })).toEqual([`4: ${words}`, `8: ${words}`]);
    expect(await problemsOf(sessionId, { checkpoints: kept.slice(1) })).toEqual([
      "8: is not what was signed: something from position 1 to 8 was changed, and all hashes after it",
    ]);
    expect((await problemsOf(sessionId, { file }))[0]).toBe("3: its payload is not what was kept");
  });

  test("a server does not sign again what it has signed; one that never had says when it signed", async () => {
    const sessionId = await signedSession();
    await rewrite(sessionId, 3);
    const unsign =
      "update checkpoints set signature = null, requested_at = requested_at - interval '1 hour' where session_id = $1";
    await query(unsign, [sessionId]);
    first.area.signer.due(sessionId);
    const other = await newSession();
    await turn(other);
    await signedAt(other, 4);
    const left = await query("select 1 from checkpoints where session_id = $1 and signature is null", [
      sessionId,
    ]);
    expect(left).toHaveLength(2);
    // The events are old by now; whoever had kept a checkpoint of them is not deceived by the new one.
    await query("update events set created_at = created_at - interval '1 hour' where session_id = $1", [
      sessionId,
    ]);
    await rewrite(sessionId, 3);
    second.area.signer.due(sessionId);
    await signedAt(sessionId, 8);
    const { problems, notes } = await verified(sessionId);
    expect(problems).toEqual([]);
    expect(notes).toHaveLength(2);
    expect(notes[0]).toMatch(/^position 4 was signed 60 minutes late/);
  });
});

describe("copies", () => {
  async function importAs(who: Sessions, bytes: Buffer) {
    const call = who.importSession();
    await call.send({ kind: { case: "start", value: {} } });
    await call.send({ kind: { case: "chunk", value: bytes } }).catch(() => {});
    return (await call.end()).session!;
  }
  const linesOf = (log: Buffer) => log.toString().trimEnd().split("\n");
  function withEnd(lines: string[]): Buffer {
    const text = lines.map((line) => `${line}\n`).join("");
    const sha256 = createHash("sha256").update(text).digest("hex");
    return Buffer.from(`${text}${JSON.stringify({ end: { events: lines.length - 1, sha256 } })}\n`);
  }

  test("a fork has a chain of its own, which begins with where it was forked", async () => {
    const origin = await signedSession();
    const rows = await rowsOf(origin);
    const { session } = await client.forkSession({ sessionId: origin, position: 6n });
    const sessionId = session!.id;
    const hash = rows[5]!.hash!.toString("hex");
    await expectHashed(sessionId, { kind: "fork", sessionId: origin, position: 6, hash });
    await signedAt(sessionId, 7);
    expect(await verified(sessionId)).toMatchObject({
      problems: [],
      events: 7,
      checkpoints: 1,
      signedUpTo: 7,
    });
    await turn(sessionId);
    await signedAt(sessionId, 11);
    expect((await verified(sessionId)).problems).toEqual([]);
    await query("update sessions set chain_origin = replace(chain_origin, $2, $3) where session_id = $1", [
      sessionId,
      hash,
      sha256Hex("another"),
    ]);
    expect((await problemsOf(sessionId))[0]).toBe("1: does not fit its hash and the one before");
  });

  test("a fork of thousands of events, and one of a log without hashes, are hashed from their first event", async () => {
    const origin = await newSession();
    for (let batch = 0; batch < 18; batch++) {
      const events = Array.from({ length: 250 }, (_, n) => ({
        type: "acme.noted",
        payload: `{"n":${batch * 250 + n}}`,
      }));
      await client.emitEvents({ sessionId: origin, events });
    }
    const { session } = await client.forkSession({ sessionId: origin, position: 4_100n });
    expect(session!.head).toBe(4_101n);
    expect((await verified(session!.id)).problems).toEqual([]);

    const unhashed = (await plainAdmin.createSession({ agentId: plain.agentId, initialEvents: [say("a")] }))
      .session!.id;
    await query("update workspaces set tamper_evident = true where workspace_id = $1", [plain.workspaceId]);
    const fork = (await plainAdmin.forkSession({ sessionId: unhashed })).session!;
    await query("update workspaces set tamper_evident = false where workspace_id = $1", [plain.workspaceId]);
    expect(fork.tamperEvident).toBe(true);
    await expectHashed(fork.id, { kind: "fork", sessionId: unhashed, position: 1, hash: "" });
  }, 30_000);

  test("an import is hashed anew where its workspace says so, is signed, and says what log it was", async () => {
    const origin = await signedSession();
    const log = await exported(origin, admin, true);
    const imported = await importAs(admin, log);
    const hash = (await rowsOf(origin)).at(-1)!.hash!.toString("hex");
    await expectHashed(imported.id, { kind: "import", sessionId: origin, position: 8, hash });
    await eventually(async () => {
      first.area.signer.due(imported.id);
      return (await verified(imported.id)).checkpoints === 1;
    });
    expect(await verified(imported.id)).toMatchObject({ problems: [], signedUpTo: 8 });
    const plainly = await importAs(plainAdmin, log);
    expect(plainly.tamperEvident).toBe(false);
    expect((await rowsOf(plainly.id)).every(({ hash: none }) => none === null)).toBe(true);
    // Large events are written by themselves: hashed in their place all the same.
    const large = await newSession();
    const payload = (n: number) => JSON.stringify({ a: "x".repeat(n % 3 === 0 ? 100_000 : 10) });
    const events = Array.from({ length: 10 }, (_, n) => ({ type: "acme.noted", payload: payload(n) }));
    await client.emitEvents({ sessionId: large, events });
    const again = await importAs(admin, await exported(large, admin, true));
    expect((await verified(again.id)).problems).toEqual([]);
  });

  test("an exported log with hashes that was changed is not imported, and verifying it alone names the position", async () => {
    const sessionId = await signedSession();
    const lines = linesOf(await exported(sessionId, admin, true)).slice(0, -1);
    const changed = (position: number, change: object) =>
      withEnd(
        lines.map((line, at) =>
          at === position ? JSON.stringify({ ...JSON.parse(line), ...change }) : line,
        ),
      );
    const cases: [Buffer, string, string][] = [
      [changed(3, { payload: "{}" }), "4", "3: does not fit its hash and the one before"],
      [changed(3, { hash: undefined }), "4", "3: has no hash"],
      [
        changed(5, { created_at: "2030-01-31T12:00:00.000Z" }),
        "6",
        "5: does not fit its hash and the one before",
      ],
      [
        changed(0, { session: { ...JSON.parse(lines[0]!).session, id: newId("session") } }),
        "2",
        "1: does not fit its hash and the one before",
      ],
      [withEnd(lines.slice(0, 6)), "1", "6: is missing, the session has 8 events"],
    ];
    for (const [log, line, problem] of cases) {
      await expect(importAs(admin, log), problem).rejects.toMatchObject({
        reason: "INVALID_FIELD",
        metadata: { line },
      });
      const { problems } = await verifyLog(await opened(log));
      expect(`${problems[0]?.position}: ${problems[0]?.problem}`).toBe(problem);
    }
    const whole = withEnd(lines);
    expect((await verifyLog(await opened(whole))).problems).toEqual([]);
    const cut = whole.subarray(0, whole.lastIndexOf('{"end"'));
    expect((await verifyLog(await opened(cut))).problems).toEqual([
      { position: 9, problem: "cannot be read: it is cut off: its last line is missing" },
    ]);
  });

  test("an export shows clients the digest of what only brains see, not the text, and both exports fit", async () => {
    const sessionId = await signedSession();
    const [seen, full] = [await exported(sessionId), await exported(sessionId, admin, true)];
    expect(seen.toString()).not.toContain("thought");
    expect(seen.toString()).toContain(`"internal_sha256":"${sha256Hex('{"secret":"thought"}')}"`);
    expect(full.toString()).not.toContain("internal_sha256");
    for (const log of [seen, full]) {
      const verdict = await verifyLog(await opened(log));
      expect(verdict).toMatchObject({ problems: [], events: 8, checkpoints: 2, signedUpTo: 8 });
      expect(verdict.header.serverKey).toBe(first.signingKey.publicKey.x);
    }
    expect((await verifyLog(await opened(seen), { log: await opened(full) })).problems).toEqual([]);
    const hashes = linesOf(seen)
      .slice(1, -1)
      .map((line) => JSON.parse(line).hash);
    expect(hashes).toEqual(hashesOf(sessionId, await rowsOf(sessionId)));
  });
});

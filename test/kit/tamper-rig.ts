/**
 * What tests of tamper evidence need: two replicas, a workspace that wants it and one that does not, turns of a brain, and
 * somebody who writes to the database. Call `useTamperRig()` once in a test file.
 */
import { afterAll, beforeAll, beforeEach, expect } from "vitest";
import { openLog } from "../../cli/verify/open-log.ts";
import { type Kept, verifyLog } from "../../cli/verify/verify-log.ts";
import { signCheckpoint } from "../../kit/chain/checkpoint.ts";
import { type ChainOrigin, eventHash, NEW_CHAIN, originHash, sha256Hex } from "../../kit/chain/event-hash.ts";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import type { SigningKey } from "../../kit/sign/key-file.ts";
import type { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { createLeaseStore } from "../../server/store/postgres/leases.ts";
import { eventually } from "./eventually.ts";
import { createTestDatabase, type TestDatabase } from "./postgres.ts";
import { RoundsClock } from "./rounds-clock.ts";
import { createWorld, type SessionReplica, type SessionWorld, startReplica } from "./session-rig.ts";

export type Sessions = Client<typeof SessionService>;

export let database: TestDatabase;
export let world: SessionWorld;
/** A workspace without tamper evidence. */
export let plain: SessionWorld;
export let first: SessionReplica;
export let second: SessionReplica;
/** Of each. While they are held, a replica signs what it has appended itself, and sweeps up nothing that another is slow with. */
export const firstsClock = new RoundsClock();
export const secondsClock = new RoundsClock();
export let client: Sessions;
export let admin: Sessions;
export let harness: Sessions;
export let plainAdmin: Sessions;

export function useTamperRig(): void {
  beforeAll(async () => {
    database = await createTestDatabase();
    world = await createWorld(database.pool());
    plain = await createWorld(database.pool());
    await query("update workspaces set tamper_evident = true where workspace_id = $1", [world.workspaceId]);
    first = await startReplica({ url: database.url, world, clock: firstsClock });
    second = await startReplica({ url: database.url, world, clock: secondsClock });
    client = first.client({ kind: "client", keyId: "apikey_1", workspaceId: world.workspaceId });
    admin = first.client({ kind: "admin", keyId: "apikey_2", workspaceId: world.workspaceId });
    plainAdmin = first.client({ kind: "admin", keyId: "apikey_3", workspaceId: plain.workspaceId });
    harness = first.client({ kind: "harness", keyId: "apikey_4", workspaceId: undefined });
  });

  beforeEach(() => {
    for (const clock of [firstsClock, secondsClock]) clock.isHeld = false;
  });

  afterAll(async () => {
    await first?.stop();
    await second?.stop();
    await database?.drop();
  });
}

export async function query<Row>(sql: string, values: unknown[] = []): Promise<Row[]> {
  return (await database.pool().query<Row>(sql, values)).rows;
}

export const say = (text: string) => ({
  type: "user.message",
  payload: JSON.stringify({ content: [{ type: "text", text }] }),
});
export const event = (type: string, payload: object = {}, internal = "") => ({
  id: newId("event"),
  type,
  payload: JSON.stringify(payload),
  internal,
});
export const idle = () => event("session.status_idle", { stop_reason: { type: "end_turn" } });

export async function lease(sessionId: string) {
  const request = {
    sessionId,
    leaseId: newId("lease"),
    harnessId: newId("harness"),
    replicaId: first.replicaId,
    ttlMs: 30_000,
  };
  // A session whose row somebody else has just then, such as who signs, is passed over.
  const { leaseId, epoch } = await eventually(() => createLeaseStore(first.pool).acquire(request));
  return { leaseId, epoch };
}

/** A turn: a message, something that a brain thinks, an answer, at rest. Four events. */
export async function turn(sessionId: string, who = harness): Promise<void> {
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

export async function newSession(): Promise<string> {
  const { session } = await client.createSession({ agentId: world.agentId });
  return session!.id;
}

/** Two turns, both signed: positions 4 and 8. */
export async function signedSession(): Promise<string> {
  const sessionId = await newSession();
  await turn(sessionId);
  await signedAt(sessionId, 4);
  await turn(sessionId);
  await signedAt(sessionId, 8);
  return sessionId;
}

export async function signedAt(sessionId: string, position: number): Promise<void> {
  await eventually(async () => {
    const rows = await query(
      "select 1 from checkpoints where session_id = $1 and position = $2 and signature is not null",
      [sessionId, position],
    );
    return rows.length === 1;
  });
}

export async function collect(chunks: AsyncIterable<{ chunk: Uint8Array }>): Promise<Buffer> {
  const list: Uint8Array[] = [];
  for await (const { chunk } of chunks) list.push(chunk);
  return Buffer.concat(list);
}

export const exported = (sessionId: string, who = client, withInternal = false) =>
  collect(who.exportSession({ sessionId, withInternal }));

export async function* asChunks(bytes: Buffer) {
  yield bytes;
}

export const opened = (bytes: Buffer) => openLog(asChunks(bytes));

/** As `tendon session verify` does it. */
export async function verified(sessionId: string, kept: Omit<Kept, "log"> & { file?: Buffer } = {}) {
  const log = await openLog(chunks(sessionId));
  return verifyLog(log, { ...kept, log: kept.file && (await opened(kept.file)) });
}

export async function* chunks(sessionId: string) {
  for await (const { chunk } of client.exportSession({ sessionId })) yield chunk;
}

export const problemsOf = async (...args: Parameters<typeof verified>) =>
  (await verified(...args)).problems.map(({ position, problem }) => `${position}: ${problem}`);

export interface EventRow {
  position: number;
  event_id: string;
  type: string;
  thread_id: string;
  created_at: Date;
  payload: string;
  internal: string | null;
  hash: Buffer | null;
}

export const rowsOf = (sessionId: string) =>
  query<EventRow>("select * from events where session_id = $1 order by position", [sessionId]);

/** The hashes as the kit computes them from what the rows hold. */
export function hashesOf(
  sessionId: string,
  rows: readonly EventRow[],
  origin: ChainOrigin = NEW_CHAIN,
): string[] {
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

export async function expectHashed(sessionId: string, origin?: ChainOrigin): Promise<EventRow[]> {
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
export async function rewrite(sessionId: string, position: number, change = "payload = '{\"forged\":true}'") {
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
export async function signAgain(sessionId: string, key: SigningKey): Promise<void> {
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

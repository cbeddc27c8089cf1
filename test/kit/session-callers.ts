/** A session area on a database of its own, two workspaces in it, and a caller of each kind. */
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import type { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { createLeaseStore } from "../../server/store/postgres/leases.ts";
import { createTestDatabase, type TestDatabase } from "./postgres.ts";
import { createWorld, type SessionReplica, type SessionWorld, startReplica } from "./session-rig.ts";

export type Sessions = Client<typeof SessionService>;

export interface SessionCallers {
  readonly database: TestDatabase;
  readonly world: SessionWorld;
  /** The stranger's. */
  readonly other: SessionWorld;
  readonly replica: SessionReplica;
  readonly client: Sessions;
  readonly admin: Sessions;
  readonly harness: Sessions;
  /** A client of another workspace. */
  readonly stranger: Sessions;
  clientOf(workspaceId: string): Sessions;
  /** The right to be a session's brain for half a minute. */
  lease(sessionId: string): Promise<{ leaseId: string; epoch: bigint }>;
  stop(): Promise<void>;
}

export async function startSessionCallers(): Promise<SessionCallers> {
  const database = await createTestDatabase();
  const world = await createWorld(database.pool());
  const other = await createWorld(database.pool());
  const replica = await startReplica({ url: database.url, world });
  const clientOf = (workspaceId: string) =>
    replica.client({ kind: "client", keyId: "apikey_1", workspaceId });
  return {
    database,
    world,
    other,
    replica,
    client: clientOf(world.workspaceId),
    stranger: clientOf(other.workspaceId),
    clientOf,
    admin: replica.client({ kind: "admin", keyId: "apikey_3", workspaceId: world.workspaceId }),
    harness: replica.client({ kind: "harness", keyId: "apikey_2", workspaceId: undefined }),
    async lease(sessionId) {
      const taken = await createLeaseStore(replica.pool).acquire({
        sessionId,
        leaseId: newId("lease"),
        harnessId: newId("harness"),
        replicaId: replica.replicaId,
        ttlMs: 30_000,
      });
      return { leaseId: taken!.leaseId, epoch: taken!.epoch };
    },
    async stop() {
      await replica.stop();
      await database.drop();
    },
  };
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

/** What a turn with one call leaves: a message, a call with its result, an answer, at rest. Positions are in order. */
export async function talk({ world, client, harness, replica, lease }: SessionCallers) {
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

/** The whole log, as an admin reads it. */
export async function eventsOf({ admin }: SessionCallers, sessionId: string): Promise<Event[]> {
  const found: Event[] = [];
  for (;;) {
    const slice = await admin.getEvents({ sessionId, afterPosition: BigInt(found.length), limit: 1000 });
    found.push(...slice.events);
    if (!slice.hasMore) return found;
  }
}

export async function bytesOf(chunks: AsyncIterable<{ chunk: Uint8Array }>): Promise<Buffer> {
  const list: Uint8Array[] = [];
  for await (const { chunk } of chunks) list.push(chunk);
  return Buffer.concat(list);
}

export async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const list: T[] = [];
  for await (const item of items) list.push(item);
  return list;
}

/** A session with a message, and the lease to be its brain. */
export async function brained({ world, client, lease }: SessionCallers) {
  const sessionId = await world.newSession();
  await client.emitEvents({ sessionId, events: [say("go")] });
  return { sessionId, lease: await lease(sessionId) };
}

/** Rows of logs that nobody has. */
export async function leftovers({ database }: SessionCallers): Promise<number> {
  const { rows } = await database
    .pool()
    .query<{ n: number }>(
      "select (select count(*) from unfinished_logs) + (select count(*) from events e where not exists (select 1 from sessions s where s.session_id = e.session_id)) as n",
    );
  return rows[0]!.n;
}

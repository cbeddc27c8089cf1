/** An event store on a database of its own, sessions to append to, and what tests append. */
import { newId } from "../../kit/ids.ts";
import type { AppendRequest, EventSlice, EventStore, NewEvent } from "../../server/store/events.ts";
import { createEventStore } from "../../server/store/postgres/events.ts";
import { createLeaseStore } from "../../server/store/postgres/leases.ts";
import type { Pool } from "../../server/store/postgres/pool.ts";
import { eventually } from "./eventually.ts";
import { createTestDatabase, type TestDatabase } from "./postgres.ts";
import { createWorld, type SessionWorld } from "./session-rig.ts";

export interface AppendRig {
  readonly database: TestDatabase;
  readonly pool: Pool;
  readonly world: SessionWorld;
  readonly events: EventStore;
  /** The session's row. */
  row(sessionId: string): Promise<Record<string, unknown>>;
  /** The whole log. */
  all(sessionId: string): Promise<EventSlice>;
  /** Gives the session work and, whoever has it now, a new lease. */
  lease(sessionId: string): Promise<{ leaseId: string; epoch: bigint }>;
  stop(): Promise<void>;
}

export async function startAppendRig(): Promise<AppendRig> {
  const database = await createTestDatabase();
  const pool = database.pool();
  const world = await createWorld(pool);
  const events = createEventStore(pool);
  return {
    database,
    pool,
    world,
    events,
    async row(sessionId) {
      const select = "select * from sessions where session_id = $1";
      return (await pool.query<Record<string, unknown>>(select, [sessionId])).rows[0]!;
    },
    all: (sessionId) =>
      events.read({
        sessionId,
        afterPosition: 0,
        limit: 10_000,
        maxBytes: 100_000_000,
        inlineLimitBytes: 1_000_000,
        withInternal: true,
      }),
    async lease(sessionId) {
      await pool.query("update sessions set lease_id = null where session_id = $1", [sessionId]);
      await events.append(client(sessionId, event("user.message")));
      const request = {
        sessionId,
        leaseId: newId("lease"),
        harnessId: newId("harness"),
        replicaId: newId("replica"),
        ttlMs: 30_000,
      };
      // A session whose row somebody else has just then, such as who appends, is passed over.
      const { leaseId, epoch } = await eventually(() => createLeaseStore(pool).acquire(request));
      return { leaseId, epoch };
    },
    async stop() {
      await events.close();
      await database.drop();
    },
  };
}

export const event = (type = "acme.noted", payload: object = {}, over: Partial<NewEvent> = {}): NewEvent => ({
  id: newId("event"),
  type,
  threadId: "",
  payload: JSON.stringify(payload),
  internal: undefined,
  ...over,
});

export const client = (sessionId: string, ...list: NewEvent[]): AppendRequest => ({
  sessionId,
  events: list,
  authority: "client",
});
export const server = (sessionId: string, ...list: NewEvent[]): AppendRequest => ({
  ...client(sessionId, ...list),
  authority: "server",
});

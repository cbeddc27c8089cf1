/**
 * Hot queries read what they need by an index, however long a log is and however many sessions there are. The store's own
 * statements are looked at, as it sends them, on a database with enough rows for the planner to care.
 */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import type { NewEvent, ReadRequest } from "../../server/store/events.ts";
import { appendBatch, appendItem } from "../../server/store/postgres/append-batch.ts";
import { createDeploymentRunStore } from "../../server/store/postgres/deployment-runs.ts";
import { createDeploymentStore } from "../../server/store/postgres/deployments.ts";
import { createEventStore } from "../../server/store/postgres/events.ts";
import { createLeaseStore } from "../../server/store/postgres/leases.ts";
import type { Pool, Queryable } from "../../server/store/postgres/pool.ts";
import { createRetentionStore } from "../../server/store/postgres/retention.ts";
import { createSessionStore } from "../../server/store/postgres/sessions.ts";
import { inTransaction } from "../../server/store/postgres/transaction.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { createWorld, type SessionWorld } from "../kit/session-rig.ts";

const SESSIONS = 20_000;
/** Every hundredth session waits for a brain, another hundredth has one. */
const ONE_IN = 100;
const LONG_LOG = 50_000;
const WATCHED = 100;
const REPLICA = "replica_here";
const HARNESS = "harness_here";

let database: TestDatabase;
let pool: Pool;
let world: SessionWorld;
let longSession: string;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = database.pool();
  world = await createWorld(pool);
  longSession = await world.newSession();
  await fillSessions();
  await fillEvents();
  await pool.query("vacuum (analyze) sessions, events");
});

afterAll(() => database?.drop());

async function fillSessions(): Promise<void> {
  await pool.query(
    `insert into sessions (session_id, workspace_id, agent_id, agent_version, agent, environment_id, head, created_at, status,
       running_since, work_position, work_since, lease_id, lease_epoch, lease_harness_id, lease_replica_id, lease_expires_at)
     select 'session_' || n, workspace_id, agent_id, agent_version, agent, environment_id, 3, clock_timestamp(),
       case when leased then 'running' else 'idle' end, case when leased then clock_timestamp() end,
       case when leased or waiting then 3 else 0 end, case when leased or waiting then clock_timestamp() end,
       case when leased then 'lease_' || n end, 1, case when leased then $3 end, case when leased then $4 end,
       case when leased then clock_timestamp() + interval '1 hour' end
     from (select n, n % $2 = 0 as waiting, n % $2 = 1 as leased from generate_series(1, $5::integer) as n) numbers
       cross join (select * from sessions where session_id = $1) template`,
    [longSession, ONE_IN, HARNESS, REPLICA, SESSIONS],
  );
}

/** Three events for each session, and one log that is long. One in ten is a call, one in a thousand the end of a turn. */
async function fillEvents(): Promise<void> {
  const insert = `insert into events (session_id, position, event_id, type, payload)
    select session_id, position, 'event_' || position, case when position % 1000 = 0 then 'session.status_idle'
        when position % 10 = 0 then 'agent.tool_use' else 'agent.message' end, '{"text":"as long as a few words are"}' from `;
  await pool.query(
    `${insert} (select 'session_' || n as session_id, position
       from generate_series(1, $1::integer) as n, generate_series(1, 3) as position) short`,
    [SESSIONS],
  );
  await pool.query(
    `${insert} (select $1::text as session_id, position from generate_series(1, $2::integer) as position) long`,
    [longSession, LONG_LOG],
  );
  await pool.query("update sessions set head = $2 where session_id = $1", [longSession, LONG_LOG]);
}

interface PlanNode {
  readonly "Node Type": string;
  readonly "Relation Name"?: string;
  readonly "Index Name"?: string;
  readonly Plans?: readonly PlanNode[];
}

interface Looked {
  /** Indexes that the plans name, each once. */
  readonly indexes: string[];
  /** Tables that the plans, or the run, read from end to end. */
  readonly readWhole: string[];
}

/** Runs it, its statements explained before they run, and then undone. */
async function look(run: (pool: Pool) => Promise<unknown>): Promise<Looked> {
  const nodes: PlanNode[] = [];
  const readWhole = new Set<string>();
  const undone = new Error("undone");
  await inTransaction(pool, async (transaction) => {
    const before = await scansOf(transaction);
    await run({
      ...pool,
      async query<Row>(sql: string, values?: readonly unknown[]) {
        const { rows } = await transaction.query<{ "QUERY PLAN": string }>(
          `explain (format json) ${sql}`,
          values,
        );
        for (const row of rows) {
          const [explained] = planOf(row["QUERY PLAN"]);
          if (explained) nodes.push(...flat(explained.Plan));
        }
        return transaction.query<Row>(sql, values);
      },
    });
    const after = await scansOf(transaction);
    for (const [table, scans] of after) if (scans > (before.get(table) ?? 0)) readWhole.add(table);
    throw undone;
  }).catch((error: unknown) => {
    if (error !== undone) throw error;
  });
  for (const node of nodes) {
    if (node["Node Type"] === "Seq Scan") readWhole.add(node["Relation Name"] ?? "");
  }
  const indexes = new Set(nodes.flatMap((node) => node["Index Name"] ?? []));
  return { indexes: [...indexes].sort(), readWhole: [...readWhole] };
}

/** `json` comes as the text that was stored, or parsed, depending on the pool. */
function planOf(plan: unknown): { Plan: PlanNode }[] {
  return typeof plan === "string" ? JSON.parse(plan) : (plan as { Plan: PlanNode }[]);
}

function flat(node: PlanNode): PlanNode[] {
  return [node, ...(node.Plans ?? []).flatMap(flat)];
}

/** How often this connection has read the tables from end to end. Counts also what functions did, which no plan shows. */
async function scansOf(db: Queryable): Promise<Map<string, number>> {
  const { rows } = await db.query<{ relname: string; seq_scan: number }>(
    "select relname, seq_scan from pg_stat_xact_user_tables where relname in ('events', 'sessions')",
  );
  return new Map(rows.map((row) => [row.relname, row.seq_scan]));
}

const slice = (over: Partial<ReadRequest> = {}): ReadRequest => ({
  sessionId: longSession,
  afterPosition: 25_000,
  limit: 100,
  maxBytes: 1_000_000,
  inlineLimitBytes: 1_000_000,
  withInternal: false,
  ...over,
});

const event = (): NewEvent => ({
  id: newId("event"),
  type: "acme.noted",
  threadId: "",
  payload: "{}",
  internal: undefined,
});

describe("reading a log", () => {
  test.each<[string, string[], Partial<ReadRequest>]>([
    ["forwards from the middle", ["events_pkey"], {}],
    [
      "backwards from the middle",
      ["events_pkey"],
      { afterPosition: 0, beforePosition: 25_000, descending: true },
    ],
    ["backwards from the end", ["events_pkey"], { afterPosition: 0, descending: true }],
    ["by a type that is rare", ["events_by_type"], { afterPosition: 0, types: ["session.status_idle"] }],
    [
      "by a type that is not there",
      ["events_by_type"],
      { afterPosition: 0, types: ["user.interrupt"], descending: true },
    ],
    [
      "by two types that are rare",
      ["events_by_type"],
      { afterPosition: 0, types: ["session.status_idle", "user.interrupt"] },
    ],
  ])("a slice %s", async (_, indexes, over) => {
    const looked = await look((pool) => createEventStore(pool).read(slice(over)));
    expect(looked.readWhole).toEqual([]);
    expect(looked.indexes).toEqual(expect.arrayContaining(indexes));
  });

  test("an event by its id, the next of some types, and a part of a text", async () => {
    const byId = await look((pool) => createEventStore(pool).positionOf(longSession, "event_25000"));
    expect(byId).toEqual({ indexes: ["events_id"], readWhole: [] });
    const types = ["session.status_idle", "user.message"];
    const next = await look((pool) =>
      createEventStore(pool).firstOfTypes({ sessionId: longSession, afterPosition: 25_000, types }),
    );
    expect(next).toEqual({ indexes: ["events_by_type"], readWhole: [] });
    const text = { eventId: "event_25000", text: "payload", offsetBytes: 0, maxBytes: 10 } as const;
    const part = await look((pool) => createEventStore(pool).readText({ sessionId: longSession, ...text }));
    expect(part).toEqual({ indexes: ["events_id"], readWhole: [] });
  });
});

describe("appending", () => {
  test("one event, and a batch for several sessions, read no table from end to end", async () => {
    const append = (pool: Pool, sessionIds: string[]) => {
      const store = createEventStore(pool, { lanes: 1 });
      return Promise.all(
        sessionIds.map((sessionId) =>
          store.append({ sessionId, events: [event(), event()], authority: "client" }),
        ),
      );
    };
    const one = await look((pool) =>
      createEventStore(pool).append({ sessionId: longSession, events: [event()], authority: "client" }),
    );
    expect(one.readWhole).toEqual([]);
    const several = await look((pool) => append(pool, ["session_2", "session_3", "session_4", longSession]));
    expect(several.readWhole).toEqual([]);
  });

  test("an answer to a call, whose call and other answers are looked for", async () => {
    const answer = { ...event(), type: "user.tool_result", payload: '{"tool_use_id":"event_25010"}' };
    const looked = await look((pool) =>
      createEventStore(pool).append({ sessionId: longSession, events: [answer], authority: "client" }),
    );
    expect(looked.readWhole).toEqual([]);
  });
});

describe("who is the brain", () => {
  test("the sessions that wait for one are found without those that do not", async () => {
    const looked = await look((pool) =>
      createLeaseStore(pool).findWork({ limit: 50, rooms: [{ loop: "claude", workspaceId: undefined }] }),
    );
    // A handful of workspaces is read at one go.
    expect(looked.readWhole.filter((table) => table !== "workspaces")).toEqual([]);
    expect(looked.indexes).toContain("sessions_work_by_workspace");
    const suspects = await look((pool) => createLeaseStore(pool).findSuspects(20));
    expect(suspects).toEqual({ indexes: ["sessions_suspect"], readWhole: [] });
  });

  test("leases are taken, renewed and given back by their ids", async () => {
    const taken = await look((pool) =>
      createLeaseStore(pool).acquire({
        sessionId: "session_100",
        leaseId: newId("lease"),
        harnessId: HARNESS,
        replicaId: REPLICA,
        ttlMs: 30_000,
      }),
    );
    // Of the log only what came since the last holder had the session.
    expect(taken.readWhole).toEqual([]);
    expect(taken.indexes).toContain("sessions_pkey");
    const leaseIds = ["lease_1", "lease_101", "lease_201", "lease_none"];
    const renewed = await look((pool) =>
      createLeaseStore(pool).renew({ leaseIds, harnessId: HARNESS, ttlMs: 30_000 }),
    );
    expect(renewed.readWhole).toEqual([]);
    expect(renewed.indexes).toContain("sessions_leased");
    const released = await look((pool) =>
      createLeaseStore(pool).release({ leaseId: "lease_1", restedPosition: 3n, retryAfterMs: undefined }),
    );
    expect(released).toEqual({ indexes: ["sessions_leased"], readWhole: [] });
  });

  test("sessions whose brain is gone are looked for among those that run (E3)", async () => {
    const looked = await look((pool) =>
      createLeaseStore(pool).findAbandoned({ graceMs: 60_000, limit: 100 }),
    );
    expect(looked).toEqual({ indexes: ["sessions_running"], readWhole: [] });
  });
});

describe("sessions", () => {
  test("where the watched ones, the served ones and the waiting ones stand is one query without the others (R19)", async () => {
    const sessionIds = Array.from({ length: WATCHED }, (_, n) => `session_${n * 7 + 2}`);
    const looked = await look((pool) => createEventStore(pool).heads({ sessionIds, replicaId: REPLICA }));
    expect(looked.readWhole).toEqual([]);
    expect(looked.indexes).toEqual(expect.arrayContaining(["sessions_pkey", "sessions_work"]));
  });

  test("one session, and the newest of a workspace", async () => {
    const one = await look((pool) => createSessionStore(pool).find("session_7"));
    expect(one).toEqual({ indexes: ["sessions_pkey"], readWhole: [] });
    const standing = await look((pool) => createSessionStore(pool).standing("session_7"));
    expect(standing).toEqual({ indexes: ["sessions_pkey"], readWhole: [] });
    const newest = await look((pool) =>
      createSessionStore(pool).list({
        workspaceId: world.workspaceId,
        statuses: [],
        agentId: "",
        includeArchived: false,
        ascending: false,
        createdAtOrAfter: undefined,
        createdBefore: undefined,
        size: 20,
        after: undefined,
      }),
    );
    expect(newest).toEqual({ indexes: ["sessions_list"], readWhole: [] });
  });
});

test("in a new database, whose planner knows nothing yet, an append to a log that grew looks at its own ids alone", async () => {
  const fresh = await createTestDatabase();
  const sessionId = await (await createWorld(fresh.pool())).newSession();
  const connection = await fresh.pool().connect();
  try {
    const append = (...events: NewEvent[]) =>
      appendBatch(connection, [appendItem({ sessionId, events, authority: "client" })], false);
    const call = { ...event(), type: "agent.tool_use", payload: '{"name":"bash","input":{}}' };
    const answer = () => ({ ...event(), type: "user.tool_result", payload: `{"tool_use_id":"${call.id}"}` });
    // What each of them does is planned now, for good.
    await append(event());
    await append(call, event());
    await append(answer());
    await fresh.pool().query(
      `insert into events (session_id, position, event_id, type, payload, answers)
         select $1, n, 'event_' || n, 'acme.noted', '{}', 'call_' || n from generate_series(11, 10010) n`,
      [sessionId],
    );
    await fresh.pool().query("update sessions set head = 10010 where session_id = $1", [sessionId]);
    const fetched = async () => {
      const { rows } = await connection.query<{ fetched: number }>(
        "select idx_tup_fetch as fetched from pg_stat_xact_user_tables where relname = 'events'",
      );
      return rows[0]!.fetched;
    };
    await connection.query("begin");
    await append(event());
    await append(event(), event());
    await append(answer());
    expect(await fetched()).toBeLessThan(100);
    await connection.query("rollback");
  } finally {
    connection.release();
    await fresh.drop();
  }
});

test("sessions that are too old to keep are found past all younger ones", async () => {
  const looked = await look(async (pool) => {
    await pool.query("update workspaces set limits = $2 where workspace_id = $1", [
      world.workspaceId,
      JSON.stringify({ retentionDays: "1" }),
    ]);
    await createRetentionStore(pool).expire(10);
  });
  expect(looked.readWhole).not.toContain("sessions");
  expect(looked.indexes).toEqual(expect.arrayContaining(["sessions_list", "sessions_pkey"]));
});

test("deployments that are due, the sessions of one, and its runs are found without reading all", async () => {
  await pool.query(
    `insert into deployments (deployment_id, workspace_id, agent_id, spec, next_scheduled_at, fires_at)
     select 'depl_' || n, $1, $2, '{}', now() + n * interval '1 minute', now() + n * interval '1 minute'
     from generate_series(-5, 5000) as n`,
    [world.workspaceId, world.agentId],
  );
  await pool.query(
    `insert into deployment_runs (run_id, workspace_id, deployment_id, agent_id, agent_version, session_id)
     select 'drun_' || deployment_id, workspace_id, deployment_id, agent_id, 1, 'sesn_1' from deployments`,
  );
  await pool.query("analyze deployments, deployment_runs");
  const due = await look((pool) => createDeploymentStore(pool).due(new Date(), 20));
  expect(due).toEqual({ indexes: ["deployments_due"], readWhole: [] });
  const page = { size: 20, after: undefined };
  const times = { createdAtOrAfter: undefined, createdBefore: undefined };
  const ofOne = { workspaceId: world.workspaceId, deploymentId: "depl_7", ...times };
  const runs = await look((pool) =>
    createDeploymentRunStore(pool).list({ ...ofOne, hasError: undefined, isScheduled: undefined, page }),
  );
  expect(runs.readWhole).toEqual([]);
  const list = { ...ofOne, statuses: [], agentId: "", includeArchived: false, ascending: false };
  const sessions = await look((pool) =>
    createSessionStore(pool).list({ ...list, size: 20, after: undefined }),
  );
  expect(sessions).toEqual({ indexes: ["sessions_of_deployment"], readWhole: [] });
});

test("a statement that has no index to go by is seen, also inside a function", async () => {
  const plain = await look((pool) => pool.query("select * from sessions where title = 'none'"));
  expect(plain).toEqual({ indexes: [], readWhole: ["sessions"] });
  const inside =
    "select query_to_xml('select count(*) from events where payload = ''none''', true, false, '')";
  expect(await look((pool) => pool.query(inside))).toEqual({ indexes: [], readWhole: ["events"] });
});

/** Calls that workers run: who serves a session, what is offered, what was shown, and how open calls end. */
import { notFound, TendonError } from "../../../kit/errors.ts";
import { newId } from "../../../kit/ids.ts";
import type { LogAdvance } from "../session-append.ts";
import type { CallEnding, OfferedCall, SlotServer, WorkCaller, WorkStore } from "../work.ts";
import { asksFirst, endedWorkerCall, isWorkersCall } from "../worker-calls.ts";
import { appendWithin } from "./append-within.ts";
import { lockSession } from "./hands.ts";
import type { Pool, Queryable } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

export function workerCalls(
  pool: Pool,
): Pick<WorkStore, "slotServer" | "offer" | "endCall" | "show" | "overdue"> {
  return {
    slotServer: (sessionId, slot) => slotServer(pool, sessionId, slot),
    offer: (request) => inTransaction(pool, (transaction) => offer(transaction, request)),
    endCall: (request) => inTransaction(pool, (transaction) => endCall(transaction, request)),
    show: (sessionId, caller, callIds) =>
      inTransaction(pool, (transaction) => show(transaction, sessionId, caller, callIds)),
    async overdue(offeredForMs, limit) {
      const { rows } = await pool.query<{ session_id: string; call_id: string }>(
        `select session_id, call_id from worker_calls c
         where offered_at < clock_timestamp() - $1::bigint * interval '1 millisecond'
           and not exists (select from events e where e.session_id = c.session_id and e.answers = c.call_id)
         order by offered_at limit $2`,
        [offeredForMs, limit],
      );
      return rows.map((row) => ({ sessionId: row.session_id, callId: row.call_id }));
    },
  };
}

async function slotServer(db: Queryable, sessionId: string, slot: string): Promise<SlotServer | undefined> {
  const { rows } = await db.query<{
    workspace_id: string;
    environment_id: string;
    environment: string;
    served_by: "hand_agent" | "worker" | null;
  }>(
    `select s.workspace_id, e.environment_id, e.spec as environment, d.served_by
     from sessions s
       join environments e on e.environment_id =
         coalesce(case when $2 <> '' then s.slot_environment_ids::json ->> $2 end, s.environment_id)
       left join session_servers d on d.session_id = coalesce(s.root_session_id, s.session_id)
     where s.session_id = $1`,
    [sessionId, slot],
  );
  const row = rows[0];
  return (
    row && {
      workspaceId: row.workspace_id,
      environmentId: row.environment_id,
      environment: row.environment,
      servedBy: row.served_by ?? undefined,
    }
  );
}

/** The session and, before it, the root whose log workers read. NOT_FOUND, LEASE_FENCED. */
async function lockTree(
  transaction: Transaction,
  sessionId: string,
  lease: Parameters<typeof lockSession>[2],
): Promise<{ rootId: string; isArchived: boolean; workspaceId: string }> {
  const { rows } = await transaction.query<{ root: string }>(
    "select coalesce(root_session_id, session_id) as root from sessions where session_id = $1",
    [sessionId],
  );
  const rootId = rows[0]?.root;
  if (rootId === undefined) throw notFound("session", sessionId);
  const root = rootId === sessionId ? undefined : await lockSession(transaction, rootId, undefined);
  const session = await lockSession(transaction, sessionId, lease);
  const isArchived = session.archived || root?.archived === true;
  return { rootId, isArchived, workspaceId: session.workspace_id };
}

async function offer(
  transaction: Transaction,
  { sessionId, callId, environmentId, lease, byHandAgent }: Parameters<WorkStore["offer"]>[0],
): Promise<OfferedCall> {
  const { rootId, isArchived, workspaceId } = await lockTree(transaction, sessionId, lease);
  if (isArchived) throw new TendonError("SESSION_ARCHIVED", `session "${sessionId}" is archived`);
  const answer = await answerOf(transaction, sessionId, callId);
  if (answer !== undefined) return { kind: "answered", payload: answer };
  const bound = await transaction.query(
    "select 1 from executions where session_id = $1 and execution_id = $2 and answers_tool_use",
    [sessionId, callId],
  );
  if (bound.rowCount > 0) return { kind: "exists" };
  const servedBy = byHandAgent ? "hand_agent" : "worker";
  await transaction.query(
    "insert into session_servers (session_id, served_by) values ($1, $2) on conflict do nothing",
    [rootId, servedBy],
  );
  if ((await serverOf(transaction, rootId)) === "hand_agent") return { kind: "hand_agent" };
  await transaction.query(
    `insert into worker_calls (session_id, call_id, offered_at) values ($1, $2, clock_timestamp())
     on conflict (session_id, call_id) do update set offered_at = coalesce(worker_calls.offered_at, excluded.offered_at)`,
    [rootId, callId],
  );
  // Workers read the root's log: the relay shows them there what a thread asks for.
  if (rootId !== sessionId) {
    await transaction.query(
      `insert into tree_news (session_id, position) select session_id, position from events
       where session_id = $1 and event_id = $2 on conflict do nothing`,
      [sessionId, callId],
    );
  }
  const item = await ensureWork(transaction, { sessionId: rootId, workspaceId, environmentId });
  return { kind: "offered", environmentId, ...item };
}

/** The session's item, or a new one in the queue. Of a session that is locked. */
export async function ensureWork(
  transaction: Transaction,
  {
    sessionId,
    workspaceId,
    environmentId,
  }: { sessionId: string; workspaceId: string; environmentId: string },
): Promise<{ workId: string; isNew: boolean }> {
  const { rows } = await transaction.query<{ work_id: string }>(
    "select work_id from work_items where session_id = $1 and state <> 'stopped'",
    [sessionId],
  );
  const existing = rows[0]?.work_id;
  if (existing !== undefined) return { workId: existing, isNew: false };
  const workId = newId("work");
  await transaction.query(
    "insert into work_items (work_id, workspace_id, environment_id, session_id) values ($1, $2, $3, $4)",
    [workId, workspaceId, environmentId, sessionId],
  );
  return { workId, isNew: true };
}

async function serverOf(db: Queryable, rootId: string): Promise<string | undefined> {
  const { rows } = await db.query<{ served_by: string }>(
    "select served_by from session_servers where session_id = $1",
    [rootId],
  );
  return rows[0]?.served_by;
}

async function answerOf(db: Queryable, sessionId: string, callId: string): Promise<string | undefined> {
  const { rows } = await db.query<{ payload: string }>(
    "select payload from events where session_id = $1 and answers = $2",
    [sessionId, callId],
  );
  return rows[0]?.payload;
}

async function endCall(
  transaction: Transaction,
  { sessionId, callId, lease, ending }: Parameters<WorkStore["endCall"]>[0],
): ReturnType<WorkStore["endCall"]> {
  const { rootId } = await lockTree(transaction, sessionId, lease);
  if ((await serverOf(transaction, rootId)) !== "worker") return undefined;
  if ((await answerOf(transaction, sessionId, callId)) !== undefined) return { kind: "ended" };
  const { rows } = await transaction.query<{ thread_id: string }>(
    "select thread_id from events where session_id = $1 and event_id = $2 and type = 'agent.tool_use'",
    [sessionId, callId],
  );
  const call = rows[0];
  if (call === undefined) throw notFound("tool use", callId);
  const advance = await answer(transaction, sessionId, [{ callId, threadId: call.thread_id }], ending);
  return { kind: "stored", advance: advance! };
}

/** Of a session that is locked; the last that its transaction does with its log. */
export async function answer(
  transaction: Transaction,
  sessionId: string,
  calls: readonly { callId: string; threadId: string }[],
  ending: CallEnding,
): Promise<LogAdvance | undefined> {
  if (calls.length === 0) return undefined;
  const events = calls.map((call) => endedWorkerCall(call, ending));
  const { advance } = await appendWithin(transaction, { sessionId, authority: "server", events });
  return advance;
}

export interface OpenWorkerCall {
  readonly callId: string;
  readonly threadId: string;
  readonly isOffered: boolean;
  readonly isShown: boolean;
}

/** Calls without a result that a worker may run: what still waits for a client's word is not among them. */
export async function openWorkerCalls(db: Queryable, sessionId: string): Promise<OpenWorkerCall[]> {
  const { rows } = await db.query<{
    event_id: string;
    thread_id: string;
    payload: string;
    offered: boolean;
    shown: boolean;
    allowed: boolean;
  }>(
    `select e.event_id, e.thread_id, e.payload, c.offered_at is not null as offered, c.shown_at is not null as shown,
       exists (select from events a where a.session_id = e.session_id and a.type = 'user.tool_confirmation'
         and a.position > e.position and position(e.event_id in a.payload) > 0 and a.payload ~ '"result"\\s*:\\s*"allow"') as allowed
     from events e left join worker_calls c on c.session_id = e.session_id and c.call_id = e.event_id
     where e.session_id = $1 and e.type = 'agent.tool_use'
       and not exists (select from events r where r.session_id = e.session_id and r.answers = e.event_id)
     order by e.position`,
    [sessionId],
  );
  const runnable = rows.filter(
    ({ payload, allowed }) => isWorkersCall(payload) && (allowed || !asksFirst(payload)),
  );
  return runnable.map((row) => ({
    callId: row.event_id,
    threadId: row.thread_id,
    isOffered: row.offered,
    isShown: row.shown,
  }));
}

/**
 * The item's row is locked from the look at its holder to the note: who loses the item meanwhile loses it after the note,
 * with these calls among those that are answered (W3).
 */
async function show(
  transaction: Transaction,
  sessionId: string,
  caller: Parameters<WorkStore["show"]>[1],
  callIds: readonly string[],
): Promise<Set<string>> {
  const { rows } = await transaction.query<{
    work_id: string;
    holder_claim: number | null;
    fenced_claim: number;
  }>(
    `select work_id, holder_claim, fenced_claim from work_items
     where session_id = $1 and state in ('starting', 'active') for update`,
    [sessionId],
  );
  const work = rows[0];
  if (work === undefined) return new Set();
  const claim = await claimFor(transaction, work.work_id, caller);
  if (claim === undefined || claim <= work.fenced_claim) return new Set();
  if (work.holder_claim === null) {
    await transaction.query("update work_items set holder_claim = $2 where work_id = $1", [
      work.work_id,
      claim,
    ]);
  } else if (work.holder_claim !== claim) return new Set();
  await transaction.query(
    `insert into worker_calls (session_id, call_id, shown_at)
       select $1, call_id, clock_timestamp() from unnest($2::text[]) as call_id
       where not exists (select from events where session_id = $1 and answers = call_id)
     on conflict (session_id, call_id) do update set shown_at = coalesce(worker_calls.shown_at, excluded.shown_at)`,
    [sessionId, callIds],
  );
  return new Set(callIds);
}

/** As who the caller speaks of the item: undefined when it was never given it. */
export async function claimFor(
  db: Queryable,
  workId: string,
  caller: WorkCaller,
): Promise<number | undefined> {
  if (caller.kind === "operator") return undefined;
  if (caller.kind === "claim") return caller.workId === workId ? caller.claim : undefined;
  const { rows } = await db.query<{ claim: number | null }>(
    "select max(claim) as claim from work_claims where work_id = $1 and environment_key_id = $2",
    [workId, caller.environmentKeyId],
  );
  return rows[0]?.claim ?? undefined;
}

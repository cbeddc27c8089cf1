/**
 * Threads in Postgres. Whoever locks several sessions of a tree does so in the order of their ids, in which roots come
 * before threads.
 */
import { NEW_CHAIN, originHash } from "../../../kit/chain/event-hash.ts";
import { notFound, TendonError } from "../../../kit/errors.ts";
import type { Appended, NewEvent } from "../events.ts";
import type { LeaseClaim } from "../hands.ts";
import type { Page } from "../page.ts";
import { leaseFenced, sessionArchived } from "../refusals.ts";
import type { SessionRecord } from "../sessions.ts";
import type { NewThread, ThreadStore, TreeAppend, TreePlace, TreeSums } from "../threads.ts";
import { derivedEventId, receivedEvent, sentEvent, threadIdOf, treeEvent } from "../tree-events.ts";
import { appendWithin } from "./append-within.ts";
import { outcomeWaits } from "./outcome-waits.ts";
import { checkCursor } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { findSession, SESSION_COLUMNS, type SessionRow, toRecord } from "./sessions.ts";
import { threadWaits } from "./thread-waits.ts";
import { inTransaction, type Transaction } from "./transaction.ts";
import { treeNews } from "./tree-news.ts";

const MAX_TREES = 10_000;

export function createThreadStore(pool: Pool): ThreadStore {
  return {
    place: (sessionId) => place(pool, sessionId),
    create: (thread) => inTransaction(pool, (transaction) => create(transaction, thread)),
    madeBefore: (parentSessionId, callId) => madeBefore(pool, parentSessionId, callId),
    send: (request) => inTransaction(pool, (transaction) => send(transaction, request)),
    list: (query) => list(pool, query),
    ...members(pool),
    ...treeNews(pool),
    ...threadWaits(pool),
    ...outcomeWaits(pool),
  };
}

async function place(db: Queryable, sessionId: string): Promise<TreePlace | undefined> {
  const { rows } = await db.query<{
    workspace_id: string;
    root_session_id: string | null;
    parent_session_id: string | null;
    thread_depth: number;
    agent: string;
  }>(
    "select workspace_id, root_session_id, parent_session_id, thread_depth, agent from sessions where session_id = $1",
    [sessionId],
  );
  const row = rows[0];
  return (
    row && {
      sessionId,
      workspaceId: row.workspace_id,
      rootSessionId: row.root_session_id ?? sessionId,
      parentSessionId: row.parent_session_id ?? undefined,
      depth: row.thread_depth,
      agentName: agentNameOf(row.agent),
    }
  );
}

export function agentNameOf(agent: string): string {
  const { spec } = JSON.parse(agent) as { spec?: { name?: string } };
  return spec?.name ?? "";
}

interface LockedMember {
  session_id: string;
  archived: boolean;
  lease_id: string | null;
  lease_epoch: number;
  root_session_id: string | null;
  thread_depth: number;
  agent: string;
}

/** By id. Those that are not there are left out. */
async function lockMembers(
  transaction: Transaction,
  sessionIds: readonly string[],
): Promise<Map<string, LockedMember>> {
  const { rows } = await transaction.query<LockedMember>(
    `select session_id, archived_at is not null as archived, lease_id, lease_epoch, root_session_id, thread_depth, agent
     from sessions where session_id = any($1) order by session_id for no key update`,
    [sessionIds],
  );
  return new Map(rows.map((row) => [row.session_id, row]));
}

/** NOT_FOUND, LEASE_FENCED, SESSION_ARCHIVED, INTERRUPTED. */
async function checkWrites(
  transaction: Transaction,
  sessionId: string,
  member: LockedMember | undefined,
  lease: LeaseClaim,
): Promise<LockedMember> {
  if (member === undefined) throw notFound("session", sessionId);
  if (member.lease_id !== lease.leaseId || BigInt(member.lease_epoch) !== lease.epoch) {
    throw leaseFenced(String(member.lease_epoch));
  }
  if (member.archived) throw sessionArchived(sessionId);
  // Under the lock that an interrupt needs as well: what a stop has not seen yet cannot be made behind its back.
  const { rowCount } = await transaction.query(
    `select 1 from events e where session_id = $1 and type = 'user.interrupt' and thread_id = ''
       and not exists (select 1 from consumed_inputs c where c.session_id = e.session_id and c.event_id = e.event_id) limit 1`,
    [sessionId],
  );
  if (rowCount === 1) throw new TendonError("INTERRUPTED", "the session was interrupted");
  return member;
}

async function create(transaction: Transaction, thread: NewThread): ReturnType<ThreadStore["create"]> {
  const { parentSessionId, threadId } = thread;
  const seen = await place(transaction, parentSessionId);
  if (seen === undefined) throw notFound("session", parentSessionId);
  const { rootSessionId } = seen;
  const members = await lockMembers(transaction, [...new Set([rootSessionId, parentSessionId])]);
  const first = await madeBefore(transaction, parentSessionId, thread.callId);
  if (first !== undefined) return { thread: first, appends: [] };
  const parent = await checkWrites(transaction, parentSessionId, members.get(parentSessionId), thread.lease);
  if (members.get(rootSessionId)?.archived !== false) throw sessionArchived(rootSessionId);
  await checkNumbers(transaction, rootSessionId, thread);
  await transaction.query(
    `insert into sessions (session_id, workspace_id, agent_id, agent_version, agent, environment_id, slot_environment_ids, title,
       vault_ids, resources, root_session_id, parent_session_id, thread_depth, hands_session_id, chain_hash)
     select $1, workspace_id, $3, $4, $5, environment_id, slot_environment_ids, $6, vault_ids, resources, session_id, $7, $8,
       case when $9 then null else session_id end, case when chain_hash is not null then $10::bytea end
     from sessions where session_id = $2`,
    [
      threadId,
      rootSessionId,
      thread.agentId,
      thread.agentVersion,
      thread.agent,
      thread.title,
      parentSessionId,
      parent.thread_depth + 1,
      thread.ownHands,
      Buffer.from(originHash(threadId, NEW_CHAIN), "hex"),
    ],
  );
  const message = {
    causeId: thread.callId,
    content: [{ type: "text", text: thread.message }],
    from: { sessionId: parentSessionId, agentName: agentNameOf(parent.agent) },
    to: { sessionId: threadId, agentName: thread.agentName },
  };
  const created = treeEvent(derivedEventId(thread.callId, "created"), "session.thread_created", {
    session_thread_id: threadId,
    agent_name: thread.agentName,
    workflow_run_id: null,
  });
  const appends = [
    await append(transaction, parentSessionId, [created, sentEvent(message)]),
    await append(transaction, threadId, [receivedEvent(message, { from_parent: true })]),
  ];
  return { thread: (await findSession(transaction, threadId))!, appends };
}

/** What the same call made: its own log says so for ever. */
async function madeBefore(
  db: Queryable,
  parentSessionId: string,
  callId: string,
): Promise<SessionRecord | undefined> {
  const { rows } = await db.query<{ payload: string }>(
    "select payload from events where session_id = $1 and event_id = $2",
    [parentSessionId, derivedEventId(callId, "created")],
  );
  if (rows[0] === undefined) return undefined;
  const { session_thread_id: threadId } = JSON.parse(rows[0].payload) as { session_thread_id: string };
  const thread = await findSession(db, threadId);
  // A fork has the log of threads that are its origin's.
  if (thread === undefined) throw notFound("thread", threadId);
  return thread;
}

async function checkNumbers(
  transaction: Transaction,
  rootSessionId: string,
  { maxThreads, maxLiveThreads }: NewThread,
): Promise<void> {
  const { rows } = await transaction.query<{ made: number; live: number }>(
    `select count(*) as made, count(*) filter (where archived_at is null) as live from sessions where root_session_id = $1`,
    [rootSessionId],
  );
  const { made, live } = rows[0]!;
  if (live >= maxLiveThreads) {
    const why = `the session has ${live} threads at once, which is the most it may; stop one first`;
    throw new TendonError("THREAD_LIMIT_REACHED", why, {
      limit: "max_live_threads",
      most: String(maxLiveThreads),
    });
  }
  if (made >= maxThreads) {
    const why = `the session has made ${made} threads, which is the most it may`;
    throw new TendonError("THREAD_LIMIT_REACHED", why, { limit: "max_threads", most: String(maxThreads) });
  }
}

async function send(
  transaction: Transaction,
  { from, lease, to, sent, received }: Parameters<ThreadStore["send"]>[0],
): Promise<TreeAppend[]> {
  const members = await lockMembers(transaction, [from, to]);
  await checkWrites(transaction, from, members.get(from), lease);
  const target = members.get(to);
  if (target === undefined) throw notFound("thread", threadIdOf(to));
  if (target.archived) {
    if (await wasSent(transaction, from, sent)) return [];
    throw new TendonError(
      "THREAD_STOPPED",
      `the thread "${threadIdOf(to)}" was stopped; it takes no messages`,
      {
        thread_id: threadIdOf(to),
      },
    );
  }
  const events = new Map([
    [from, sent],
    [to, received],
  ]);
  const appends: TreeAppend[] = [];
  for (const sessionId of [from, to].sort()) {
    appends.push(await append(transaction, sessionId, [events.get(sessionId)!]));
  }
  return appends;
}

async function wasSent(db: Queryable, sessionId: string, { id, type, payload }: NewEvent): Promise<boolean> {
  const { rowCount } = await db.query(
    "select 1 from events where session_id = $1 and event_id = $2 and type = $3 and payload = $4",
    [sessionId, id, type, payload],
  );
  return rowCount === 1;
}

async function append(
  transaction: Transaction,
  sessionId: string,
  events: readonly NewEvent[],
): Promise<{ sessionId: string; appended: Appended }> {
  return { sessionId, appended: await appendWithin(transaction, { sessionId, events, authority: "server" }) };
}

async function list(
  db: Queryable,
  { rootSessionId, parentSessionId, includeArchived, size, after }: Parameters<ThreadStore["list"]>[0],
): Promise<Page<SessionRecord>> {
  if (after) checkCursor(after);
  const { rows } = await db.query<SessionRow & { cursor_at: string }>(
    `select ${SESSION_COLUMNS}, created_at::text as cursor_at from sessions
     where root_session_id = $1 and ($2::text is null or parent_session_id = $2) and ($3 or archived_at is null)
       and ($4::text is null or (created_at, session_id) > ($4::timestamptz, $5))
     order by created_at, session_id limit $6`,
    [
      rootSessionId,
      parentSessionId ?? null,
      includeArchived,
      after?.[0] ?? null,
      after?.[1] ?? null,
      size + 1,
    ],
  );
  const shown = rows.slice(0, size);
  const last = rows.length > size ? shown.at(-1) : undefined;
  return { items: shown.map(toRecord), next: last && [last.cursor_at, last.session_id] };
}

/** Goes on by itself, or waits for those that do. */
const IS_ACTIVE = `archived_at is null and (status in ('running', 'rescheduling') or work_position > rested_position
  or exists (select from thread_waits w where w.session_id = s.session_id)
  or exists (select from outcome_waits w where w.session_id = s.session_id))`;
const IS_HELD =
  "archived_at is null and status = 'idle' and stop_reason in ('requires_action', 'budget_reached')";

function members(
  pool: Pool,
): Pick<
  ThreadStore,
  | "liveOfRoot"
  | "liveChildren"
  | "active"
  | "activeInTree"
  | "activeTrees"
  | "isQuiet"
  | "asks"
  | "ofRoot"
  | "orphans"
  | "tree"
> {
  const ids = async (sql: string, values: unknown[]) => {
    const { rows } = await pool.query<{ session_id: string }>(sql, values);
    return rows.map((row) => row.session_id);
  };
  return {
    liveOfRoot: (rootSessionId) =>
      ids(
        `select session_id from sessions where root_session_id = $1 and archived_at is null
         order by thread_depth desc, session_id`,
        [rootSessionId],
      ),
    liveChildren: (parentIds) =>
      ids(
        `select session_id from sessions where parent_session_id = any($1) and archived_at is null and root_session_id in (
           select coalesce(root_session_id, session_id) from sessions where session_id = any($1)
         )`,
        [parentIds],
      ),
    active: (sessionIds, withHeld) =>
      ids(
        `select session_id from sessions s where session_id = any($1) and ((${IS_ACTIVE}) or ($2 and ${IS_HELD}))`,
        [sessionIds, withHeld],
      ),
    activeInTree: (rootSessionId, withHeld) =>
      ids(
        `select session_id from (
           select * from sessions where session_id = $1 union all select * from sessions where root_session_id = $1
         ) s where (${IS_ACTIVE}) or ($2 and ${IS_HELD})`,
        [rootSessionId, withHeld],
      ),
    async activeTrees(workspaceId) {
      const { rows } = await pool.query<{ root: string; ids: string[] }>(
        `select coalesce(root_session_id, session_id) as root, array_agg(session_id) as ids from (
           select session_id, root_session_id, workspace_id from sessions
             where status in ('running', 'rescheduling') and archived_at is null
           union
           select session_id, root_session_id, workspace_id from sessions
             where work_position > rested_position and archived_at is null
           union
           select s.session_id, s.root_session_id, s.workspace_id from thread_waits join sessions s using (session_id)
           union
           select s.session_id, s.root_session_id, s.workspace_id from outcome_waits join sessions s using (session_id)
         ) busy where $1::text is null or workspace_id = $1 group by root order by root limit ${MAX_TREES}`,
        [workspaceId ?? null],
      );
      return rows.map(({ root, ids }) => ({ rootSessionId: root, sessionIds: ids }));
    },
    async isQuiet(rootSessionId) {
      const { rowCount } = await pool.query(
        `select 1 from (
           select * from sessions where session_id = $1 union all select * from sessions where root_session_id = $1
         ) s where archived_at is null
           and (status in ('running', 'rescheduling') or work_position > rested_position) limit 1`,
        [rootSessionId],
      );
      return rowCount === 0;
    },
    async asks(rootSessionId) {
      const { rows } = await pool.query<{ payload: string }>(
        `select said.payload from sessions s, lateral (
           select payload from events where session_id = s.session_id and type = 'session.status_idle'
           order by position desc limit 1
         ) said
         where root_session_id = $1 and archived_at is null and status = 'idle' and stop_reason = 'requires_action'
         order by created_at, session_id`,
        [rootSessionId],
      );
      return rows.flatMap(({ payload }) => awaitedCalls(payload));
    },
    ofRoot: (rootSessionId) =>
      ids(
        "select session_id from sessions where root_session_id = $1 order by thread_depth desc, session_id",
        [rootSessionId],
      ),
    orphans: (limit) =>
      ids(
        `select t.session_id from sessions t join sessions p on p.session_id = t.parent_session_id
         where t.root_session_id is not null and t.archived_at is null and p.archived_at is not null
         order by t.session_id limit $1`,
        [limit],
      ),
    tree: (rootSessionId) => tree(pool, rootSessionId),
  };
}

async function tree(db: Queryable, rootSessionId: string): Promise<TreeSums | undefined> {
  const { rows } = await db.query<Record<string, number>>(
    `select count(root_session_id) as "threads",
       count(root_session_id) filter (where archived_at is null) as "liveThreads",
       count(*) filter (where status = 'running') as "running",
       count(*) filter (where status = 'idle' and stop_reason = 'budget_reached') as "atBudget",
       sum(input_tokens)::bigint as "inputTokens", sum(output_tokens)::bigint as "outputTokens",
       sum(cache_read_input_tokens)::bigint as "cacheReadInputTokens",
       sum(cache_creation_input_tokens)::bigint as "cacheCreationInputTokens",
       sum(model_requests)::bigint as "modelRequests", sum(list_cost_nano_usd)::bigint as "listCostNanoUsd",
       sum(unpriced_requests)::bigint as "unpricedRequests", sum(web_search_requests)::bigint as "webSearchRequests",
       sum(active_ms + coalesce(greatest(0, floor(extract(epoch from clock_timestamp() - running_since) * 1000))::bigint, 0))::bigint
         as "activeMs"
     from (select * from sessions where session_id = $1 union all select * from sessions where root_session_id = $1) t`,
    [rootSessionId],
  );
  const sums = rows[0];
  return sums === undefined || sums.threads === 0 ? undefined : (sums as unknown as TreeSums);
}

/** Of an idle event. */
function awaitedCalls(payload: string): string[] {
  const { stop_reason: reason } = JSON.parse(payload) as { stop_reason?: { event_ids?: unknown } };
  const ids = reason?.event_ids;
  return Array.isArray(ids) ? ids.filter((id): id is string => typeof id === "string") : [];
}

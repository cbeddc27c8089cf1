import { NEW_CHAIN, originHash } from "../../../kit/chain/event-hash.ts";
import { invalidField, notFound, TendonError } from "../../../kit/errors.ts";
import { newId } from "../../../kit/ids.ts";
import type { StatusName } from "../event-facts.ts";
import type { Appended, NewEvent } from "../events.ts";
import { CALL_TYPES, endedCall, type OpenCall } from "../open-calls.ts";
import { endedOutcome } from "../outcomes.ts";
import type { Cursor } from "../page.ts";
import { sessionArchived } from "../refusals.ts";
import { SCOPES } from "../request-ids.ts";
import type {
  ChangedSession,
  NewSession,
  SessionList,
  SessionPage,
  SessionRecord,
  SessionStore,
} from "../sessions.ts";
import { appendWithin } from "./append-within.ts";
import { releaseBlobs } from "./blobs.ts";
import { originOf } from "./chain-origin.ts";
import { eraseLog, giveUpLog } from "./erase-log.ts";
import { copyFiles, releaseFilesOf } from "./files.ts";
import { openOutcome } from "./outcomes.ts";
import { checkCursor } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { hasBegun, isRunning } from "./running-session.ts";
import { endOwnVault, putOwnCredentials } from "./session-vaults.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

const MAX_METADATA_PAIRS = 16;

export function createSessionStore(pool: Pool): SessionStore {
  return {
    create: (session) => inTransaction(pool, (transaction) => createSession(transaction, session)),
    find: (sessionId) => findSession(pool, sessionId),
    standing: (sessionId) => standing(pool, sessionId),
    list: (query) => list(pool, query),
    update: (change) => inTransaction(pool, (transaction) => update(transaction, change)),
    archive: (request) => inTransaction(pool, (transaction) => archive(transaction, request)),
    delete: (sessionId) => erase(pool, sessionId),
  };
}

export interface SessionRow {
  session_id: string;
  workspace_id: string;
  agent: string;
  environment_id: string;
  slot_environment_ids: string;
  title: string;
  metadata: string;
  vault_ids: string[];
  budget: string;
  forked_from_session_id: string;
  forked_from_position: number;
  created_at: Date;
  updated_at: Date;
  archived_at: Date | null;
  head: number;
  status: StatusName;
  stop_reason: string;
  active_ms: number;
  input_tokens: number;
  output_tokens: number;
  cache_read_input_tokens: number;
  cache_creation_input_tokens: number;
  model_requests: number;
  list_cost_nano_usd: number;
  unpriced_requests: number;
  web_search_requests: number;
  has_work: boolean;
  chain_hash: string | null;
  chain_origin: string;
  resources: string;
  root_session_id: string | null;
  parent_session_id: string | null;
  deployment_id: string | null;
}

/** A session whose hash is gone while more says that it had one stays tamper-evident: with a hash that fits nothing. */
export const SESSION_COLUMNS = `session_id, workspace_id, agent, environment_id, slot_environment_ids, title, metadata, vault_ids, budget,
  forked_from_session_id, forked_from_position, created_at, updated_at, archived_at, head, status, stop_reason,
  active_ms + coalesce(greatest(0, floor(extract(epoch from clock_timestamp() - running_since) * 1000))::bigint, 0) as active_ms,
  input_tokens, output_tokens, cache_read_input_tokens, cache_creation_input_tokens, model_requests,
  list_cost_nano_usd, unpriced_requests, web_search_requests, root_session_id, parent_session_id, deployment_id,
  work_position > rested_position and archived_at is null as has_work, chain_origin, resources,
  encode(coalesce(chain_hash, case when chain_origin <> '' or checkpoint_position > 0 then sha256('') end), 'hex') as chain_hash`;

export function toRecord(row: SessionRow): SessionRecord {
  return {
    sessionId: row.session_id,
    workspaceId: row.workspace_id,
    agent: row.agent,
    environmentId: row.environment_id,
    slotEnvironmentIds: JSON.parse(row.slot_environment_ids),
    title: row.title,
    metadata: JSON.parse(row.metadata),
    vaultIds: row.vault_ids,
    budget: row.budget,
    forkedFromSessionId: row.forked_from_session_id,
    forkedFromPosition: row.forked_from_position,
    createdAt: row.created_at,
    updatedAt: row.updated_at,
    archivedAt: row.archived_at ?? undefined,
    head: row.head,
    status: row.status,
    stopReason: row.stop_reason,
    activeMs: row.active_ms,
    inputTokens: row.input_tokens,
    outputTokens: row.output_tokens,
    cacheReadInputTokens: row.cache_read_input_tokens,
    cacheCreationInputTokens: row.cache_creation_input_tokens,
    modelRequests: row.model_requests,
    listCostNanoUsd: row.list_cost_nano_usd,
    unpricedRequests: row.unpriced_requests,
    webSearchRequests: row.web_search_requests,
    hasWork: row.has_work,
    resources: row.resources,
    rootSessionId: row.root_session_id ?? undefined,
    parentSessionId: row.parent_session_id ?? undefined,
    deploymentId: row.deployment_id ?? undefined,
    chain: row.chain_hash === null ? undefined : { hash: row.chain_hash, origin: originOf(row.chain_origin) },
  };
}

export async function findSession(db: Queryable, sessionId: string): Promise<SessionRecord | undefined> {
  const { rows } = await db.query<SessionRow>(
    `select ${SESSION_COLUMNS} from sessions where session_id = $1`,
    [sessionId],
  );
  return rows[0] && toRecord(rows[0]);
}

/** In a transaction that goes on to change the session. NOT_FOUND. */
async function findLocked(transaction: Transaction, sessionId: string): Promise<SessionRecord> {
  const { rows } = await transaction.query<SessionRow>(
    `select ${SESSION_COLUMNS} from sessions where session_id = $1 for no key update`,
    [sessionId],
  );
  if (!rows[0]) throw notFound("session", sessionId);
  return toRecord(rows[0]);
}

async function standing(db: Queryable, sessionId: string) {
  const { rows } = await db.query<{
    workspace_id: string;
    environment_id: string;
    slot_environment_ids: string;
    head: number;
    archived: boolean;
    has_work: boolean;
    lease_id: string | null;
    lease_epoch: number;
    checkpoint_position: number;
  }>(
    `select workspace_id, environment_id, slot_environment_ids, head, archived_at is not null as archived,
       work_position > rested_position and archived_at is null as has_work, lease_id, lease_epoch, checkpoint_position
     from sessions where session_id = $1`,
    [sessionId],
  );
  const row = rows[0];
  return (
    row && {
      workspaceId: row.workspace_id,
      environmentId: row.environment_id,
      slotEnvironmentIds: JSON.parse(row.slot_environment_ids) as Record<string, string>,
      head: row.head,
      archived: row.archived,
      hasWork: row.has_work,
      leaseId: row.lease_id ?? undefined,
      leaseEpoch: BigInt(row.lease_epoch),
      checkpointPosition: row.checkpoint_position,
    }
  );
}

/** In a transaction that may do more. */
export async function createSession(transaction: Transaction, session: NewSession): Promise<ChangedSession> {
  const { sessionId, workspaceId } = session;
  const claim = { ...session.request, workspaceId, scope: SCOPES.session, subjectId: sessionId };
  const first = await claimRequestId(transaction, claim);
  if (first !== undefined) {
    const existing = await findSession(transaction, first);
    if (!existing) throw notFound("session", first);
    return { session: existing, appended: undefined };
  }
  await transaction.query(
    `insert into sessions (session_id, workspace_id, agent_id, agent_version, agent, environment_id, slot_environment_ids,
       title, metadata, vault_ids, budget, resources, deployment_id, chain_hash)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $13, $14,
       (select case when tamper_evident then $12::bytea end from workspaces where workspace_id = $2))`,
    [
      sessionId,
      workspaceId,
      session.agentId,
      session.agentVersion,
      session.agent,
      session.environmentId,
      JSON.stringify(session.slotEnvironmentIds),
      session.title,
      JSON.stringify(session.metadata),
      session.vaultIds,
      session.budget,
      Buffer.from(originHash(sessionId, NEW_CHAIN), "hex"),
      session.resources ?? "[]",
      session.deploymentId ?? null,
    ],
  );
  if (session.memoryStoreIds?.length) {
    await transaction.query(
      "insert into session_memory_stores (session_id, memory_store_id) select $1, unnest($2::text[])",
      [sessionId, session.memoryStoreIds],
    );
  }
  await copyFiles(transaction, { workspaceId, sessionId }, session.files ?? []);
  if (session.ownVault) await putOwnCredentials(transaction, { sessionId, workspaceId }, session.ownVault);
  const appended =
    session.events.length === 0
      ? undefined
      : await appendWithin(transaction, { sessionId, events: session.events, authority: "client" });
  return { session: await findLocked(transaction, sessionId), appended };
}

const STATUS_WITH_WAITING =
  "case when status = 'idle' and stop_reason = 'waiting_for_threads' then 'running' else status end";

async function list(db: Queryable, query: SessionList): Promise<SessionPage> {
  const where: string[] = ["root_session_id is null"];
  const values: unknown[] = [];
  const add = (condition: (parameter: string) => string, value: unknown) => {
    values.push(value);
    where.push(condition(`$${values.length}`));
  };
  if (query.workspaceId !== undefined) add((p) => `workspace_id = ${p}`, query.workspaceId);
  if (query.agentId !== "") add((p) => `agent_id = ${p}`, query.agentId);
  if (query.agentId !== "" && query.agentVersion) add((p) => `agent_version = ${p}`, query.agentVersion);
  if (query.memoryStoreId) {
    const given = "select session_id from session_memory_stores where memory_store_id";
    add((p) => `session_id in (${given} = ${p})`, query.memoryStoreId);
  }
  if (query.deploymentId) add((p) => `deployment_id = ${p}`, query.deploymentId);
  const status = query.waitingIsRunning ? STATUS_WITH_WAITING : "status";
  if (query.statuses.length > 0) add((p) => `${status} = any(${p})`, query.statuses);
  if (!query.includeArchived) where.push("archived_at is null");
  if (query.createdAtOrAfter) add((p) => `created_at >= ${p}`, query.createdAtOrAfter);
  if (query.createdBefore) add((p) => `created_at < ${p}`, query.createdBefore);
  const cursor = query.before ?? query.after;
  const isBack = query.before !== undefined;
  // Backwards the list is read in the opposite order, and shown in its own.
  const ascending = query.ascending !== isBack;
  if (cursor) {
    checkCursor(cursor);
    values.push(...cursor);
    where.push(
      `(created_at, session_id) ${ascending ? ">" : "<"} ($${values.length - 1}::timestamptz, $${values.length})`,
    );
  }
  const order = ascending ? "asc" : "desc";
  const { rows } = await db.query<SessionRow & { cursor_at: string }>(
    `select ${SESSION_COLUMNS}, created_at::text as cursor_at from sessions
     where ${where.join(" and ")}
     order by created_at ${order}, session_id ${order} limit ${query.size + 1}`,
    values,
  );
  const shown = rows.slice(0, query.size);
  if (isBack) shown.reverse();
  const hasMore = rows.length > query.size;
  const cursorOf = (row: (typeof rows)[number] | undefined): Cursor | undefined =>
    row && [row.cursor_at, row.session_id];
  return {
    items: shown.map(toRecord),
    next: isBack || hasMore ? cursorOf(shown.at(-1)) : undefined,
    previous: (isBack ? hasMore : cursor !== undefined) ? cursorOf(shown[0]) : undefined,
  };
}

async function update(transaction: Transaction, change: Parameters<SessionStore["update"]>[0]) {
  const session = await findLocked(transaction, change.sessionId);
  if (session.archivedAt) throw sessionArchived(session.sessionId);
  const title = change.title ?? session.title;
  const metadata = mergeMetadata(session.metadata, change.metadata);
  const budget = change.budget ?? session.budget;
  const agent = await changedAgent(transaction, session, change.agent);
  const changed = {
    ...(title !== session.title && { title }),
    ...(JSON.stringify(metadata) !== JSON.stringify(session.metadata) && { metadata }),
    ...(budget !== session.budget && { budget: JSON.parse(budget) as unknown }),
    ...(agent !== session.agent && { agent: JSON.parse(agent) as unknown }),
  };
  if (Object.keys(changed).length === 0) return { session, appended: undefined };
  await transaction.query(
    "update sessions set title = $2, metadata = $3, budget = $4, agent = $5 where session_id = $1",
    [session.sessionId, title, JSON.stringify(metadata), budget, agent],
  );
  const appended = await appendAsServer(transaction, session.sessionId, [
    ownEvent("session.updated", JSON.stringify(changed)),
  ]);
  const others =
    changed.budget === undefined ? [] : await tellHeldThreads(transaction, session.sessionId, budget);
  return { session: await findLocked(transaction, session.sessionId), appended, others };
}

/** A turn is run with the agent that it began with. */
async function changedAgent(
  transaction: Transaction,
  session: SessionRecord,
  change: Parameters<SessionStore["update"]>[0]["agent"],
): Promise<string> {
  const { sessionId, status, agent } = session;
  if (change === undefined) return agent;
  if (agent !== change.before)
    throw new TendonError("VERSION_MISMATCH", "agent: somebody else has just changed it; try again");
  if (change.after === agent || !(await hasBegun(transaction, session))) return change.after;
  const now = status === "idle" ? "running" : status;
  const why = `the session "${sessionId}" is ${now}; its agent is changed while it is idle`;
  throw new TendonError("SESSION_RUNNING", why, { session_id: sessionId });
}

/** Threads that rest because the budget was spent look whether they may go on; those that work may be about to rest. */
async function tellHeldThreads(transaction: Transaction, rootSessionId: string, budget: string) {
  const { rows } = await transaction.query<{ session_id: string }>(
    `select session_id from sessions where root_session_id = $1 and archived_at is null
       and (stop_reason = 'budget_reached' or status <> 'idle' or work_position > rested_position)
     order by session_id for no key update`,
    [rootSessionId],
  );
  const payload = JSON.stringify({ budget: JSON.parse(budget) as unknown });
  const others: { sessionId: string; appended: Appended }[] = [];
  for (const { session_id: sessionId } of rows) {
    const appended = await appendAsServer(transaction, sessionId, [ownEvent("session.updated", payload)]);
    others.push({ sessionId, appended });
  }
  return others;
}

function mergeMetadata(
  old: Readonly<Record<string, string>>,
  change: Readonly<Record<string, string>>,
): Record<string, string> {
  const merged = new Map(Object.entries(old));
  for (const [key, value] of Object.entries(change)) {
    if (value === "") merged.delete(key);
    else merged.set(key, value);
  }
  if (merged.size > MAX_METADATA_PAIRS) {
    throw invalidField(
      "metadata",
      `the session would have ${merged.size} pairs, at most ${MAX_METADATA_PAIRS}`,
    );
  }
  return Object.fromEntries(merged);
}

async function archive(transaction: Transaction, request: Parameters<SessionStore["archive"]>[0]) {
  const { sessionId, interrupt, openCallText } = request;
  const session = await findLocked(transaction, sessionId);
  if (session.archivedAt) return { session, appended: undefined };
  if (!interrupt && (await isRunning(transaction, session))) {
    throw new TendonError(
      "SESSION_RUNNING",
      `the session "${sessionId}" is running; set interrupt to end it anyway`,
      { session_id: sessionId },
    );
  }
  const calls = await openCalls(transaction, sessionId);
  const outcome = await openOutcome(transaction, sessionId);
  const appended = await appendAsServer(transaction, sessionId, [
    ...calls.map((call) => endedCall(call, openCallText, "SESSION_ARCHIVED")),
    ...(outcome === undefined ? [] : [endedOutcome(outcome, "The session was archived.")]),
    ownEvent("session.status_terminated", "{}"),
  ]);
  await transaction.query("update sessions set archived_at = clock_timestamp() where session_id = $1", [
    sessionId,
  ]);
  await stopWorkOf(transaction, sessionId);
  await endOwnVault(transaction, session);
  return { session: await findLocked(transaction, sessionId), appended };
}

/** Its worker hears of it with its next heartbeat. */
async function stopWorkOf(transaction: Transaction, sessionId: string): Promise<void> {
  await transaction.query(
    `update work_items set state = 'stopped', stop_requested_at = coalesce(stop_requested_at, clock_timestamp()),
       stopped_at = clock_timestamp(), lease_expires_at = null, fenced_claim = claim
     where session_id = $1 and state <> 'stopped'`,
    [sessionId],
  );
}

/** The row first: nobody can append any more. Events hang on it by their id alone and follow in batches. */
async function erase(pool: Pool, sessionId: string): Promise<boolean> {
  const erased = await inTransaction(pool, async (transaction) => {
    const found = await transaction.query(
      "select 1 from sessions where session_id = $1 and archived_at is not null for update",
      [sessionId],
    );
    if (found.rowCount === 0) return false;
    await releaseFilesOf(transaction, sessionId);
    const { rows } = await transaction.query<{ workspace_id: string }>(
      "delete from sessions where session_id = $1 returning workspace_id",
      [sessionId],
    );
    const workspaceId = rows[0]?.workspace_id;
    if (workspaceId === undefined) return false;
    await giveUpLog(transaction, sessionId);
    await releaseBlobs(transaction, { workspaceId, owner: sessionId });
    return true;
  });
  if (erased) await eraseLog(pool, sessionId);
  return erased;
}

export async function openCalls(db: Queryable, sessionId: string): Promise<OpenCall[]> {
  const { rows } = await db.query<{ event_id: string; type: string; thread_id: string }>(
    `select event_id, type, thread_id from events e where session_id = $1 and type = any($2)
       and not exists (select 1 from events a where a.session_id = e.session_id and a.answers = e.event_id)
     order by position`,
    [sessionId, CALL_TYPES],
  );
  return rows.map((row) => ({ eventId: row.event_id, type: row.type, threadId: row.thread_id }));
}

function appendAsServer(
  transaction: Transaction,
  sessionId: string,
  events: readonly NewEvent[],
): Promise<Appended> {
  return appendWithin(transaction, { sessionId, events, authority: "server" });
}

function ownEvent(type: string, payload: string): NewEvent {
  return { id: newId("event"), type, threadId: "", payload, internal: undefined };
}

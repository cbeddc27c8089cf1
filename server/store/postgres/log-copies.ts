import type { ChainOrigin } from "../../../kit/chain/event-hash.ts";
import { type FailureOrigin, notFound, TendonError } from "../../../kit/errors.ts";
import { newId } from "../../../kit/ids.ts";
import type { NewEvent } from "../events.ts";
import type { ForkRequest, ImportedSession, LogCopyStore } from "../log-copies.ts";
import { endedCall } from "../open-calls.ts";
import { SCOPES } from "../request-ids.ts";
import type { ChangedSession } from "../sessions.ts";
import { appendWithin } from "./append-within.ts";
import { addCopied, EVENT_COLUMNS } from "./copied-events.ts";
import { forkFiles } from "./files.ts";
import { type LogStanding, standingOf } from "./log-standing.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId, wasAsked } from "./request-ids.ts";
import { findSession } from "./sessions.ts";
import { inTransaction, type Transaction } from "./transaction.ts";
import { advanceChain, beginLog, CHAIN_OF_COPY, closeLog, discardLog, touchLog } from "./unfinished-logs.ts";

/** A batch takes some 50 ms; a hundred thousand events a few seconds. */
const BATCH_EVENTS = 2_000;

export function createLogCopyStore(pool: Pool): LogCopyStore {
  return {
    fork: (request) => fork(pool, request),
    wasImported: (workspaceId, requestId) => wasAsked(pool, { scope: SCOPES.import, workspaceId, requestId }),
    begin: ({ sessionId, workspaceId, origin }) => beginLog(pool, sessionId, workspaceId, origin),
    add: (sessionId, events) =>
      inTransaction(pool, (transaction) => addCopied(transaction, sessionId, events)),
    async finish(session) {
      const made = await inTransaction(pool, (transaction) => finishImport(transaction, session));
      if (made.session.sessionId !== session.sessionId) await discardLog(pool, session.sessionId);
      return made;
    },
    discard: (sessionId) => discardLog(pool, sessionId),
  };
}

async function fork(pool: Pool, request: ForkRequest): Promise<ChangedSession> {
  const { sessionId, position, workspaceId } = request;
  const known = await wasAsked(pool, { ...request.request, scope: SCOPES.fork, workspaceId });
  await beginLog(pool, sessionId, workspaceId, await forkOrigin(pool, request));
  try {
    let copied = 0;
    for (let after = 0; after < position && !known; after += BATCH_EVENTS) {
      const upTo = Math.min(position, after + BATCH_EVENTS);
      copied += await inTransaction(pool, (transaction) => copy(transaction, request, after, upTo));
    }
    const complete = copied === position;
    const made = await inTransaction(pool, (transaction) => finishFork(transaction, request, complete));
    if (made.session.sessionId !== sessionId) await discardLog(pool, sessionId);
    return made;
  } catch (error) {
    // What cannot be erased now is erased later.
    await discardLog(pool, sessionId).catch(() => {});
    throw error;
  }
}

async function forkOrigin(db: Queryable, { originSessionId, position }: ForkRequest): Promise<ChainOrigin> {
  const { rows } = await db.query<{ hash: Buffer | null }>(
    "select hash from events where session_id = $1 and position = $2",
    [originSessionId, position],
  );
  return { kind: "fork", sessionId: originSessionId, position, hash: rows[0]?.hash?.toString("hex") ?? "" };
}

async function copy(
  transaction: Transaction,
  { sessionId, originSessionId }: ForkRequest,
  after: number,
  upTo: number,
): Promise<number> {
  const chain = await touchLog(transaction, sessionId);
  const hash =
    chain === null
      ? "$5::bytea"
      : `event_chain($5::bytea, $1::text, position, event_id, type, created_at, thread_id, payload, internal)
           over (order by position)`;
  const { rowCount } = await transaction.query(
    `insert into events (session_id, ${EVENT_COLUMNS}, hash) select $1, ${EVENT_COLUMNS}, ${hash} from events
         where session_id = $2 and position > $3 and position <= $4
         order by position`,
    [sessionId, originSessionId, after, upTo, chain],
  );
  if (chain !== null) {
    const { rows } = await transaction.query<{ hash: Buffer }>(
      "select hash from events where session_id = $1 and position = $2",
      [sessionId, upTo],
    );
    if (rows[0]) await advanceChain(transaction, sessionId, rows[0].hash);
  }
  return rowCount;
}

async function finishFork(
  transaction: Transaction,
  request: ForkRequest,
  complete: boolean,
): Promise<ChangedSession> {
  const { sessionId, workspaceId, originSessionId, position } = request;
  const claim = { ...request.request, workspaceId, scope: SCOPES.fork, subjectId: sessionId };
  const first = await claimRequestId(transaction, claim);
  if (first !== undefined) return earlier(transaction, first);
  // Until the end of this transaction nobody deletes the origin: nothing was missing from what was copied.
  const { rowCount } = await transaction.query(
    `insert into sessions (session_id, workspace_id, agent_id, agent_version, agent, environment_id, slot_environment_ids,
       title, metadata, vault_ids, budget, resources, forked_from_session_id, forked_from_position, head, chain_hash,
       chain_origin)
     select $1, workspace_id, agent_id, agent_version, agent, environment_id, slot_environment_ids,
       coalesce($3, title), metadata, $4, $5, resources, session_id, $6, $6, ${CHAIN_OF_COPY} from sessions where session_id = $2
       for key share`,
    [sessionId, originSessionId, request.title ?? null, request.vaultIds, request.budget, position],
  );
  if (rowCount === 0) throw notFound("session", originSessionId);
  // A repeat copies nothing: the first fork is what it gets.
  if (!complete) throw new TendonError("UNAVAILABLE", "the request id was just forgotten; try again");
  await closeLog(transaction, sessionId);
  await transaction.query(
    `insert into consumed_inputs (session_id, event_id, position)
       select $1, event_id, position from consumed_inputs where session_id = $2 and position <= $3`,
    [sessionId, originSessionId, position],
  );
  await transaction.query(
    `insert into session_memory_stores (session_id, memory_store_id)
       select $1, memory_store_id from session_memory_stores where session_id = $2`,
    [sessionId, originSessionId],
  );
  await transaction.query(
    `insert into session_slots (session_id, slot, tools_digest)
       select $1, slot, tools_digest from session_slots where session_id = $2`,
    [sessionId, originSessionId],
  );
  await forkFiles(transaction, { workspaceId, sessionId });
  const standing = await standingOf(transaction, sessionId);
  const payload = JSON.stringify({ origin_session_id: originSessionId, position });
  const events = [
    ownEvent("session.forked", payload),
    ...endings(
      standing,
      "SESSION_FORKED",
      "forked before it ended",
      "it belongs to the session that this one was forked from",
    ),
  ];
  const appended = await appendWithin(transaction, { sessionId, events, authority: "server" });
  const hasWork = standing.hasWork || standing.openCalls.length > 0;
  await rest(transaction, sessionId, hasWork ? standing.restedPosition : appended.head, hasWork);
  return { session: (await findSession(transaction, sessionId))!, appended: { ...appended, hasWork } };
}

async function finishImport(transaction: Transaction, session: ImportedSession): Promise<ChangedSession> {
  const { sessionId, workspaceId, fold } = session;
  const claim = { ...session.request, workspaceId, scope: SCOPES.import, subjectId: sessionId };
  const first = await claimRequestId(transaction, claim);
  if (first !== undefined) return earlier(transaction, first);
  const [input, output, cacheRead, cacheCreation] = fold.tokens;
  await transaction.query(
    `insert into sessions (session_id, workspace_id, agent_id, agent_version, agent, environment_id, slot_environment_ids,
       title, metadata, vault_ids, budget, head, status, stop_reason, active_ms, model_requests,
       input_tokens, output_tokens, cache_read_input_tokens, cache_creation_input_tokens,
       list_cost_nano_usd, unpriced_requests, web_search_requests, chain_hash, chain_origin)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
       $23, ${CHAIN_OF_COPY})`,
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
      session.head,
      fold.status === "terminated" ? "terminated" : "idle",
      fold.stopReason,
      fold.activeMs,
      fold.modelRequests,
      input,
      output,
      cacheRead,
      cacheCreation,
      fold.listCostNanoUsd,
      fold.unpricedRequests,
      fold.webSearchRequests,
    ],
  );
  await closeLog(transaction, sessionId);
  await transaction.query(
    `insert into consumed_inputs (session_id, event_id, position)
       select $1, u.id, u.position from unnest($2::text[], $3::bigint[]) as u(id, position)`,
    [sessionId, [...fold.consumed.keys()], [...fold.consumed.values()]],
  );
  const appended = session.archived ? undefined : await appendEndings(transaction, sessionId);
  await rest(transaction, sessionId, appended?.head ?? session.head, false);
  // It rests without an event that says so.
  await transaction.query(
    `insert into checkpoints (session_id, position)
       select session_id, head from sessions where session_id = $1 and chain_hash is not null and head > 0`,
    [sessionId],
  );
  if (session.archived) {
    await transaction.query("update sessions set archived_at = clock_timestamp() where session_id = $1", [
      sessionId,
    ]);
  }
  const made = (await findSession(transaction, sessionId))!;
  return { session: made, appended: appended && { ...appended, hasWork: false } };
}

async function appendEndings(transaction: Transaction, sessionId: string) {
  const standing = await standingOf(transaction, sessionId);
  const events = endings(
    standing,
    "SESSION_IMPORTED",
    "imported before it ended",
    "it did not come with the imported log",
  );
  if (events.length === 0) return undefined;
  return appendWithin(transaction, { sessionId, events, authority: "server" });
}

/** X3, H2: what was open or alive where the log comes from is not here. */
function endings(
  { openCalls, liveHands }: LogStanding,
  reason: "SESSION_FORKED" | "SESSION_IMPORTED",
  callText: string,
  handText: string,
): NewEvent[] {
  const failure: FailureOrigin = { part: "client", reason };
  return [
    ...openCalls.map((call) => endedCall(call, callText, reason)),
    ...liveHands.map(({ handId, slot }) =>
      ownEvent("hand.lost", JSON.stringify({ hand_id: handId, slot, detail: handText, failure })),
    ),
  ];
}

function ownEvent(type: string, payload: string): NewEvent {
  return { id: newId("event"), type, threadId: "", payload, internal: undefined };
}

async function earlier(transaction: Transaction, sessionId: string): Promise<ChangedSession> {
  const session = await findSession(transaction, sessionId);
  if (!session) throw notFound("session", sessionId);
  return { session, appended: undefined };
}

/** Says up to where a brain is through; behind it, and only with work, a brain is asked for. */
async function rest(
  transaction: Transaction,
  sessionId: string,
  restedPosition: number,
  hasWork: boolean,
): Promise<void> {
  await transaction.query(
    `update sessions set rested_position = $2, work_position = case when $3 then head else 0 end,
       work_since = case when $3 then clock_timestamp() end where session_id = $1`,
    [sessionId, restedPosition, hasWork],
  );
}

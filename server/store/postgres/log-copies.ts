import { type ChainOrigin, eventHash, originHash, sha256Hex } from "../../../kit/chain/event-hash.ts";
import { notFound, TendonError } from "../../../kit/errors.ts";
import { newId } from "../../../kit/ids.ts";
import type { NewEvent } from "../events.ts";
import type { CopiedEvent, ForkRequest, ImportedSession, LogCopyStore } from "../log-copies.ts";
import { endedCall } from "../open-calls.ts";
import type { ChangedSession } from "../sessions.ts";
import { appendWithin } from "./append-within.ts";
import { eraseLog } from "./erase-log.ts";
import { type LogStanding, standingOf } from "./log-standing.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { findSession } from "./sessions.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

/** A batch takes some 50 ms; a hundred thousand events a few seconds. */
const BATCH_EVENTS = 2_000;

const FORK_SCOPE = "fork";
const IMPORT_SCOPE = "import";

export function createLogCopyStore(pool: Pool): LogCopyStore {
  return {
    fork: (request) => fork(pool, request),
    wasImported: (workspaceId, requestId) => wasMade(pool, IMPORT_SCOPE, workspaceId, requestId),
    begin: ({ sessionId, workspaceId, origin }) => begin(pool, sessionId, workspaceId, origin),
    add: (sessionId, events) => inTransaction(pool, (transaction) => add(transaction, sessionId, events)),
    async finish(session) {
      const made = await inTransaction(pool, (transaction) => finishImport(transaction, session));
      if (made.session.sessionId !== session.sessionId) await discard(pool, session.sessionId);
      return made;
    },
    discard: (sessionId) => discard(pool, sessionId),
  };
}

async function wasMade(
  db: Queryable,
  scope: string,
  workspaceId: string,
  requestId: string,
): Promise<boolean> {
  if (requestId === "") return false;
  const { rows } = await db.query(
    "select 1 from request_ids where workspace_id = $1 and scope = $2 and request_id = $3",
    [workspaceId, scope, requestId],
  );
  return rows.length > 0;
}

/** Whether the copy is hashed is decided here, once: it is from its first event on, or not at all. */
async function begin(
  pool: Pool,
  sessionId: string,
  workspaceId: string,
  origin: ChainOrigin,
): Promise<boolean> {
  const { rows } = await pool.query<{ hashed: boolean }>(
    `insert into unfinished_logs (session_id, chain_hash, chain_origin)
       select $1, case when tamper_evident then $3::bytea end, case when tamper_evident then $4 else '' end
         from (values (1)) one left join workspaces on workspace_id = $2
       returning chain_hash is not null as hashed`,
    [sessionId, workspaceId, Buffer.from(originHash(sessionId, origin), "hex"), JSON.stringify(origin)],
  );
  return rows[0]!.hashed;
}

/**
 * In every transaction that writes: two never write at once, and nobody writes what is being erased. Gives the hash of the
 * newest event; null when the copy is not hashed.
 */
async function touch(transaction: Transaction, sessionId: string): Promise<Buffer | null> {
  const { rows } = await transaction.query<{ chain_hash: Buffer | null }>(
    `update unfinished_logs set touched_at = clock_timestamp() where session_id = $1 and not erasing returning chain_hash`,
    [sessionId],
  );
  if (!rows[0]) throw new TendonError("UNAVAILABLE", "the copy took too long; start again");
  return rows[0].chain_hash;
}

/** Nothing once the log is a session's: then it is not unfinished any more. */
async function discard(pool: Pool, sessionId: string): Promise<void> {
  const { rowCount } = await pool.query(
    "update unfinished_logs set erasing = true, touched_at = clock_timestamp() where session_id = $1",
    [sessionId],
  );
  if (rowCount > 0) await eraseLog(pool, sessionId);
}

async function fork(pool: Pool, request: ForkRequest): Promise<ChangedSession> {
  const { sessionId, position, workspaceId } = request;
  const known = await wasMade(pool, FORK_SCOPE, workspaceId, request.request.requestId);
  await begin(pool, sessionId, workspaceId, await forkOrigin(pool, request));
  try {
    let copied = 0;
    for (let after = 0; after < position && !known; after += BATCH_EVENTS) {
      const upTo = Math.min(position, after + BATCH_EVENTS);
      copied += await inTransaction(pool, (transaction) => copy(transaction, request, after, upTo));
    }
    const complete = copied === position;
    const made = await inTransaction(pool, (transaction) => finishFork(transaction, request, complete));
    if (made.session.sessionId !== sessionId) await discard(pool, sessionId);
    return made;
  } catch (error) {
    // What cannot be erased now is erased later.
    await discard(pool, sessionId).catch(() => {});
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
  const chain = await touch(transaction, sessionId);
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
    await transaction.query(
      `update unfinished_logs set chain_hash = e.hash from events e
         where unfinished_logs.session_id = $1 and e.session_id = $1 and e.position = $2`,
      [sessionId, upTo],
    );
  }
  return rowCount;
}

async function finishFork(
  transaction: Transaction,
  request: ForkRequest,
  complete: boolean,
): Promise<ChangedSession> {
  const { sessionId, workspaceId, originSessionId, position } = request;
  const claim = { ...request.request, workspaceId, scope: FORK_SCOPE, subjectId: sessionId };
  const first = await claimRequestId(transaction, claim);
  if (first !== undefined) return earlier(transaction, first);
  // Until the end of this transaction nobody deletes the origin: nothing was missing from what was copied.
  const { rowCount } = await transaction.query(
    `insert into sessions (session_id, workspace_id, agent_id, agent_version, agent, environment_id, slot_environment_ids,
       title, metadata, vault_ids, budget, forked_from_session_id, forked_from_position, head, chain_hash, chain_origin)
     select $1, workspace_id, agent_id, agent_version, agent, environment_id, slot_environment_ids,
       coalesce($3, title), metadata, $4, $5, session_id, $6, $6, ${CHAIN_OF_COPY} from sessions where session_id = $2
       for key share`,
    [sessionId, originSessionId, request.title ?? null, request.vaultIds, request.budget, position],
  );
  if (rowCount === 0) throw notFound("session", originSessionId);
  // A repeat copies nothing: the first fork is what it gets.
  if (!complete) throw new TendonError("UNAVAILABLE", "the request id was just forgotten; try again");
  await close(transaction, sessionId);
  await transaction.query(
    `insert into consumed_inputs (session_id, event_id, position)
       select $1, event_id, position from consumed_inputs where session_id = $2 and position <= $3`,
    [sessionId, originSessionId, position],
  );
  await transaction.query(
    `insert into session_slots (session_id, slot, tools_digest)
       select $1, slot, tools_digest from session_slots where session_id = $2`,
    [sessionId, originSessionId],
  );
  const standing = await standingOf(transaction, sessionId);
  const payload = JSON.stringify({ origin_session_id: originSessionId, position });
  const events = [
    ownEvent("session.forked", payload),
    ...endings(standing, "forked before it ended", "it belongs to the session that this one was forked from"),
  ];
  const appended = await appendWithin(transaction, { sessionId, events, authority: "server" });
  const hasWork = standing.hasWork || standing.openCalls.length > 0;
  await rest(transaction, sessionId, hasWork ? standing.restedPosition : appended.head, hasWork);
  return { session: (await findSession(transaction, sessionId))!, appended: { ...appended, hasWork } };
}

/** Of the copy that becomes the session $1. */
const CHAIN_OF_COPY = `(select u.chain_hash from unfinished_logs u where u.session_id = $1),
  coalesce((select u.chain_origin from unfinished_logs u where u.session_id = $1), '')`;

async function add(
  transaction: Transaction,
  sessionId: string,
  events: readonly CopiedEvent[],
): Promise<number | undefined> {
  const chain = await touch(transaction, sessionId);
  const twice = firstTwice(events) ?? (await firstKnown(transaction, sessionId, events));
  if (twice !== undefined) return twice;
  const hashed = hashAll(chain, sessionId, events);
  const isLarge = ({ payload, internal = "" }: CopiedEvent) =>
    payload.length + internal.length > LARGE_TEXT_CHARS;
  await insertMany(
    transaction,
    sessionId,
    hashed.filter((event) => !isLarge(event)),
  );
  for (const event of hashed.filter(isLarge)) {
    await transaction.query(
      `insert into events (session_id, ${EVENT_COLUMNS}, hash) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
      [sessionId, ...valuesOf(event)],
    );
  }
  if (chain !== null) {
    await transaction.query("update unfinished_logs set chain_hash = $2 where session_id = $1", [
      sessionId,
      hashed.at(-1)?.hash ?? chain,
    ]);
  }
  return undefined;
}

interface StoredEvent extends CopiedEvent {
  readonly hash: Buffer | null;
}

/** Events may come from a log that had hashes: those are not its hashes here. */
function hashAll(chain: Buffer | null, sessionId: string, events: readonly CopiedEvent[]): StoredEvent[] {
  if (chain === null) return events.map((event) => ({ ...event, hash: null }));
  let previous = chain.toString("hex");
  return events.map((event) => {
    const { payload, internal } = event;
    const internalSha256 = internal === undefined ? undefined : sha256Hex(internal);
    previous = eventHash(previous, sessionId, {
      ...event,
      payloadSha256: sha256Hex(payload),
      internalSha256,
    });
    return { ...event, hash: Buffer.from(previous, "hex") };
  });
}

/** As part of an array, a text is escaped, sent and taken apart again: ten times the work of a parameter by itself. */
const LARGE_TEXT_CHARS = 64 * 1024;

const EVENT_COLUMNS = "position, event_id, type, thread_id, payload, internal, answers, created_at";

function valuesOf(event: StoredEvent): unknown[] {
  const { position, id, type, threadId, payload, internal, answers, createdAt, hash } = event;
  return [position, id, type, threadId, payload, internal ?? null, answers ?? null, createdAt, hash];
}

async function insertMany(
  transaction: Transaction,
  sessionId: string,
  events: readonly StoredEvent[],
): Promise<void> {
  const rows = events.map(valuesOf);
  const columns = `${EVENT_COLUMNS}, hash`.split(", ").map((_, column) => rows.map((row) => row[column]));
  await transaction.query(
    `insert into events (session_id, ${EVENT_COLUMNS}, hash) select $1, u.* from unnest($2::bigint[], $3::text[], $4::text[],
       $5::text[], $6::text[], $7::text[], $8::text[], $9::timestamptz[], $10::bytea[]) as u`,
    [sessionId, ...columns],
  );
}

function firstTwice(events: readonly CopiedEvent[]): number | undefined {
  const seen = new Set<string>();
  for (const { id, answers, position } of events) {
    const names = answers === undefined ? [id] : [id, `answers ${answers}`];
    if (names.some((name) => seen.has(name))) return position;
    for (const name of names) seen.add(name);
  }
  return undefined;
}

async function firstKnown(
  transaction: Transaction,
  sessionId: string,
  events: readonly CopiedEvent[],
): Promise<number | undefined> {
  const { rows } = await transaction.query<{ position: number | null }>(
    `select min(u.position) as position from unnest($2::bigint[], $3::text[], $4::text[]) as u(position, id, answers)
       where exists (select 1 from events where session_id = $1 and event_id = u.id)
         or exists (select 1 from events where session_id = $1 and answers = u.answers)`,
    [
      sessionId,
      events.map(({ position }) => position),
      events.map(({ id }) => id),
      events.map(({ answers }) => answers ?? null),
    ],
  );
  return rows[0]?.position ?? undefined;
}

async function finishImport(transaction: Transaction, session: ImportedSession): Promise<ChangedSession> {
  const { sessionId, workspaceId, fold } = session;
  const claim = { ...session.request, workspaceId, scope: IMPORT_SCOPE, subjectId: sessionId };
  const first = await claimRequestId(transaction, claim);
  if (first !== undefined) return earlier(transaction, first);
  const [input, output, cacheRead, cacheCreation] = fold.tokens;
  await transaction.query(
    `insert into sessions (session_id, workspace_id, agent_id, agent_version, agent, environment_id, slot_environment_ids,
       title, metadata, vault_ids, budget, head, status, stop_reason, active_ms, model_requests,
       input_tokens, output_tokens, cache_read_input_tokens, cache_creation_input_tokens, chain_hash, chain_origin)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, ${CHAIN_OF_COPY})`,
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
    ],
  );
  await close(transaction, sessionId);
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
  const events = endings(standing, "imported before it ended", "it did not come with the imported log");
  if (events.length === 0) return undefined;
  return appendWithin(transaction, { sessionId, events, authority: "server" });
}

/** X3, H2: what was open or alive where the log comes from is not here. */
function endings({ openCalls, liveHands }: LogStanding, callText: string, handText: string): NewEvent[] {
  return [
    ...openCalls.map((call) => endedCall(call, callText)),
    ...liveHands.map(({ handId, slot }) =>
      ownEvent("hand.lost", JSON.stringify({ hand_id: handId, slot, detail: handText })),
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

/** The log is a session's from now on. */
async function close(transaction: Transaction, sessionId: string): Promise<void> {
  await touch(transaction, sessionId);
  await transaction.query("delete from unfinished_logs where session_id = $1", [sessionId]);
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

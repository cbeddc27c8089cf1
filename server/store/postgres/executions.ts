/** Executions in Postgres. Every transaction locks the session's row first, then the execution's. */
import { TendonError } from "../../../kit/errors.ts";
import type { Bound, CallRecord, Concluded, ExecutionRecord, ExecutionStore } from "../executions.ts";
import type { LogAdvance } from "../session-append.ts";
import { bindKnown, finishAtOnce, hashOfInput } from "./calls-at-once.ts";
import { appendToLog } from "./hand-log.ts";
import { lockSession } from "./hands.ts";
import type { Pool, Queryable } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";
import { unheardCalls } from "./unheard-calls.ts";

const COLUMNS = `execution_key, workspace_id, session_id, execution_id, hand_id, hand_agent_id, journal_id, owner_number, name, input,
  timeout_ms, bound_at, answers_tool_use, slot, notice, stop_requested_at, stop_reason, result`;

interface ExecutionRow {
  execution_key: string;
  workspace_id: string;
  session_id: string | null;
  execution_id: string;
  hand_id: string | null;
  hand_agent_id: string | null;
  journal_id: string | null;
  owner_number: number;
  name: string;
  input: string;
  timeout_ms: number;
  bound_at: Date;
  answers_tool_use: boolean;
  slot: string;
  notice: string;
  stop_requested_at: Date | null;
  stop_reason: string;
  result: string | null;
}

export function createExecutionStore(pool: Pool): ExecutionStore {
  return {
    find: (executionKey) => find(pool, executionKey),
    async toolUse(sessionId, eventId) {
      const { rows } = await pool.query<{
        workspace_id: string;
        type: string;
        payload: string;
        answer: string | null;
        lease_id: string | null;
        lease_epoch: number;
      }>(
        `select s.workspace_id, s.lease_id, s.lease_epoch, e.type, e.payload,
           (select payload from events where session_id = $1 and answers = $2) as answer
         from events e join sessions s using (session_id) where e.session_id = $1 and e.event_id = $2`,
        [sessionId, eventId],
      );
      const row = rows[0];
      return (
        row && {
          sessionId,
          workspaceId: row.workspace_id,
          type: row.type,
          payload: row.payload,
          answer: row.answer ?? undefined,
          leaseId: row.lease_id ?? undefined,
          leaseEpoch: row.lease_epoch,
        }
      );
    },
    bindKnown: (request) => bindKnown(pool, request),
    bind: (request) => inTransaction(pool, (transaction) => bind(transaction, request)),
    finish: async (request) =>
      (await finishAtOnce(pool, request)) ??
      inTransaction(pool, (transaction) => finish(transaction, request)),
    refuse: (request) => inTransaction(pool, (transaction) => refuse(transaction, request)),
    requestStop: ({ executionKey, reason, lease }) =>
      inTransaction(pool, async (transaction) => {
        const execution = await lockExecution(transaction, executionKey, lease);
        if (execution === undefined || execution.result !== undefined) return execution;
        const { rows } = await transaction.query<ExecutionRow>(
          `update executions set stop_requested_at = coalesce(stop_requested_at, clock_timestamp()),
             stop_reason = case when stop_requested_at is null then $2 else stop_reason end
           where execution_key = $1 returning ${COLUMNS}`,
          [executionKey, reason],
        );
        return toExecution(rows[0]!);
      }),
    ...lists(pool),
    ...unheardCalls(pool),
  };
}

function lists(
  pool: Pool,
): Pick<ExecutionStore, "openOfAgent" | "openOfHand" | "results" | "openAt" | "openKeys" | "overdue"> {
  return {
    async openOfAgent(handAgentId, limit) {
      const { rows } = await pool.query<ExecutionRow>(
        `select ${COLUMNS} from executions where hand_agent_id = $1 and finished_at is null order by bound_at limit $2`,
        [handAgentId, limit],
      );
      return rows.map(toExecution);
    },
    async openOfHand(handId) {
      const { rows } = await pool.query<ExecutionRow>(
        `select ${COLUMNS} from executions where hand_id = $1 and finished_at is null order by bound_at`,
        [handId],
      );
      return rows.map(toExecution);
    },
    async results(executionKeys) {
      const { rows } = await pool.query<{ execution_key: string; result: string }>(
        "select execution_key, result from executions where execution_key = any($1) and result is not null",
        [executionKeys],
      );
      return new Map(rows.map((row) => [row.execution_key, row.result]));
    },
    async openAt({ replicaId, boundForMs, limit }) {
      const { rows } = await pool.query<{
        execution_key: string;
        hand_agent_id: string;
        stop: string | null;
      }>(
        `select e.execution_key, e.hand_agent_id,
           case when e.stop_requested_at is not null then e.stop_reason end as stop
         from hand_agents a join executions e using (hand_agent_id)
         where a.replica_id = $1 and e.finished_at is null and e.journal_id = a.journal_id
           and e.bound_at < clock_timestamp() - $2 * interval '1 millisecond'
         order by e.bound_at desc limit $3`,
        [replicaId, boundForMs, limit],
      );
      return rows.map((row) => ({
        executionKey: row.execution_key,
        handAgentId: row.hand_agent_id,
        stopReason: row.stop ?? undefined,
      }));
    },
    async openKeys(handAgentId, executionKeys) {
      const { rows } = await pool.query<{ execution_key: string }>(
        `select execution_key from executions where hand_agent_id = $1 and finished_at is null and execution_key = any($2)`,
        [handAgentId, executionKeys],
      );
      return new Set(rows.map((row) => row.execution_key));
    },
    async overdue({ graceMs, offlineMs, replicaId, limit }) {
      const columns = COLUMNS.split(", ")
        .map((column) => `e.${column.trim()}`)
        .join(", ");
      const { rows } = await pool.query<ExecutionRow & { online: boolean }>(
        `select ${columns}, coalesce(a.replica_id = $3, false) as online
         from executions e left join hand_agents a using (hand_agent_id)
         where e.finished_at is null
           and e.bound_at + (e.timeout_ms + $1) * interval '1 millisecond' < clock_timestamp()
           and (a.replica_id = $3 or coalesce(a.last_seen_at, e.bound_at) < clock_timestamp() - $2 * interval '1 millisecond')
         order by e.bound_at limit $4`,
        [graceMs, offlineMs, replicaId, limit],
      );
      return rows.map((row) => ({ ...toExecution(row), agentOnline: row.online }));
    },
  };
}

async function find(queryable: Queryable, executionKey: string): Promise<ExecutionRecord | undefined> {
  const { rows } = await queryable.query<ExecutionRow>(
    `select ${COLUMNS} from executions where execution_key = $1`,
    [executionKey],
  );
  return rows[0] && toExecution(rows[0]);
}

/** Locks the session, then the execution. LEASE_FENCED. */
async function lockExecution(
  transaction: Transaction,
  executionKey: string,
  lease: { leaseId: string; epoch: bigint } | undefined,
): Promise<ExecutionRecord | undefined> {
  const seen = await find(transaction, executionKey);
  if (seen === undefined) return undefined;
  if (seen.sessionId !== undefined) await lockSession(transaction, seen.sessionId, lease);
  const { rows } = await transaction.query<ExecutionRow>(
    `select ${COLUMNS} from executions where execution_key = $1 for update`,
    [executionKey],
  );
  return rows[0] && toExecution(rows[0]);
}

/** What stands in the way of a new execution: one of the same key, or an answer that its tool use has. */
async function obstacle(transaction: Transaction, call: CallRecord): Promise<Bound | undefined> {
  const { rows } = await transaction.query<{ exists: boolean; payload: string | null }>(
    `select exists (select 1 from executions where execution_key = $1) as exists,
       (select payload from events where $4 and session_id = $2 and answers = $3) as payload`,
    [call.executionKey, call.sessionId ?? null, call.executionId, call.answersToolUse],
  );
  const { exists, payload } = rows[0]!;
  if (exists) return { kind: "exists", execution: (await find(transaction, call.executionKey))! };
  return payload === null ? undefined : { kind: "answered", payload };
}

type BindRequest = Parameters<ExecutionStore["bind"]>[0];

async function bind(
  transaction: Transaction,
  { call, handId, handAgentId, journalId, lease, event }: BindRequest,
): Promise<Bound> {
  await lockOwner(transaction, call, lease);
  const found = await obstacle(transaction, call);
  if (found !== undefined) return found;
  const execution = await insertBound(transaction, call, { handId, handAgentId, journalId });
  if (execution === undefined) {
    const agents = await transaction.query(`select 1 from hand_agents where ${AGENT_TAKES_CALLS}`, [
      handAgentId,
      journalId,
    ]);
    return { kind: agents.rowCount === 0 ? "agent_gone" : "hand_gone" };
  }
  let advance: LogAdvance | undefined;
  if (event !== undefined && call.sessionId !== undefined) {
    advance = (await appendToLog(transaction, call.sessionId, event)).advance;
  }
  return { kind: "bound", execution, advance };
}

/** The session's row, or for calls outside sessions a lock of their own: one transaction at a time decides about a key. */
async function lockOwner(
  transaction: Transaction,
  call: CallRecord,
  lease: BindRequest["lease"],
): Promise<void> {
  if (call.sessionId === undefined) {
    await transaction.query("select pg_advisory_xact_lock(hashtextextended($1, 0))", [call.executionKey]);
    return;
  }
  const session = await lockSession(transaction, call.sessionId, lease);
  if (session.archived && call.answersToolUse) {
    throw new TendonError("SESSION_ARCHIVED", `session "${call.sessionId}" is archived`);
  }
}

const AGENT_TAKES_CALLS = `hand_agent_id = $1 and journal_id = $2 and replica_id is not null and revoked_at is null`;

const CALL_COLUMNS = `execution_key, workspace_id, session_id, execution_id, slot, name, input, input_hash, timeout_ms, answers_tool_use`;

function callValues(call: CallRecord): unknown[] {
  return [
    call.executionKey,
    call.workspaceId,
    call.sessionId ?? null,
    call.executionId,
    call.slot,
    call.name,
    call.input,
    hashOfInput(call.input),
    call.timeoutMs,
    call.answersToolUse,
  ];
}

/** The agent is there with this journal, the hand takes calls on it, and the execution is theirs. */
async function insertBound(
  transaction: Transaction,
  call: CallRecord,
  { handId, handAgentId, journalId }: { handId: string; handAgentId: string; journalId: string },
): Promise<ExecutionRecord | undefined> {
  const { rows } = await transaction.query<ExecutionRow>(
    `with agent as (select 1 from hand_agents where ${AGENT_TAKES_CALLS} for share),
     hand as (
       select hand_id, owner_number, notice from hands
       where hand_id = $3 and hand_agent_id = $1 and state = 'ready' and exists (select 1 from agent)
         -- Not one that was handed over since it was found (H6).
         and session_id is not distinct from coalesce((select hands_session_id from sessions s where s.session_id = $6), $6)
       for update
     ),
     used as (
       update hands set last_used_at = clock_timestamp(), notice = '' from hand where hands.hand_id = hand.hand_id
       returning hand.owner_number, hand.notice
     )
     insert into executions (hand_agent_id, journal_id, hand_id, ${CALL_COLUMNS}, owner_number, notice)
     select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::bytea, $12::bigint, $13::boolean, owner_number, notice from used
     returning ${COLUMNS}`,
    [handAgentId, journalId, handId, ...callValues(call)],
  );
  return rows[0] && toExecution(rows[0]);
}

async function insertUnbound(transaction: Transaction, call: CallRecord): Promise<ExecutionRecord> {
  const { rows } = await transaction.query<ExecutionRow>(
    `insert into executions (${CALL_COLUMNS}) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) returning ${COLUMNS}`,
    callValues(call),
  );
  return toExecution(rows[0]!);
}

async function finish(
  transaction: Transaction,
  { execution, result, event }: Parameters<ExecutionStore["finish"]>[0],
): Promise<Concluded | undefined> {
  const { executionKey, sessionId, answersToolUse } = execution;
  if (!(await storeResult(transaction, executionKey, result, sessionId))) {
    const standing = await find(transaction, executionKey);
    return standing?.result === undefined
      ? undefined
      : { kind: "existing", result: standing.result, payload: undefined };
  }
  // An answer that came by other means stands in the log; the result is kept here all the same.
  const advance =
    answersToolUse && sessionId !== undefined
      ? (await appendToLog(transaction, sessionId, event)).advance
      : undefined;
  return { kind: "stored", result, advance };
}

/** Locks the session, then the execution. False when it has a result already, or does not exist (any more). */
async function storeResult(
  transaction: Transaction,
  executionKey: string,
  result: string,
  sessionId: string | undefined,
): Promise<boolean> {
  const { rowCount } = await transaction.query(
    `with session as (select 1 from sessions where session_id = $3 for no key update)
     update executions set result = $2, finished_at = clock_timestamp()
     where execution_key = $1 and result is null and ($3::text is null or exists (select 1 from session))`,
    [executionKey, result, sessionId ?? null],
  );
  return rowCount === 1;
}

async function refuse(
  transaction: Transaction,
  { call, result, event, lease }: Parameters<ExecutionStore["refuse"]>[0],
): Promise<Concluded> {
  if (call.sessionId === undefined) await lockOwner(transaction, call, lease);
  else await lockSession(transaction, call.sessionId, lease);
  const found = await obstacle(transaction, call);
  if (found?.kind === "answered") return { kind: "existing", result: undefined, payload: found.payload };
  if (found?.kind === "exists") {
    if (found.execution.result === undefined) return { kind: "bound" };
    return { kind: "existing", result: found.execution.result, payload: undefined };
  }
  const { sessionId, answersToolUse } = await insertUnbound(transaction, call);
  await storeResult(transaction, call.executionKey, result, sessionId);
  const advance =
    answersToolUse && sessionId !== undefined
      ? (await appendToLog(transaction, sessionId, event)).advance
      : undefined;
  return { kind: "stored", result, advance };
}

function toExecution(row: ExecutionRow): ExecutionRecord {
  return {
    executionKey: row.execution_key,
    workspaceId: row.workspace_id,
    sessionId: row.session_id ?? undefined,
    executionId: row.execution_id,
    handId: row.hand_id ?? undefined,
    handAgentId: row.hand_agent_id ?? undefined,
    journalId: row.journal_id ?? undefined,
    ownerNumber: row.owner_number,
    name: row.name,
    input: row.input,
    timeoutMs: row.timeout_ms,
    boundAt: row.bound_at,
    answersToolUse: row.answers_tool_use,
    slot: row.slot,
    notice: row.notice,
    stopReason: row.stop_requested_at === null ? undefined : row.stop_reason,
    result: row.result ?? undefined,
  };
}

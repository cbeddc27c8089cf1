/** Calls that stay open until threads rest. */
import { invalidField, notFound } from "../../../kit/errors.ts";
import { sessionArchived } from "../refusals.ts";
import type { ThreadStore, ThreadWait } from "../threads.ts";
import { lockSession } from "./hands.ts";
import type { Pool, Queryable } from "./pool.ts";
import { RESTS } from "./thread-rest.ts";
import { agentNameOf } from "./threads.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

interface WaitRow {
  session_id: string;
  call_id: string;
  thread_ids: string[];
  waits_for_any: boolean;
  overdue: boolean;
}

const COLUMNS = "session_id, call_id, thread_ids, waits_for_any, deadline_at <= clock_timestamp() as overdue";

export function threadWaits(
  pool: Pool,
): Pick<ThreadStore, "wait" | "waitsOf" | "someWaits" | "endWait" | "standings"> {
  return {
    wait: (request) => inTransaction(pool, (transaction) => wait(transaction, request)),
    async waitsOf(sessionId) {
      return waits(pool, "where session_id = $1", [sessionId]);
    },
    async someWaits(limit, after) {
      const due = await waits(pool, "where deadline_at <= clock_timestamp() order by deadline_at limit $1", [
        limit,
      ]);
      const others = `where deadline_at > clock_timestamp() and (session_id, call_id) > ($2, $3)
        order by session_id, call_id limit $1`;
      return [...due, ...(await waits(pool, others, [limit, after?.sessionId ?? "", after?.callId ?? ""]))];
    },
    async endWait(sessionId, callId) {
      await pool.query("delete from thread_waits where session_id = $1 and call_id = $2", [
        sessionId,
        callId,
      ]);
    },
    async standings(threadIds) {
      const { rows } = await pool.query<{
        session_id: string;
        agent: string;
        status: string;
        stop_reason: string;
        rests: boolean;
      }>(
        `select s.session_id, s.agent, case when s.archived_at is not null then 'terminated' else s.status end as status,
           s.stop_reason, ${RESTS} as rests
         from sessions s join unnest($1::text[]) with ordinality as u(id, n) on u.id = s.session_id order by u.n`,
        [threadIds],
      );
      return rows.map((row) => ({
        threadId: row.session_id,
        agentName: agentNameOf(row.agent),
        status: row.status,
        stopReason: row.stop_reason,
        rests: row.rests,
      }));
    },
  };
}

async function waits(db: Queryable, which: string, values: unknown[]): Promise<ThreadWait[]> {
  const { rows } = await db.query<WaitRow>(`select ${COLUMNS} from thread_waits ${which}`, values);
  return rows.map(toWait);
}

async function wait(
  transaction: Transaction,
  { sessionId, lease, callId, threadIds, any, timeoutMs }: Parameters<ThreadStore["wait"]>[0],
): Promise<ThreadWait> {
  const session = await lockSession(transaction, sessionId, lease);
  if (session.archived) throw sessionArchived(sessionId);
  const { rowCount } = await transaction.query(
    `select 1 from events e where session_id = $1 and event_id = $2 and type = 'agent.tool_use'
       and not exists (select 1 from events a where a.session_id = $1 and a.answers = $2)`,
    [sessionId, callId],
  );
  if (rowCount === 0) throw invalidField("call_id", "is no call of the session that is open");
  const own = await transaction.query<{ session_id: string }>(
    `select session_id from sessions where parent_session_id = $1
       and root_session_id = (select coalesce(root_session_id, session_id) from sessions where session_id = $1)
       and (session_id = any($2) or (cardinality($2::text[]) = 0 and archived_at is null)) order by created_at, session_id`,
    [sessionId, threadIds],
  );
  const ids = own.rows.map((row) => row.session_id);
  const missing = threadIds.find((id) => !ids.includes(id));
  if (missing !== undefined) throw notFound("thread of the session", missing);
  const { rows } = await transaction.query<WaitRow>(
    `insert into thread_waits (session_id, call_id, thread_ids, waits_for_any, deadline_at)
       values ($1, $2, $3, $4, clock_timestamp() + $5 * interval '1 millisecond')
       on conflict (session_id, call_id) do update set call_id = excluded.call_id returning ${COLUMNS}`,
    [sessionId, callId, ids, any, timeoutMs],
  );
  return toWait(rows[0]!);
}

function toWait(row: WaitRow): ThreadWait {
  return {
    sessionId: row.session_id,
    callId: row.call_id,
    threadIds: row.thread_ids,
    any: row.waits_for_any,
    overdue: row.overdue,
  };
}

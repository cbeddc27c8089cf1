/** Calls whose hand agent went away, and how their sessions' logs are told of it, once for each time that it goes. */
import type { ExecutionStore } from "../executions.ts";
import type { HandEvent } from "../hands.ts";
import type { LogAdvance } from "../session-append.ts";
import { appendWithin } from "./append-within.ts";
import { lockSession } from "./hands.ts";
import type { Pool } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

interface UnheardRow {
  execution_key: string;
  session_id: string;
  execution_id: string;
  hand_agent_id: string;
  event_id: string;
}

/** The agent has said goodbye or broken off, or the replica that holds its connection is silent itself. */
const AGENT_IS_GONE = `((a.replica_id is null and a.last_seen_at < clock_timestamp() - $1 * interval '1 millisecond')
  or a.last_seen_at < clock_timestamp() - $2 * interval '1 millisecond')`;

/** The same for all who look while the agent is away, so that the log says it once; its next absence has another. */
const EVENT_ID = `'sevt_' || encode(sha256(convert_to(e.execution_key || ' ' || a.generation, 'UTF8')), 'hex')`;

export function unheardCalls(pool: Pool): Pick<ExecutionStore, "unheard" | "tellUnheard"> {
  return {
    async unheard({ offlineMs, silentMs, limit }) {
      const { rows } = await pool.query<UnheardRow>(
        `select e.execution_key, e.session_id, e.execution_id, a.hand_agent_id, ${EVENT_ID} as event_id
         from executions e join hand_agents a using (hand_agent_id)
         where e.finished_at is null and e.answers_tool_use and ${AGENT_IS_GONE} and a.revoked_at is null
           and not exists (select 1 from events v where v.session_id = e.session_id and v.event_id = ${EVENT_ID})
         order by e.bound_at limit $3`,
        [offlineMs, silentMs, limit],
      );
      return rows.map((row) => ({
        executionKey: row.execution_key,
        sessionId: row.session_id,
        executionId: row.execution_id,
        handAgentId: row.hand_agent_id,
        eventId: row.event_id,
      }));
    },
    tellUnheard: (call, event) => inTransaction(pool, (transaction) => tell(transaction, call, event)),
  };
}

/** Undefined when the call has its result by now, or its agent has come back. NOT_FOUND when its session is gone. */
async function tell(
  transaction: Transaction,
  { executionKey, sessionId, eventId }: { executionKey: string; sessionId: string; eventId: string },
  event: HandEvent,
): Promise<LogAdvance | undefined> {
  await lockSession(transaction, sessionId, undefined);
  const { rowCount } = await transaction.query(
    `select 1 from executions e join hand_agents a using (hand_agent_id)
     where e.execution_key = $1 and e.finished_at is null and ${EVENT_ID} = $2`,
    [executionKey, eventId],
  );
  if (rowCount === 0) return undefined;
  const { advance } = await appendWithin(transaction, {
    sessionId,
    authority: "server",
    events: [{ id: eventId, type: event.type, threadId: "", payload: event.payload, internal: undefined }],
  });
  return advance;
}

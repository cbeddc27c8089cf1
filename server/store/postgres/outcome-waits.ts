/** Sessions that wait for all of their tree, because what they work towards is judged once nothing of it works. */
import { sessionArchived } from "../refusals.ts";
import type { ThreadStore } from "../threads.ts";
import { threadsRestedEvent } from "../tree-events.ts";
import { appendWithin } from "./append-within.ts";
import { lockSession } from "./hands.ts";
import { openOutcome } from "./outcomes.ts";
import type { Pool } from "./pool.ts";
import { RESTS } from "./thread-rest.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

/** Of a row `w` of the waits: a thread below that works, or has something to say. */
const WORKS_BELOW = `exists (select from sessions s where s.root_session_id = w.session_id and not (${RESTS}))`;

export function outcomeWaits(
  pool: Pool,
): Pick<ThreadStore, "waitForTree" | "endTreeWait" | "restedTrees" | "heldTrees"> {
  return {
    waitForTree: (request) => inTransaction(pool, (transaction) => wait(transaction, request)),
    async endTreeWait(sessionId, restedEventId) {
      // Asked whenever a thread has come to rest; few sessions wait.
      const { rowCount } = await pool.query("select 1 from outcome_waits where session_id = $1", [sessionId]);
      if (rowCount === 0) return { isOver: true };
      return inTransaction(pool, (transaction) => end(transaction, sessionId, restedEventId));
    },
    async restedTrees(limit) {
      const { rows } = await pool.query<{ session_id: string }>(
        `select session_id from outcome_waits w where not ${WORKS_BELOW} order by session_id limit $1`,
        [limit],
      );
      return rows.map((row) => row.session_id);
    },
    async heldTrees(limit, after) {
      const { rows } = await pool.query<{
        session_id: string;
        since_position: number;
        at_budget: boolean;
        asking: boolean;
      }>(
        `select w.session_id, w.since_position, bool_or(s.stop_reason = 'budget_reached') as at_budget,
           bool_or(s.stop_reason = 'requires_action') as asking
         from outcome_waits w join sessions s on s.root_session_id = w.session_id and s.archived_at is null and s.status = 'idle'
           and s.stop_reason in ('budget_reached', 'requires_action')
         where w.session_id > $2 group by w.session_id order by w.session_id limit $1`,
        [limit, after],
      );
      return rows.map((row) => ({
        sessionId: row.session_id,
        sincePosition: row.since_position,
        isAtBudget: row.at_budget,
        isAsking: row.asking,
      }));
    },
  };
}

async function wait(
  transaction: Transaction,
  { sessionId, lease, outcomeEventId }: Parameters<ThreadStore["waitForTree"]>[0],
): Promise<void> {
  const session = await lockSession(transaction, sessionId, lease);
  if (session.archived) throw sessionArchived(sessionId);
  await transaction.query(
    `insert into outcome_waits (session_id, event_id, since_position)
       select session_id, $2, head from sessions where session_id = $1
     on conflict (session_id) do update set event_id = excluded.event_id, since_position = excluded.since_position`,
    [sessionId, outcomeEventId],
  );
}

/** Under the lock that its log's writers need: whoever ends the wait is the one who says so. */
async function end(
  transaction: Transaction,
  sessionId: string,
  restedEventId: string | undefined,
): ReturnType<ThreadStore["endTreeWait"]> {
  const session = await lockSession(transaction, sessionId, undefined);
  const { rows } = await transaction.query<{ event_id: string; works: boolean }>(
    `select event_id, ${WORKS_BELOW} as works from outcome_waits w where session_id = $1`,
    [sessionId],
  );
  const row = rows[0];
  if (row?.works) return { isOver: false };
  if (row === undefined) return { isOver: true };
  await transaction.query("delete from outcome_waits where session_id = $1", [sessionId]);
  if (restedEventId === undefined || session.archived) return { isOver: true };
  // An interrupt may have ended it meanwhile, and another may have been defined.
  const open = await openOutcome(transaction, sessionId);
  if (open?.eventId !== row.event_id) return { isOver: true };
  const events = [threadsRestedEvent(restedEventId, row.event_id)];
  const appended = await appendWithin(transaction, { sessionId, events, authority: "server" });
  return { isOver: true, appended };
}

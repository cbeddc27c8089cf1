/** Whether a brain works on a session, or is about to. */
import { hasTurnBegun, MOST_TURN_EVENTS, TURN_EVENTS, type TurnEvent } from "../begun-turn.ts";
import type { SessionRecord } from "../sessions.ts";
import type { Transaction } from "./transaction.ts";

/**
 * A lease is held for a moment after the turn that it was for. Who has seen the idle event has seen the end of that turn, so
 * it counts only with work that came later.
 */
export async function isRunning(
  transaction: Transaction,
  { sessionId, status }: SessionRecord,
): Promise<boolean> {
  if (status === "running" || status === "rescheduling") return true;
  const { rows } = await transaction.query<{ taken: boolean }>(
    `select lease_id is not null and lease_expires_at > clock_timestamp() and work_position > coalesce((
         select position from events where session_id = $1 and type = 'session.status_idle'
         order by position desc limit 1), 0) as taken
     from sessions where session_id = $1`,
    [sessionId],
  );
  return rows[0]?.taken ?? false;
}

/** Whether a turn has begun: it has from the moment the session is told something, whether or not a brain has come to it. */
export async function hasBegun(
  transaction: Transaction,
  { sessionId, status, stopReason, hasWork }: SessionRecord,
): Promise<boolean> {
  if (status !== "idle") return true;
  if (!hasWork || stopReason === "budget_reached") return false;
  // Of results and messages, which may be large, nothing else matters.
  const { rows } = await transaction.query<TurnEvent>(
    `select type, case
         when answers is not null then json_build_object('tool_use_id', answers, 'custom_tool_use_id', answers)::text
         when type in ('user.message', 'user.define_outcome') then '' else payload end as payload
     from events where session_id = $1 and type = any($2) and thread_id = ''
     order by position desc limit ${MOST_TURN_EVENTS}`,
    [sessionId, TURN_EVENTS],
  );
  return hasTurnBegun(rows, stopReason === "requires_action");
}

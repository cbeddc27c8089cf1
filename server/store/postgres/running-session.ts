/** Whether a brain works on a session, or is about to. */
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

const IDLE = "session.status_idle";
/** What a turn begins with. */
const BEGINS = ["user.message", "user.define_outcome"];
/** What is said to a session that rests for these reasons waits for something else. */
const WAITS: ReadonlySet<string> = new Set(["requires_action", "budget_reached"]);

/** Whether a turn has begun: it has from the moment the session is told something, whether or not a brain has come to it. */
export async function hasBegun(
  transaction: Transaction,
  { sessionId, status, stopReason, hasWork }: SessionRecord,
): Promise<boolean> {
  if (status !== "idle") return true;
  if (!hasWork || WAITS.has(stopReason)) return false;
  const { rows } = await transaction.query<{ type: string }>(
    "select type from events where session_id = $1 and type = any($2) order by position desc limit 1",
    [sessionId, [IDLE, ...BEGINS]],
  );
  const [newest] = rows;
  return newest !== undefined && newest.type !== IDLE;
}

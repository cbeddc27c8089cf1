/** The trace contexts that clients' events came with, beside the log. */
import type { Appended } from "../events.ts";
import type { Queryable } from "./pool.ts";

/** Only of what was added: a repeat keeps the trace of the first. What is kept already stays. */
export async function keepTrace(
  db: Queryable,
  sessionId: string,
  eventIds: readonly string[],
  traceParent: string,
): Promise<void> {
  await db.query(
    `insert into event_traces (session_id, event_id, trace_parent)
       select $1, event_id, $3 from unnest($2::text[]) as event_id
       where exists (select 1 from sessions where session_id = $1)
     on conflict do nothing`,
    [sessionId, eventIds, traceParent],
  );
}

/** The append with its trace on its events, for those who are told of them in memory. */
export function withTrace(appended: Appended, traceParent: string): Appended {
  return { ...appended, added: appended.added.map((event) => ({ ...event, traceParent })) };
}

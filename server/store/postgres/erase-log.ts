/** Erases logs a batch at a time, so that no transaction is long and writers elsewhere go on. */
import type { Pool, Queryable } from "./pool.ts";

const BATCH_EVENTS = 2_000;

/** Says that the events of a session that is gone, or never came to be, are to be erased. */
export async function giveUpLog(db: Queryable, sessionId: string): Promise<void> {
  await db.query(
    `insert into unfinished_logs (session_id, erasing) values ($1, true)
     on conflict (session_id) do update set erasing = true, touched_at = clock_timestamp()`,
    [sessionId],
  );
}

/** The whole log that was given up. */
export async function eraseLog(pool: Pool, sessionId: string): Promise<void> {
  while (await eraseBatch(pool, sessionId));
}

/** A batch of a log that was given up; false when nothing is left. */
export async function eraseBatch(db: Queryable, sessionId: string): Promise<boolean> {
  // By their places: joined by position, a database that expects short logs would look for the batch once for each event.
  const { rowCount } = await db.query(
    `delete from events where ctid = any(array(
         select ctid from events where session_id = $1 order by position limit ${BATCH_EVENTS}))
       and exists (select 1 from unfinished_logs where session_id = $1 and erasing)`,
    [sessionId],
  );
  if (rowCount > 0) return true;
  await db.query(
    `delete from unfinished_logs where session_id = $1 and erasing
       and not exists (select 1 from events where session_id = $1)`,
    [sessionId],
  );
  return false;
}

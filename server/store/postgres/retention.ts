import type { RetentionStore } from "../retention.ts";
import { eraseBatch } from "./erase-log.ts";
import type { Pool } from "./pool.ts";

/** Longer than any installation lives, and still a time that Postgres can name. */
const MAX_DAYS = 36_500;

const MAX_BATCHES = 10;

export function createRetentionStore(pool: Pool): RetentionStore {
  return {
    async expire(limit) {
      // What ended long ago was made long ago: the index by time of creation leads past all younger sessions, in each
      // workspace by itself: joined with all of them at once, every session would be read.
      const { rows } = await pool.query<{ session_id: string }>(
        `with kept as (
           select workspace_id, clock_timestamp() - least(days, ${MAX_DAYS}) * interval '1 day' as since
             from (select workspace_id, (limits::json ->> 'retentionDays')::bigint as days from workspaces) w where days > 0
         ), due as (
           select s.session_id from kept k cross join lateral (
             select session_id, created_at from sessions
               where workspace_id = k.workspace_id and created_at < k.since and root_session_id is null
                 and case when archived_at is not null then archived_at < k.since
                   else updated_at < k.since and status in ('idle', 'terminated') and work_position <= rested_position
                     and (lease_id is null or lease_expires_at <= clock_timestamp())
                     and (select 1 from sessions t where t.root_session_id = sessions.session_id
                       and t.archived_at is null and t.updated_at >= k.since limit 1) is null end
               order by created_at limit $1 for update skip locked
           ) s order by s.created_at limit $1
         )
         update sessions s set archived_at = coalesce(s.archived_at, s.updated_at) from due
           where s.session_id = due.session_id returning s.session_id`,
        [limit],
      );
      return rows.map((row) => row.session_id);
    },
    async eraseUnfinished(untouchedMs) {
      const { rows } = await pool.query<{ session_id: string }>(
        `update unfinished_logs set erasing = true, touched_at = clock_timestamp() where session_id in (
           select session_id from unfinished_logs where touched_at < clock_timestamp() - $1 * interval '1 millisecond'
             order by touched_at limit 1 for update skip locked
         ) returning session_id`,
        [untouchedMs],
      );
      const sessionId = rows[0]?.session_id;
      if (sessionId === undefined) return false;
      for (let batch = 0; batch < MAX_BATCHES; batch++) if (!(await eraseBatch(pool, sessionId))) return true;
      // Not touched again soon otherwise: the next call goes on with it.
      await pool.query("update unfinished_logs set touched_at = timestamptz 'epoch' where session_id = $1", [
        sessionId,
      ]);
      return true;
    },
  };
}

/** Events that other logs of a tree have to hear of. The database notes them in the transaction that appends them (migration 11). */
import type { ThreadStore } from "../threads.ts";
import type { Pool } from "./pool.ts";

export function treeNews(
  pool: Pool,
): Pick<ThreadStore, "withNews" | "news" | "passedOn" | "shownCalls" | "threadsOfCalls"> {
  return {
    async withNews(limit) {
      const { rows } = await pool.query<{ session_id: string }>(
        "select distinct session_id from tree_news order by session_id limit $1",
        [limit],
      );
      return rows.map((row) => row.session_id);
    },
    async news(sessionId, limit) {
      const { rows } = await pool.query<{
        position: number;
        event_id: string | null;
        type: string;
        thread_id: string;
        payload: string;
        internal: string | null;
      }>(
        `select n.position, e.event_id, coalesce(e.type, '') as type, coalesce(e.thread_id, '') as thread_id,
           coalesce(e.payload, '{}') as payload, e.internal
         from tree_news n left join events e using (session_id, position) where n.session_id = $1 order by n.position limit $2`,
        [sessionId, limit],
      );
      return rows.map((row) => ({
        sessionId,
        position: row.position,
        // Erased meanwhile: nobody has to hear of it.
        eventId: row.event_id ?? "",
        type: row.type,
        threadId: row.thread_id,
        payload: row.payload,
        internal: row.internal ?? undefined,
      }));
    },
    async passedOn(sessionId, position) {
      await pool.query("delete from tree_news where session_id = $1 and position = $2", [
        sessionId,
        position,
      ]);
    },
    async shownCalls(sessionId, threadId, callIds) {
      const { rows } = await pool.query<{ event_id: string }>(
        "select event_id from events where session_id = $1 and event_id = any($3) and thread_id = $2",
        [sessionId, threadId, callIds],
      );
      return new Set(rows.map((row) => row.event_id));
    },
    async threadsOfCalls(sessionId, callIds) {
      const { rows } = await pool.query<{ event_id: string; thread_id: string }>(
        "select event_id, thread_id from events where session_id = $1 and event_id = any($2) and thread_id <> ''",
        [sessionId, callIds],
      );
      return new Map(rows.map((row) => [row.event_id, row.thread_id]));
    },
  };
}

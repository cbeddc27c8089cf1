/** What it means that a thread rests. */

/**
 * Of a row `s`: nothing to do, and everything that it had to say was passed on. A thread that waits for a client, for its own
 * threads or for more of the budget goes on later.
 */
export const RESTS = `(s.archived_at is not null or s.status = 'terminated' or (s.status = 'idle' and s.work_position <= s.rested_position
  and s.stop_reason not in ('', 'requires_action', 'waiting_for_threads', 'budget_reached')))
  and not exists (select from tree_news n where n.session_id = s.session_id)`;

import type { Migration } from "./migration.ts";

/** An item waits in the work queue for calls that are open: what answers the last one stops it (W4). */
export const workOver: Migration = {
  number: 27,
  name: "work-over",
  compatible: true,
  sql: `
-- Calls that are offered now are there to see before the items are looked at below.
lock table worker_calls in share row exclusive mode;

-- Whether a call waits for a worker. The session is that whose log workers read; its threads' calls are offered under its
-- name too, and their answers come to its log.
create function waits_for_worker(of_session text) returns boolean language sql stable as $body$
  select exists (select from worker_calls c where c.session_id = of_session and c.offered_at is not null
    and not exists (select from events r where r.session_id = of_session and r.answers = c.call_id))
$body$;

-- Who offers calls and who answers them have the row of this session: no call is offered meanwhile. So this is done with the
-- answer in this log, never with one in a thread's.
create function stop_work_over() returns trigger language plpgsql as $body$
begin
  update work_items set state = 'stopped', stop_requested_at = coalesce(stop_requested_at, clock_timestamp()),
      stopped_at = clock_timestamp(), fenced_claim = claim
    where session_id = new.session_id and state = 'queued' and not waits_for_worker(new.session_id);
  return null;
end
$body$;
-- Results of calls that workers may run: what their clients, workers and the server say, and the ends of archived threads.
create trigger events_work_over after insert on events for each row when (
  new.answers is not null
  and (new.type = 'user.tool_result' or (new.type = 'agent.tool_result' and new.thread_id <> ''))
) execute function stop_work_over();

update work_items set state = 'stopped', stop_requested_at = coalesce(stop_requested_at, clock_timestamp()),
    stopped_at = clock_timestamp(), fenced_claim = claim
  where work_id in (select work_id from work_items where state = 'queued' and not waits_for_worker(session_id)
    for update skip locked);
`,
};

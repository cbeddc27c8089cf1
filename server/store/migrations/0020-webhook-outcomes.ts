import type { Migration } from "./migration.ts";

/** Webhooks of graded outcomes, which no row tells of: who appends the end of an evaluation asks for it in the same statement. */
export const webhookOutcomes: Migration = {
  number: 20,
  name: "webhook-outcomes",
  compatible: true,
  sql: `
-- Of the events with these ids, in these sessions: those that are in the log by now, each once.
create function note_outcome_ends(of_sessions text[], of_events text[]) returns integer language plpgsql as $body$
declare
  ended record;
  noted integer := 0;
begin
  for ended in
    select s.workspace_id, coalesce(s.root_session_id, s.session_id) as root, e.event_id
      from unnest(of_sessions, of_events) as u(session, event)
        join events e on e.session_id = u.session and e.event_id = u.event and e.thread_id = ''
        join sessions s on s.session_id = e.session_id
      order by e.session_id, e.position
  loop
    perform note_webhook_event(ended.workspace_id, 'session.outcome_evaluation_ended', ended.root, ended.root, '{}',
      'outcome ' || ended.event_id);
    noted := noted + 1;
  end loop;
  return noted;
end
$body$;
`,
};

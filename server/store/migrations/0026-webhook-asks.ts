import type { Migration } from "./migration.ts";

/**
 * Webhooks of sessions that wait for their threads while these wait for clients: their logs say so, and no row does. What
 * appends such words, or ends of evaluations, asks for it in the same statement.
 */
export const webhookAsks: Migration = {
  number: 26,
  name: "webhook-asks",
  compatible: true,
  sql: `
-- What a root's log has said last, before a position, of whether it waits for somebody.
create function last_tree_word(of_session text, before bigint, words text[]) returns text language sql stable as $body$
  select type from events where session_id = of_session and position < before and type = any(words)
    order by position desc limit 1
$body$;

-- Of the events with these ids, in these sessions: those that are in the log by now, each once.
create function note_said(of_sessions text[], of_events text[]) returns integer language plpgsql as $body$
declare
  said record;
  was text;
  noted integer := 0;
begin
  for said in
    select s.workspace_id, coalesce(s.root_session_id, s.session_id) as root, e.session_id, e.position, e.event_id, e.type
      from unnest(of_sessions, of_events) as u(session, event)
        join events e on e.session_id = u.session and e.event_id = u.event and e.thread_id = ''
        join sessions s on s.session_id = e.session_id
      order by e.session_id, e.position
  loop
    noted := noted + 1;
    if said.type = 'span.outcome_evaluation_end' then
      perform note_webhook_event(said.workspace_id, 'session.outcome_evaluation_ended', said.root, said.root, '{}',
        'outcome ' || said.event_id);
      continue;
    end if;
    was := last_tree_word(said.session_id, said.position,
      array['session.threads_ask', 'session.threads_go_on', 'session.status_idle', 'session.status_running']);
    if said.type = 'session.threads_ask' then
      if was is distinct from 'session.threads_ask' then
        perform note_webhook_event(said.workspace_id, 'session.status_idled', said.root, said.root, '{}', 'asks ' || said.event_id);
      end if;
      perform note_webhook_event(said.workspace_id, 'session.requires_action', said.root, said.root, '{}',
        'action ' || said.event_id);
    elsif said.type = 'session.threads_go_on' and was = 'session.threads_ask' then
      perform note_webhook_event(said.workspace_id, 'session.status_run_started', said.root, said.root, '{}',
        'goes on ' || said.event_id);
    end if;
  end loop;
  return noted;
end
$body$;

-- As before, but a root whose log has said that it waits for clients, and not yet that it goes on, was idle.
create or replace function note_session_status() returns trigger language plpgsql as $body$
declare
  root constant text := coalesce(new.root_session_id, new.session_id);
  waited constant boolean := old.status = 'idle' and old.stop_reason = 'waiting_for_threads';
  said_at constant bigint := case when waited and new.root_session_id is null then coalesce(
    (select position from events where session_id = new.session_id and type = 'session.status_' || new.status
      order by position desc limit 1), new.head + 1) end;
  asked constant boolean := said_at is not null and last_tree_word(new.session_id, said_at,
    array['session.threads_ask', 'session.threads_go_on', 'session.status_idle', 'session.status_running']) = 'session.threads_ask';
  was constant text := case when asked then 'idle' when waited then 'running' else old.status end;
  is_now constant text := case when new.status = 'idle' and new.stop_reason = 'waiting_for_threads' then 'running' else new.status end;
begin
  if new.root_session_id is not null then
    if is_now <> was and is_now in ('idle', 'terminated') then
      perform note_webhook_event(new.workspace_id, case is_now when 'idle' then 'session.thread_idled' else 'session.thread_terminated' end,
        root, root, json_build_object('session_thread_id', new.session_id)::text, null);
    end if;
    return null;
  end if;
  if is_now <> was then
    perform note_webhook_event(new.workspace_id, case is_now when 'running' then 'session.status_run_started'
        when 'idle' then 'session.status_idled' when 'rescheduling' then 'session.status_rescheduled'
        else 'session.status_terminated' end,
      root, root, '{}', null);
  end if;
  if is_now = 'idle' and (is_now <> was or new.stop_reason <> old.stop_reason) then
    if new.stop_reason = 'requires_action' then
      perform note_webhook_event(new.workspace_id, 'session.requires_action', root, root, '{}', null);
    elsif new.stop_reason = 'budget_reached' then
      perform note_webhook_event(new.workspace_id, 'session.budget_reached', root, root, '{}', 'budget');
    end if;
  end if;
  return null;
end
$body$;
`,
};

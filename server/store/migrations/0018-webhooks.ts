import type { Migration } from "./migration.ts";

/**
 * Webhooks. What is to be told is noted by the database in the transaction of what happened, so that nothing of it is lost
 * and no writer can forget it. Statuses are noted where a session's row changes its status, which is a few times a turn:
 * appends that change none fire nothing, and who has no endpoint pays one look at an index for each change of status.
 */
export const webhooks: Migration = {
  number: 18,
  name: "webhooks",
  compatible: true,
  sql: `
create table webhook_endpoints (
  endpoint_id text primary key,
  workspace_id text not null references workspaces,
  url text not null,
  name text not null default '',
  description text not null default '',
  -- '*' stands for all.
  enabled_events text[] not null,
  state text not null default 'enabled' check (state in ('enabled', 'disabled')),
  -- Why the platform has disabled it.
  disabled_reason text not null default '',
  -- Since when attempts have failed without one success.
  failing_since timestamptz,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
);
create index webhook_endpoints_list on webhook_endpoints (workspace_id, created_at desc, endpoint_id desc);

create table webhook_secrets (
  endpoint_id text not null references webhook_endpoints on delete cascade,
  -- The highest is the newest.
  number integer not null,
  -- Compact JWE.
  sealed text not null,
  sealing_key_id text not null,
  created_at timestamptz not null default clock_timestamp(),
  -- From when on it does not sign any more; null for the newest.
  ends_at timestamptz,
  primary key (endpoint_id, number)
);
create index webhook_secrets_sealed on webhook_secrets (sealing_key_id);

-- What happened, and whom it is to be told: those that were subscribed when it did.
create table webhook_events (
  event_id text primary key,
  number bigint generated always as identity,
  workspace_id text not null,
  type text not null,
  subject_id text not null,
  -- JSON text of an object: further ids.
  more text not null,
  -- What is told in order: a session with its threads, an agent, a vault.
  lane text not null,
  endpoint_ids text[] not null,
  -- Names what is told once in its lane.
  once text,
  -- Whether its deliveries are there.
  is_routed boolean not null default false,
  created_at timestamptz not null default date_trunc('milliseconds', clock_timestamp())
);
create index webhook_events_unrouted on webhook_events (number) where not is_routed;
create index webhook_events_age on webhook_events (created_at);
create index webhook_events_once on webhook_events (lane, once) where once is not null;

create table webhook_deliveries (
  delivery_id text primary key,
  endpoint_id text not null,
  event_id text not null references webhook_events on delete cascade,
  -- Of the event.
  number bigint not null,
  lane text not null,
  state text not null default 'pending' check (state in ('pending', 'delivered', 'dead')),
  attempts integer not null default 0,
  -- Since it was noted, or replayed; a day is counted from the first of these.
  tries integer not null default 0,
  first_try_at timestamptz,
  last_attempt_at timestamptz,
  last_status integer not null default 0,
  last_error text not null default '',
  delivered_at timestamptz,
  created_at timestamptz not null,
  unique (endpoint_id, number)
);
create index webhook_deliveries_list on webhook_deliveries (endpoint_id, created_at desc, delivery_id desc);
create index webhook_deliveries_pending on webhook_deliveries (endpoint_id, lane, number) where state = 'pending';
create index webhook_deliveries_event on webhook_deliveries (event_id);

-- A lane of an endpoint while deliveries of it wait. Whoever has claimed it sends its oldest, one at a time; a claim ends
-- with due_at. Its row is locked before its deliveries change.
create table webhook_lanes (
  endpoint_id text not null,
  lane text not null,
  due_at timestamptz not null default clock_timestamp(),
  claim_id text,
  primary key (endpoint_id, lane)
);
create index webhook_lanes_due on webhook_lanes (endpoint_id, due_at);
create index webhook_lanes_claimed on webhook_lanes (endpoint_id) where claim_id is not null;

-- For whoever changes something: notes it when somebody is to be told.
create function note_webhook_event(
  of_workspace text, event_type text, subject text, in_lane text, further text, told_once text
) returns void language plpgsql as $body$
declare
  told text[];
begin
  select array_agg(endpoint_id) into told from webhook_endpoints
    where workspace_id = of_workspace and state = 'enabled' and (event_type = any(enabled_events) or '*' = any(enabled_events));
  if told is null then
    return;
  end if;
  if told_once is not null then
    perform 1 from webhook_events where lane = in_lane and once = told_once;
    if found then
      return;
    end if;
  end if;
  insert into webhook_events (event_id, workspace_id, type, subject_id, more, lane, endpoint_ids, once)
    values ('whevt_' || replace(gen_random_uuid()::text, '-', ''), of_workspace, event_type, subject, further, in_lane, told,
      told_once);
end
$body$;

create function note_session_made() returns trigger language plpgsql as $body$
begin
  if new.root_session_id is null then
    perform note_webhook_event(new.workspace_id, 'session.created', new.session_id, new.session_id, '{}', null);
  else
    perform note_webhook_event(new.workspace_id, 'session.thread_created', new.root_session_id, new.root_session_id,
      json_build_object('session_thread_id', new.session_id)::text, null);
  end if;
  return null;
end
$body$;
create trigger sessions_made after insert on sessions for each row execute function note_session_made();

-- As clients see it, a session that waits for its threads runs.
create function note_session_status() returns trigger language plpgsql as $body$
declare
  root constant text := coalesce(new.root_session_id, new.session_id);
  was constant text := case when old.status = 'idle' and old.stop_reason = 'waiting_for_threads' then 'running' else old.status end;
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
create trigger sessions_status after update of status, stop_reason on sessions for each row
  when (old.status <> new.status or old.stop_reason <> new.stop_reason) execute function note_session_status();

create function note_session_updated() returns trigger language plpgsql as $body$
begin
  if new.budget <> old.budget then
    update webhook_events set once = null where lane = new.session_id and once = 'budget';
  end if;
  perform note_webhook_event(new.workspace_id, 'session.updated', new.session_id, new.session_id, '{}', null);
  return null;
end
$body$;
create trigger sessions_updated after update of title, metadata, budget on sessions for each row
  when (new.root_session_id is null
    and (old.title <> new.title or old.metadata <> new.metadata or old.budget <> new.budget))
  execute function note_session_updated();

-- Arguments: the word of the type, the column of the id, what happened to it, and columns of further ids.
create function note_resource() returns trigger language plpgsql as $body$
declare
  entry jsonb;
  id text;
  further jsonb := '{}';
begin
  if tg_op = 'DELETE' then
    entry := to_jsonb(old);
  else
    entry := to_jsonb(new);
  end if;
  id := entry ->> tg_argv[1];
  for n in 3 .. tg_nargs - 1 loop
    further := further || jsonb_build_object(tg_argv[n], entry ->> tg_argv[n]);
  end loop;
  perform note_webhook_event(entry ->> 'workspace_id', tg_argv[0] || '.' || tg_argv[2], id, id, further::text, null);
  return null;
end
$body$;
create trigger sessions_archived after update of archived_at on sessions for each row
  when (new.root_session_id is null and old.archived_at is null and new.archived_at is not null)
  execute function note_resource('session', 'session_id', 'archived');
create trigger sessions_deleted after delete on sessions for each row when (old.root_session_id is null)
  execute function note_resource('session', 'session_id', 'deleted');

create trigger agents_made after insert on agents for each row execute function note_resource('agent', 'agent_id', 'created');
create trigger agents_updated after update of latest_version on agents for each row
  when (old.latest_version <> new.latest_version) execute function note_resource('agent', 'agent_id', 'updated');
create trigger agents_archived after update of archived_at on agents for each row
  when (old.archived_at is null and new.archived_at is not null) execute function note_resource('agent', 'agent_id', 'archived');
create trigger agents_deleted after delete on agents for each row execute function note_resource('agent', 'agent_id', 'deleted');

create trigger environments_made after insert on environments for each row
  execute function note_resource('environment', 'environment_id', 'created');
create trigger environments_updated after update of spec on environments for each row
  when (old.spec <> new.spec) execute function note_resource('environment', 'environment_id', 'updated');
create trigger environments_archived after update of archived_at on environments for each row
  when (old.archived_at is null and new.archived_at is not null)
  execute function note_resource('environment', 'environment_id', 'archived');
create trigger environments_deleted after delete on environments for each row
  execute function note_resource('environment', 'environment_id', 'deleted');

create trigger memory_stores_made after insert on memory_stores for each row
  execute function note_resource('memory_store', 'memory_store_id', 'created');
create trigger memory_stores_archived after update of archived_at on memory_stores for each row
  when (old.archived_at is null and new.archived_at is not null)
  execute function note_resource('memory_store', 'memory_store_id', 'archived');
create trigger memory_stores_deleted after delete on memory_stores for each row
  execute function note_resource('memory_store', 'memory_store_id', 'deleted');

create trigger vaults_made after insert on vaults for each row execute function note_resource('vault', 'vault_id', 'created');
create trigger vaults_archived after update of archived_at on vaults for each row
  when (old.archived_at is null and new.archived_at is not null) execute function note_resource('vault', 'vault_id', 'archived');
create trigger vaults_deleted after delete on vaults for each row execute function note_resource('vault', 'vault_id', 'deleted');

create trigger credentials_made after insert on credentials for each row
  execute function note_resource('vault_credential', 'credential_id', 'created', 'vault_id');
create trigger credentials_archived after update of archived_at on credentials for each row
  when (old.archived_at is null and new.archived_at is not null)
  execute function note_resource('vault_credential', 'credential_id', 'archived', 'vault_id');
create trigger credentials_deleted after delete on credentials for each row
  execute function note_resource('vault_credential', 'credential_id', 'deleted', 'vault_id');
-- Its token cannot be refreshed any more.
create trigger credentials_broken after update of refresh_broken on credentials for each row
  when (new.refresh_broken and not old.refresh_broken)
  execute function note_resource('vault_credential', 'credential_id', 'refresh_failed', 'vault_id');
`,
};

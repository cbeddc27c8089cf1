import type { Migration } from "./migration.ts";

/** Agents that run by themselves, what started when, which sessions are theirs, and what webhooks are told of it. */
export const deployments: Migration = {
  number: 19,
  name: "deployments",
  compatible: true,
  sql: `
create table deployments (
  deployment_id text primary key,
  workspace_id text not null references workspaces,
  agent_id text not null references agents,
  -- JSON text of a DeploymentSpec, with the agent's version.
  spec text not null,
  -- Grows with every change of the spec.
  revision integer not null default 1,
  -- The next time of its schedule, and when that run starts; null without a schedule.
  next_scheduled_at timestamptz,
  fires_at timestamptz,
  paused_by text check (paused_by in ('manual', 'error')),
  paused_error_type text not null default '',
  last_run_at timestamptz,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  archived_at timestamptz
);
create index deployments_list on deployments (workspace_id, created_at, deployment_id);
create index deployments_of_agent on deployments (agent_id) where archived_at is null;
create index deployments_due on deployments (fires_at) where paused_by is null and archived_at is null;

-- Attempts, each written once, with its session or with the reason why there is none.
create table deployment_runs (
  run_id text primary key,
  workspace_id text not null references workspaces,
  deployment_id text not null references deployments,
  agent_id text not null,
  agent_version integer not null,
  -- Null for a run that somebody asked for.
  scheduled_at timestamptz,
  session_id text,
  error_type text,
  error_message text,
  created_at timestamptz not null default clock_timestamp(),
  check ((session_id is null) <> (error_type is null))
);
-- One run for each time of a schedule, whoever tries.
create unique index deployment_runs_once on deployment_runs (deployment_id, scheduled_at) where scheduled_at is not null;
create index deployment_runs_list on deployment_runs (workspace_id, created_at, run_id);
create index deployment_runs_of_deployment on deployment_runs (deployment_id, created_at, run_id);

alter table sessions add column deployment_id text;
create index sessions_of_deployment on sessions (deployment_id, created_at, session_id) where deployment_id is not null;

create trigger deployments_made after insert on deployments for each row
  execute function note_resource('deployment', 'deployment_id', 'created');
create trigger deployments_updated after update of revision on deployments for each row
  when (old.revision <> new.revision) execute function note_resource('deployment', 'deployment_id', 'updated');
create trigger deployments_paused after update of paused_by on deployments for each row
  when (old.paused_by is null and new.paused_by is not null)
  execute function note_resource('deployment', 'deployment_id', 'paused');
create trigger deployments_unpaused after update of paused_by on deployments for each row
  when (old.paused_by is not null and new.paused_by is null and new.archived_at is null)
  execute function note_resource('deployment', 'deployment_id', 'unpaused');
create trigger deployments_archived after update of archived_at on deployments for each row
  when (old.archived_at is null and new.archived_at is not null)
  execute function note_resource('deployment', 'deployment_id', 'archived');

-- Of runs that a schedule has started, told in order with what happens to their deployment.
create function note_deployment_run() returns trigger language plpgsql as $body$
begin
  perform note_webhook_event(new.workspace_id, 'deployment_run.started', new.run_id, new.deployment_id, '{}', null);
  perform note_webhook_event(new.workspace_id,
    case when new.error_type is null then 'deployment_run.succeeded' else 'deployment_run.failed' end,
    new.run_id, new.deployment_id, '{}', null);
  return null;
end
$body$;
create trigger deployment_runs_made after insert on deployment_runs for each row
  when (new.scheduled_at is not null) execute function note_deployment_run();
`,
};

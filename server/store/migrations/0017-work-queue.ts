import type { Migration } from "./migration.ts";

/** Who runs the calls of sessions in self-hosted environments, and the queue from which workers take sessions. */
export const workQueue: Migration = {
  number: 17,
  name: "work-queue",
  compatible: true,
  sql: `
create table environment_keys (
  environment_key_id text primary key,
  workspace_id text not null references workspaces,
  environment_id text not null references environments on delete cascade,
  name text not null,
  hint text not null,
  secret_hash bytea not null unique,
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz
);
create index environment_keys_of_environment on environment_keys (environment_id, created_at, environment_key_id);

-- Decided once for a session and its threads, at the first call in a self-hosted environment.
create table session_servers (
  session_id text primary key references sessions on delete cascade,
  served_by text not null check (served_by in ('hand_agent', 'worker')),
  decided_at timestamptz not null default clock_timestamp()
);

create table work_items (
  work_id text primary key,
  workspace_id text not null,
  environment_id text not null,
  session_id text not null references sessions on delete cascade,
  state text not null default 'queued' check (state in ('queued', 'starting', 'active', 'stopping', 'stopped')),
  metadata text not null default '{}',
  -- Grows with every time that it is given out.
  claim integer not null default 0,
  -- Claims up to this one have lost it.
  fenced_claim integer not null default 0,
  -- The claim whose it is; decided by the first heartbeat, or the first look at calls, after the acknowledgement.
  holder_claim integer,
  created_at timestamptz not null default clock_timestamp(),
  queued_at timestamptz not null default clock_timestamp(),
  -- Given out, and not acknowledged.
  delivered_at timestamptz,
  acknowledged_at timestamptz,
  started_at timestamptz,
  latest_heartbeat_at timestamptz,
  last_heartbeat text,
  previous_heartbeat text,
  ttl_ms bigint not null default 0,
  lease_expires_at timestamptz,
  stop_requested_at timestamptz,
  stopped_at timestamptz
);
-- One worker at a time has a session.
create unique index work_items_live on work_items (session_id) where state <> 'stopped';
create index work_items_queue on work_items (environment_id, queued_at) where state = 'queued';
create index work_items_leases on work_items (lease_expires_at) where state in ('starting', 'active', 'stopping');
create index work_items_stopped on work_items (stopped_at) where state = 'stopped';
create index work_items_of_environment on work_items (environment_id, created_at, work_id);

create table work_claims (
  work_id text not null references work_items on delete cascade,
  claim integer not null,
  environment_key_id text not null,
  -- Of the item's token; null for a claim that was made by acknowledging what nobody had polled.
  token_hash bytea unique,
  claimed_at timestamptz not null default clock_timestamp(),
  primary key (work_id, claim)
);

-- Calls that were offered to workers, or shown to one, until they have their results. The session is that whose log
-- workers read.
create table worker_calls (
  session_id text not null references sessions on delete cascade,
  call_id text not null,
  offered_at timestamptz,
  shown_at timestamptz,
  primary key (session_id, call_id)
);
create index worker_calls_offered on worker_calls (offered_at);

create table work_pollers (
  environment_id text not null,
  worker_id text not null,
  polled_at timestamptz not null default clock_timestamp(),
  primary key (environment_id, worker_id)
);
create index work_pollers_old on work_pollers (polled_at);
`,
};

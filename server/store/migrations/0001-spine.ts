import type { Migration } from "./migration.ts";

/** Everything a session needs to run. Texts that must come back byte for byte are `text`, never `jsonb`. */
export const spine: Migration = {
  number: 1,
  name: "spine",
  sql: `
create table installation (
  -- One row: a copied or restored database keeps the id that hand agents have enrolled with.
  only_row boolean primary key default true check (only_row),
  installation_id text not null,
  created_at timestamptz not null default now()
);

create table workspaces (
  workspace_id text primary key,
  name text not null unique,
  is_default boolean not null default false,
  limits text not null default '{}',
  created_at timestamptz not null default now(),
  archived_at timestamptz
);
create unique index workspaces_default on workspaces (is_default) where is_default;

create table api_keys (
  api_key_id text primary key,
  -- Null: installation-wide.
  workspace_id text references workspaces,
  name text not null,
  role text not null,
  hint text not null,
  secret_hash bytea not null unique,
  created_at timestamptz not null default now(),
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz
);
create index api_keys_list on api_keys (created_at desc, api_key_id desc);

create table join_tokens (
  join_token_id text primary key,
  workspace_id text not null references workspaces,
  pool text not null default '',
  secret_hash bytea not null unique,
  uses_left integer not null check (uses_left >= 0),
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  revoked_at timestamptz
);

create table audit_entries (
  audit_id text primary key,
  at timestamptz not null default clock_timestamp(),
  workspace_id text,
  actor text not null,
  action text not null,
  subject text not null,
  detail text not null default '{}'
);
create index audit_entries_list on audit_entries (at desc, audit_id desc);
create index audit_entries_subject on audit_entries (subject, at desc);

-- Answers to creations that named a request id: the same request again gets the same thing.
create table request_ids (
  workspace_id text not null,
  scope text not null,
  request_id text not null,
  content_hash bytea not null,
  subject_id text not null,
  created_at timestamptz not null default now(),
  primary key (workspace_id, scope, request_id)
);
create index request_ids_age on request_ids (created_at);

create table agents (
  agent_id text primary key,
  workspace_id text not null references workspaces,
  latest_version integer not null,
  created_at timestamptz not null default now(),
  archived_at timestamptz
);
create index agents_list on agents (workspace_id, created_at desc, agent_id desc);

create table agent_versions (
  agent_id text not null references agents on delete cascade,
  version integer not null,
  spec text not null,
  created_at timestamptz not null default now(),
  primary key (agent_id, version)
);

create table environments (
  environment_id text primary key,
  workspace_id text not null references workspaces,
  name text not null,
  spec text not null,
  is_default boolean not null default false,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  archived_at timestamptz
);
create unique index environments_name on environments (workspace_id, name) where archived_at is null;
create unique index environments_default on environments (workspace_id) where is_default;
create index environments_list on environments (workspace_id, created_at desc, environment_id desc);

create table sessions (
  session_id text primary key,
  workspace_id text not null references workspaces,
  agent_id text not null,
  agent_version integer not null,
  -- The agent as it was when the session was made.
  agent text not null,
  environment_id text not null references environments,
  slot_environment_ids text not null default '{}',
  title text not null default '',
  metadata text not null default '{}',
  vault_ids text[] not null default '{}',
  budget text not null default '{}',
  forked_from_session_id text not null default '',
  forked_from_position bigint not null default 0,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  archived_at timestamptz,
  -- Folded from events in the transaction that appends them.
  head bigint not null default 0,
  status text not null default 'idle',
  stop_reason text not null default '',
  running_since timestamptz,
  active_ms bigint not null default 0,
  input_tokens bigint not null default 0,
  output_tokens bigint not null default 0,
  cache_read_input_tokens bigint not null default 0,
  cache_creation_input_tokens bigint not null default 0,
  model_requests bigint not null default 0,
  -- A session has work while the newest event that asks for a brain is newer than what the last brain had seen when it rested.
  work_position bigint not null default 0,
  rested_position bigint not null default 0,
  work_since timestamptz,
  not_before timestamptz,
  -- The lease: who is the brain. Epochs only grow.
  lease_id text,
  lease_epoch bigint not null default 0,
  lease_harness_id text,
  lease_replica_id text,
  lease_expires_at timestamptz,
  lease_head bigint not null default 0,
  silent_deaths integer not null default 0
);
create index sessions_list on sessions (workspace_id, created_at desc, session_id desc);
create index sessions_by_agent on sessions (workspace_id, agent_id, created_at desc);
create index sessions_work on sessions (work_since) where work_position > rested_position and archived_at is null;
create index sessions_leased on sessions (lease_id) where lease_id is not null;
-- Not by updated_at: every append would change it.
create index sessions_running on sessions (running_since) where status = 'running';

create table events (
  session_id text not null references sessions on delete cascade,
  position bigint not null,
  event_id text not null,
  type text not null,
  thread_id text not null default '',
  payload text not null,
  internal text,
  -- Event id of the tool use that this event answers.
  answers text,
  created_at timestamptz not null default clock_timestamp(),
  primary key (session_id, position)
);
create unique index events_id on events (session_id, event_id);
create unique index events_one_answer on events (session_id, answers) where answers is not null;
create index events_by_type on events (session_id, type, position);

create table hand_agents (
  hand_agent_id text primary key,
  workspace_id text not null references workspaces,
  pool text not null default '',
  name text not null default '',
  labels text not null default '{}',
  public_key bytea not null unique,
  join_token_id text not null,
  enrolled_at timestamptz not null default now(),
  revoked_at timestamptz,
  -- What its newest greeting said.
  generation bigint not null default 0,
  replica_id text,
  journal_id text,
  build text not null default '',
  drivers text not null default '[]',
  capacity_hands integer not null default 0,
  last_seen_at timestamptz
);
create index hand_agents_list on hand_agents (workspace_id, enrolled_at desc, hand_agent_id desc);
create index hand_agents_online on hand_agents (replica_id) where replica_id is not null;

create table tool_lists (
  digest text primary key,
  tools text not null
);

create table session_slots (
  session_id text not null references sessions on delete cascade,
  slot text not null,
  -- Tools pinned at the session's first model request.
  tools_digest text not null references tool_lists,
  primary key (session_id, slot)
);

create table hands (
  hand_id text primary key,
  workspace_id text not null references workspaces,
  session_id text references sessions on delete set null,
  slot text not null default '',
  environment_id text not null,
  environment text not null,
  resources text not null default '[]',
  request_id text,
  hand_agent_id text references hand_agents,
  driver text not null default '',
  state text not null,
  state_detail text not null default '',
  owner_number bigint not null default 1,
  tools_digest text references tool_lists,
  created_at timestamptz not null default now(),
  ready_at timestamptz,
  last_used_at timestamptz,
  ended_at timestamptz,
  -- Made for a session: without one it is nobody's.
  of_session boolean not null default false,
  -- Given back or lost, but its agent has not said yet that nothing is left of it.
  destroy_pending boolean not null default false,
  -- What the next call's result has to say first.
  notice text not null default '',
  -- Position of the session's 'hand.lost'.
  lost_position bigint,
  left_processes text not null default '[]'
);
create unique index hands_slot on hands (session_id, slot) where session_id is not null and state in ('provisioning', 'ready', 'parked');
create unique index hands_request on hands (workspace_id, request_id) where request_id is not null;
create index hands_list on hands (workspace_id, created_at desc, hand_id desc);
create index hands_of_agent on hands (hand_agent_id) where state in ('provisioning', 'ready', 'parked') or destroy_pending;
create index hands_of_session on hands (session_id, created_at desc) where session_id is not null;

create table executions (
  -- "<session id>/<execution id>", or "<workspace id>/<execution id>" outside sessions.
  execution_key text primary key,
  workspace_id text not null references workspaces,
  session_id text references sessions on delete cascade,
  execution_id text not null,
  hand_id text references hands,
  -- The journal that may know this execution; a hand agent that returns with another one cannot.
  hand_agent_id text,
  journal_id text,
  owner_number bigint not null default 0,
  name text not null,
  input text not null,
  input_hash bytea not null,
  timeout_ms bigint not null,
  bound_at timestamptz not null default clock_timestamp(),
  -- Whether it answers a tool use; else it was run by a client or an operator.
  answers_tool_use boolean not null default false,
  slot text not null default '',
  notice text not null default '',
  stop_requested_at timestamptz,
  stop_reason text not null default '',
  result text,
  finished_at timestamptz
);
create index executions_open on executions (hand_agent_id) where finished_at is null;
create index executions_of_session on executions (session_id) where session_id is not null;
create index executions_of_hand on executions (hand_id, bound_at desc);

create table replicas (
  replica_id text primary key,
  build text not null,
  peer_url text not null default '',
  -- Public halves of the keys it signs session tokens with: a JWK set.
  public_keys text not null default '{"keys":[]}',
  started_at timestamptz not null default now(),
  seen_at timestamptz not null default now()
);

create table connected_harnesses (
  instance_id text primary key,
  replica_id text not null references replicas on delete cascade,
  build text not null,
  loops text not null,
  capacity integer not null,
  sessions integer not null default 0,
  model_source text not null default '',
  seen_at timestamptz not null default now()
);

create table connected_proxies (
  instance_id text primary key,
  replica_id text not null references replicas on delete cascade,
  build text not null,
  url text not null,
  sealing_keys text not null,
  seen_at timestamptz not null default now()
);

-- Keys that secrets may be sealed to; they outlive the connections of the proxies that published them.
create table sealing_keys (
  key_id text primary key,
  public_jwk text not null,
  published_at timestamptz not null default now()
);
`,
};

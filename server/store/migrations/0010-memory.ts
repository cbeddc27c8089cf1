import type { Migration } from "./migration.ts";

/** Memory stores, what is in them and what it was, and what sessions are given. */
export const memory: Migration = {
  number: 10,
  name: "memory",
  compatible: true,
  sql: `
create table memory_stores (
  memory_store_id text primary key,
  workspace_id text not null references workspaces,
  name text not null,
  description text not null default '',
  metadata text not null default '{}',
  -- Grows with every change of a memory: who has seen this number has seen all.
  revision bigint not null default 0,
  memory_count integer not null default 0,
  -- Of all versions that are kept.
  content_bytes bigint not null default 0,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  archived_at timestamptz
);
create index memory_stores_by_workspace on memory_stores (workspace_id, created_at, memory_store_id);

-- Paths compare byte by byte, so that what lies below a directory is one range.
create table memory_versions (
  memory_version_id text primary key,
  memory_store_id text not null references memory_stores on delete cascade,
  memory_id text not null,
  -- Within its memory, from 1.
  number integer not null,
  operation text not null,
  path text collate "C",
  content text,
  content_sha256 bytea,
  size_bytes integer,
  actor_kind text not null,
  actor_id text not null,
  -- What the request that made it asked for; null for one without an id.
  request_id text,
  request_hash bytea,
  created_at timestamptz not null default clock_timestamp(),
  redacted_at timestamptz,
  redacted_by text not null default ''
);
create unique index memory_versions_of_memory on memory_versions (memory_id, number);
create unique index memory_versions_by_request on memory_versions (memory_store_id, request_id) where request_id is not null;
create index memory_versions_by_store on memory_versions (memory_store_id, created_at, memory_version_id);
create index memory_versions_by_age on memory_versions (created_at);

create table memories (
  memory_id text primary key,
  memory_store_id text not null references memory_stores on delete cascade,
  memory_version_id text not null references memory_versions,
  path text collate "C" not null,
  content_sha256 bytea not null,
  size_bytes integer not null,
  version_number integer not null,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
);
create unique index memories_path on memories (memory_store_id, path);
create index memories_version on memories (memory_version_id);

-- Bytes of a workspace's versions; its lock is what makes the limit exact.
create table memory_usage (
  workspace_id text primary key references workspaces,
  bytes bigint not null default 0
);

-- JSON text of a list of SessionResource.
alter table sessions add column resources text not null default '[]';
-- Which sessions were given a store.
create table session_memory_stores (
  session_id text not null references sessions on delete cascade,
  memory_store_id text not null,
  primary key (memory_store_id, session_id)
);
create index session_memory_stores_by_session on session_memory_stores (session_id);
`,
};

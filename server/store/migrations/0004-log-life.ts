import type { Migration } from "./migration.ts";

/** Copies of logs that become visible at once, erasing bit by bit, and stored bytes. */
export const logLife: Migration = {
  number: 4,
  name: "log-life",
  compatible: true,
  sql: `
-- Events without a session: a fork or import that is being written, or what a deletion has not come to yet. Whoever writes
-- touches its row with every batch; what was left alone for long is erased.
create table unfinished_logs (
  session_id text primary key,
  touched_at timestamptz not null default clock_timestamp(),
  -- Nobody writes any more.
  erasing boolean not null default false
);

create table blobs (
  blob_id bigint generated always as identity primary key,
  workspace_id text not null references workspaces,
  -- Null while it is being written, and again once nobody refers to it: then its chunks are erased, a few at a time.
  sha256 bytea,
  size_bytes bigint not null default 0,
  touched_at timestamptz not null default clock_timestamp()
);
create unique index blobs_content on blobs (workspace_id, sha256) where sha256 is not null;
create index blobs_unfinished on blobs (touched_at) where sha256 is null;

create table blob_chunks (
  blob_id bigint not null references blobs,
  number integer not null,
  bytes bytea not null,
  primary key (blob_id, number)
);
-- What is stored is mostly compressed already.
alter table blob_chunks alter column bytes set storage external;

create table blob_references (
  blob_id bigint not null references blobs,
  owner text not null,
  primary key (blob_id, owner)
);
create index blob_references_owner on blob_references (owner);

-- Sizes of the workspace's finished blobs.
create table blob_usage (
  workspace_id text primary key references workspaces,
  bytes bigint not null default 0
);
`,
};

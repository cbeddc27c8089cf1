import type { Migration } from "./migration.ts";

/** Files with names, what sessions were given of them and have made, and skills. */
export const files: Migration = {
  number: 16,
  name: "files",
  compatible: true,
  sql: `
create table files (
  file_id text primary key,
  workspace_id text not null references workspaces,
  filename text not null,
  mime_type text not null,
  size_bytes bigint not null,
  sha256 bytea not null,
  -- Of a file that belongs to a session and goes with it.
  session_id text references sessions on delete cascade,
  -- Made by a hand of the session: then its name is its path there.
  is_output boolean not null default false,
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz
);
create index files_by_workspace on files (workspace_id, created_at, file_id);
create index files_by_session on files (session_id, created_at, file_id) where session_id is not null;
create index files_by_expiry on files (expires_at) where expires_at is not null;

create table skills (
  skill_id text primary key,
  workspace_id text not null references workspaces,
  display_name text not null,
  -- The newest that is there.
  latest_version_id text not null default '',
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
);
create index skills_by_workspace on skills (workspace_id, created_at, skill_id);

create table skill_versions (
  skill_version_id text primary key,
  skill_id text not null references skills on delete cascade,
  name text not null,
  description text not null,
  -- JSON text of a list of SkillFile.
  files text not null,
  size_bytes bigint not null,
  created_at timestamptz not null default clock_timestamp()
);
create index skill_versions_of_skill on skill_versions (skill_id, created_at, skill_version_id);

-- When what a hand left as output was last taken in; it is looked for again once the hand was used after that.
alter table hands add column outputs_at timestamptz;
`,
};

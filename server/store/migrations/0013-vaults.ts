import type { Migration } from "./migration.ts";

/** Vaults and credentials, whose secrets only a proxy can open; and an audit log that is only ever added to. */
export const vaults: Migration = {
  number: 13,
  name: "vaults",
  compatible: true,
  sql: `
create table vaults (
  vault_id text primary key,
  workspace_id text not null references workspaces,
  display_name text not null,
  metadata text not null default '{}',
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  archived_at timestamptz
);
create index vaults_list on vaults (workspace_id, created_at desc, vault_id desc);

create table credentials (
  credential_id text primary key,
  vault_id text not null references vaults on delete cascade,
  workspace_id text not null references workspaces,
  display_name text not null default '',
  metadata text not null default '{}',
  -- JSON text of a CredentialUse: what people see. What counts stands inside of what is sealed.
  use text not null,
  -- What it is found by (kit/vault/destination.ts).
  destination text not null,
  sealing_key_id text not null,
  -- Compact JWE; null once the credential has ended.
  sealed text,
  -- Of the sealed text.
  version bigint not null default 1,
  expires_at timestamptz,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  archived_at timestamptz,
  -- Which refresh goes on; one that is still named after its time was never finished.
  refresh_claim_id text,
  refresh_claimed_until timestamptz,
  refresh_unfinished boolean not null default false,
  refreshed_at timestamptz,
  refresh_failures integer not null default 0,
  refresh_retry_at timestamptz,
  refresh_problem text not null default '',
  refresh_broken boolean not null default false
);
create unique index credentials_destination on credentials (vault_id, destination) where archived_at is null;
create index credentials_list on credentials (vault_id, created_at desc, credential_id desc);
create index credentials_sealed on credentials (sealing_key_id) where sealed is not null;

alter table audit_entries add column session_id text;
create index audit_entries_workspace on audit_entries (workspace_id, at desc, audit_id desc);
create index audit_entries_session on audit_entries (session_id, at desc, audit_id desc) where session_id is not null;

create function refuse_audit_change() returns trigger language plpgsql as $body$
begin
  raise exception 'the audit log is only ever added to';
end $body$;
create trigger audit_entries_stay before update or delete on audit_entries for each row execute function refuse_audit_change();
create trigger audit_entries_all_stay before truncate on audit_entries for each statement execute function refuse_audit_change();
`,
};

import type { Migration } from "./migration.ts";

/**
 * Vaults that belong to one deployment, for tokens that were given with its repositories: its sessions use them, nobody sees
 * them, and they end when the deployment is archived and none of its sessions lives. What nobody sees, webhooks do not tell of.
 */
export const deploymentVaults: Migration = {
  number: 23,
  name: "deployment-vaults",
  compatible: true,
  sql: `
alter table vaults add column deployment_id text references deployments on delete cascade;
create unique index vaults_of_deployment on vaults (deployment_id) where deployment_id is not null;

-- In a vault that is a session's or a deployment's own.
alter table credentials add column is_own boolean not null default false;
update credentials c set is_own = true from vaults v where v.vault_id = c.vault_id and v.session_id is not null;

drop trigger vaults_made on vaults;
create trigger vaults_made after insert on vaults for each row
  when (new.session_id is null and new.deployment_id is null)
  execute function note_resource('vault', 'vault_id', 'created');
drop trigger vaults_archived on vaults;
create trigger vaults_archived after update of archived_at on vaults for each row
  when (new.session_id is null and new.deployment_id is null and old.archived_at is null and new.archived_at is not null)
  execute function note_resource('vault', 'vault_id', 'archived');
drop trigger vaults_deleted on vaults;
create trigger vaults_deleted after delete on vaults for each row
  when (old.session_id is null and old.deployment_id is null)
  execute function note_resource('vault', 'vault_id', 'deleted');

drop trigger credentials_made on credentials;
create trigger credentials_made after insert on credentials for each row when (not new.is_own)
  execute function note_resource('vault_credential', 'credential_id', 'created', 'vault_id');
drop trigger credentials_archived on credentials;
create trigger credentials_archived after update of archived_at on credentials for each row
  when (not new.is_own and old.archived_at is null and new.archived_at is not null)
  execute function note_resource('vault_credential', 'credential_id', 'archived', 'vault_id');
drop trigger credentials_deleted on credentials;
create trigger credentials_deleted after delete on credentials for each row when (not old.is_own)
  execute function note_resource('vault_credential', 'credential_id', 'deleted', 'vault_id');
`,
};

/** Vaults of deployments' own. What changes them holds the deployment's row, so that there is one, and its tokens are of one time. */
import type { OwnVault } from "../session-vaults.ts";
import { insertAudit } from "./audit.ts";
import type { Queryable } from "./pool.ts";
import { insertOwnCredential, ownDetail } from "./session-vaults.ts";
import type { Transaction } from "./transaction.ts";

interface DeploymentPlace {
  readonly deploymentId: string;
  readonly workspaceId: string;
}

const NAME = "tokens of the deployment's repositories";

export async function findDeploymentVault(
  db: Queryable,
  deploymentId: string,
): Promise<{ vaultId: string; hasTokens: boolean } | undefined> {
  const { rows } = await db.query<{ vault_id: string; has_tokens: boolean }>(
    `select vault_id, exists (select from credentials c where c.vault_id = v.vault_id) as has_tokens
     from vaults v where deployment_id = $1`,
    [deploymentId],
  );
  return rows[0] && { vaultId: rows[0].vault_id, hasTokens: rows[0].has_tokens };
}

/** These are all that there are from now on. Makes the vault unless it is there. */
export async function replaceTokens(
  transaction: Transaction,
  { deploymentId, workspaceId }: DeploymentPlace,
  { vaultId, credentials, actor }: OwnVault,
): Promise<void> {
  const about = { actor, workspaceId };
  const { rowCount } = await transaction.query(
    `insert into vaults (vault_id, workspace_id, display_name, deployment_id) values ($1, $2, $3, $4)
     on conflict (deployment_id) where deployment_id is not null do nothing`,
    [vaultId, workspaceId, NAME, deploymentId],
  );
  if (rowCount === 1) {
    const detail = { deployment_id: deploymentId };
    await insertAudit(transaction, { ...about, action: "vault.create", subject: vaultId, detail });
  }
  await eraseTokens(transaction, vaultId, about);
  for (const credential of credentials) {
    await insertOwnCredential(transaction, workspaceId, vaultId, credential);
    const detail = { ...ownDetail(vaultId, credential), deployment_id: deploymentId };
    const subject = credential.credentialId;
    await insertAudit(transaction, { ...about, action: "credential.create", subject, detail });
  }
}

/** Nobody lists them, so none is kept without its secret. */
async function eraseTokens(
  transaction: Transaction,
  vaultId: string,
  about: { readonly actor: string; readonly workspaceId: string },
): Promise<void> {
  const { rows } = await transaction.query<{ credential_id: string }>(
    "delete from credentials where vault_id = $1 returning credential_id",
    [vaultId],
  );
  for (const { credential_id: subject } of rows) {
    const detail = { vault_id: vaultId };
    await insertAudit(transaction, { ...about, action: "credential.delete", subject, detail });
  }
}

/**
 * Ends the vaults of deployments that are archived and have no session that lives, at most `limit`; of these deployments, or
 * of any. Returns how many.
 */
export async function endDeploymentVaults(
  transaction: Transaction,
  limit: number,
  deploymentIds?: readonly string[],
): Promise<number> {
  const { rows } = await transaction.query<{ vault_id: string; workspace_id: string; deployment_id: string }>(
    `update vaults set archived_at = clock_timestamp(), updated_at = clock_timestamp() where vault_id in (
       select v.vault_id from vaults v join deployments d on d.deployment_id = v.deployment_id
         where v.deployment_id is not null and v.archived_at is null and d.archived_at is not null
           and ($2::text[] is null or d.deployment_id = any($2))
           and not exists (select from sessions s where s.deployment_id = d.deployment_id and s.archived_at is null)
         order by v.vault_id limit $1 for update of v skip locked)
     returning vault_id, workspace_id, deployment_id`,
    [limit, deploymentIds ?? null],
  );
  for (const { vault_id: subject, workspace_id: workspaceId, deployment_id: deploymentId } of rows) {
    const about = { actor: `deployment ${deploymentId}`, workspaceId };
    await eraseTokens(transaction, subject, about);
    const detail = { deployment_id: deploymentId };
    await insertAudit(transaction, { ...about, action: "vault.archive", subject, detail });
  }
  return rows.length;
}

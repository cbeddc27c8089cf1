/** Vaults of sessions' own. All of this happens in transactions that hold the session's row. */
import { toJsonString } from "@bufbuild/protobuf";
import { TendonError } from "../../../kit/errors.ts";
import { hostOf } from "../../../kit/vault/destination.ts";
import { CredentialUseSchema } from "../../../proto/gen/tendon/v1/vault_service_pb.js";
import type { OwnCredential, OwnVault, OwnVaultPlace } from "../session-vaults.ts";
import { insertAudit } from "./audit.ts";
import type { Queryable } from "./pool.ts";
import type { Transaction } from "./transaction.ts";

interface SessionPlace {
  readonly sessionId: string;
  readonly workspaceId: string;
}

const NAME = "tokens of the session's repositories";

export async function findOwnVault(
  db: Queryable,
  sessionId: string,
  destination: string,
): Promise<OwnVaultPlace> {
  const { rows } = await db.query<{ vault_id: string; credential_id: string | null }>(
    `select v.vault_id, c.credential_id from vaults v
       left join credentials c on c.vault_id = v.vault_id and c.destination = $2 and c.archived_at is null
     where v.session_id = $1`,
    [sessionId, destination],
  );
  return { vaultId: rows[0]?.vault_id, credentialId: rows[0]?.credential_id ?? undefined };
}

/** Makes the vault unless it is there. VERSION_MISMATCH when vault or credential are others than what was sealed for. */
export async function putOwnCredentials(
  transaction: Transaction,
  place: SessionPlace,
  { vaultId, credentials, actor }: OwnVault,
): Promise<void> {
  const { sessionId, workspaceId } = place;
  const about = { actor, workspaceId, sessionId };
  const { rowCount } = await transaction.query(
    `insert into vaults (vault_id, workspace_id, display_name, session_id) values ($1, $2, $3, $4)
     on conflict (session_id) where session_id is not null do nothing`,
    [vaultId, workspaceId, NAME, sessionId],
  );
  if (rowCount === 1) await insertAudit(transaction, { ...about, action: "vault.create", subject: vaultId });
  for (const credential of credentials) {
    const there = await findOwnVault(transaction, sessionId, credential.destination);
    const isAnother = there.credentialId !== undefined && there.credentialId !== credential.credentialId;
    if (there.vaultId !== vaultId || isAnother)
      throw new TendonError("VERSION_MISMATCH", "somebody else has just replaced the token; try again");
    const isNew = there.credentialId === undefined;
    await (isNew
      ? insertOwnCredential(transaction, workspaceId, vaultId, credential)
      : replace(transaction, credential));
    const action = isNew ? "credential.create" : "credential.update";
    const subject = credential.credentialId;
    await insertAudit(transaction, { ...about, action, subject, detail: ownDetail(vaultId, credential) });
  }
}

/** For the audit log. */
export function ownDetail(vaultId: string, { use }: OwnCredential) {
  const url = use.kind.case === "git" ? use.kind.value.url : "";
  return { vault_id: vaultId, kind: "git", host: hostOf(url), sealed_by: "server" };
}

/** Its secrets are erased, as those of a vault that is archived. */
export async function endOwnVault(transaction: Transaction, { sessionId, workspaceId }: SessionPlace) {
  const { rows } = await transaction.query<{ vault_id: string }>(
    `update vaults set archived_at = clock_timestamp(), updated_at = clock_timestamp()
     where session_id = $1 and archived_at is null returning vault_id`,
    [sessionId],
  );
  const vaultId = rows[0]?.vault_id;
  if (vaultId === undefined) return;
  await transaction.query(
    `update credentials set sealed = null, archived_at = clock_timestamp(), updated_at = clock_timestamp(),
       version = version + 1 where vault_id = $1 and archived_at is null`,
    [vaultId],
  );
  const actor = `session ${sessionId}`;
  await insertAudit(transaction, {
    actor,
    workspaceId,
    sessionId,
    action: "vault.archive",
    subject: vaultId,
  });
}

export async function insertOwnCredential(
  transaction: Transaction,
  workspaceId: string,
  vaultId: string,
  { credentialId, use, destination, sealed }: OwnCredential,
): Promise<void> {
  await transaction.query(
    `insert into credentials (credential_id, vault_id, workspace_id, use, destination, sealing_key_id, sealed, is_own)
     values ($1, $2, $3, $4, $5, $6, $7, true)`,
    [
      credentialId,
      vaultId,
      workspaceId,
      toJsonString(CredentialUseSchema, use),
      destination,
      sealed.keyId,
      sealed.text,
    ],
  );
}

async function replace(
  transaction: Transaction,
  { credentialId, use, sealed }: OwnCredential,
): Promise<void> {
  await transaction.query(
    `update credentials set use = $2, sealing_key_id = $3, sealed = $4, version = version + 1,
       updated_at = clock_timestamp() where credential_id = $1`,
    [credentialId, toJsonString(CredentialUseSchema, use), sealed.keyId, sealed.text],
  );
}

import { toJsonString } from "@bufbuild/protobuf";
import { TendonError } from "../../../kit/errors.ts";
import { type Credential, CredentialUseSchema } from "../../../proto/gen/tendon/v1/vault_service_pb.js";
import {
  type CredentialChange,
  type CredentialStore,
  MAX_CREDENTIALS,
  type NewCredential,
} from "../credentials.ts";
import { SCOPES } from "../request-ids.ts";
import { insertAudit } from "./audit.ts";
import {
  CREDENTIAL_COLUMNS,
  type CredentialRow,
  findCredential,
  findListedCredential,
  toCredential,
  toStored,
} from "./credential-rows.ts";
import { credentialUses } from "./credential-uses.ts";
import { listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { dateOf } from "./timestamps.ts";
import { inTransaction, type Transaction, translateViolation } from "./transaction.ts";
import { findVault, mergedMetadata, vaultArchived } from "./vaults.ts";

export function createCredentialStore(pool: Pool): CredentialStore {
  return {
    ...credentialUses(pool),
    create: (credential) =>
      distinct(() => inTransaction(pool, (transaction) => insert(transaction, credential))),
    async find(credentialId, workspaceId) {
      const row = await findListedCredential(pool, credentialId, workspaceId);
      return row && toStored(row);
    },
    list({ vaultId, includeArchived, page }) {
      const where = ["c.vault_id = $1", ...(includeArchived ? [] : ["c.archived_at is null"])];
      const query = { columns: CREDENTIAL_COLUMNS, from: "credentials c", where, values: [vaultId], page };
      return listPage<CredentialRow, Credential>(
        pool,
        { ...query, at: "c.created_at", id: "c.credential_id" },
        toCredential,
      );
    },
    update: (change) => distinct(() => inTransaction(pool, (transaction) => update(transaction, change))),
    archive: (credentialId, workspaceId, audit) =>
      inTransaction(pool, async (transaction) => {
        const before = await findListedCredential(transaction, credentialId, workspaceId, "for update");
        if (before === undefined || before.archived_at !== null) return before && toCredential(before);
        await transaction.query(
          `update credentials set sealed = null, version = version + 1, archived_at = clock_timestamp(),
             updated_at = clock_timestamp() where credential_id = $1`,
          [credentialId],
        );
        await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id });
        return toCredential((await findCredential(transaction, credentialId, undefined))!);
      }),
    delete: (credentialId, workspaceId, audit) =>
      inTransaction(pool, async (transaction) => {
        const before = await findListedCredential(transaction, credentialId, workspaceId, "for update");
        if (before === undefined) return false;
        await transaction.query("delete from credentials where credential_id = $1", [credentialId]);
        await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id });
        return true;
      }),
  };
}

/** The vault's row is locked: its credentials are counted, and it cannot be archived meanwhile. */
async function insert(transaction: Transaction, wanted: NewCredential): Promise<Credential | undefined> {
  const { id, vaultId, use, destination, sealed, audit } = wanted;
  const vault = await findVault(transaction, vaultId, wanted.workspaceId, "for update");
  if (vault === undefined) return undefined;
  const workspaceId = vault.workspace_id;
  const claim = { ...wanted.request, workspaceId, scope: SCOPES.credential, subjectId: id };
  const earlier = await claimRequestId(transaction, claim);
  if (earlier !== undefined) return stillThere(transaction, earlier);
  if (vault.archived_at !== null) throw vaultArchived(vaultId);
  await checkRoom(transaction, vaultId);
  await transaction.query(
    `insert into credentials (credential_id, vault_id, workspace_id, display_name, metadata, use, destination,
       sealing_key_id, sealed, expires_at) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
    [
      id,
      vaultId,
      workspaceId,
      wanted.displayName,
      JSON.stringify(wanted.metadata),
      toJsonString(CredentialUseSchema, use),
      destination,
      sealed.keyId,
      sealed.text,
      dateOf(wanted.expiresAtMs),
    ],
  );
  await insertAudit(transaction, { ...audit, workspaceId });
  return toCredential((await findCredential(transaction, id, undefined))!);
}

async function stillThere(db: Queryable, credentialId: string): Promise<Credential> {
  const row = await findCredential(db, credentialId, undefined);
  if (row !== undefined) return toCredential(row);
  throw new TendonError("REQUEST_ID_REUSED", "request_id: what it made has been deleted; use a new one", {
    field: "request_id",
  });
}

async function checkRoom(db: Queryable, vaultId: string): Promise<void> {
  const { rows } = await db.query<{ live: number }>(
    "select count(*)::integer as live from credentials where vault_id = $1 and archived_at is null",
    [vaultId],
  );
  if ((rows[0]?.live ?? 0) < MAX_CREDENTIALS) return;
  throw new TendonError(
    "LIMIT_EXCEEDED",
    `the vault "${vaultId}" has ${MAX_CREDENTIALS} credentials, which is the limit`,
    {
      id: vaultId,
      limit: "credentials",
      most: String(MAX_CREDENTIALS),
    },
  );
}

async function update(transaction: Transaction, change: CredentialChange): Promise<Credential | undefined> {
  const { credentialId, workspaceId, displayName, metadata, secret, audit } = change;
  const before = await findListedCredential(transaction, credentialId, workspaceId, "for update");
  if (before === undefined) return undefined;
  if (before.archived_at !== null) {
    throw new TendonError("CREDENTIAL_ARCHIVED", `the credential "${credentialId}" is archived`, {
      id: credentialId,
    });
  }
  const name = displayName ?? before.display_name;
  const pairs = mergedMetadata(before.metadata, metadata);
  if (secret === undefined && name === before.display_name && pairs === before.metadata)
    return toCredential(before);
  await transaction.query(
    `update credentials set display_name = $2, metadata = $3, updated_at = clock_timestamp() where credential_id = $1`,
    [credentialId, name, pairs],
  );
  if (secret !== undefined) await replaceSecret(transaction, before, secret);
  await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id });
  return toCredential((await findCredential(transaction, credentialId, undefined))!);
}

/** A secret that was sealed anew while a refresh goes on would lose the rotated token; one that is new may. */
async function replaceSecret(
  transaction: Transaction,
  before: CredentialRow,
  secret: NonNullable<CredentialChange["secret"]>,
): Promise<void> {
  const { expectedVersion, use, destination, sealed, expiresAtMs, expiry, isNew } = secret;
  if (expectedVersion !== undefined) {
    const { credential_id: id, is_refreshing: isRefreshing, version } = before;
    if (isRefreshing)
      throw new TendonError("CREDENTIAL_REFRESHING", "the credential's token is being refreshed; try again", {
        id,
      });
    if (expectedVersion !== version)
      throw new TendonError("VERSION_MISMATCH", "somebody else has just changed the credential; try again", {
        id,
      });
  }
  await transaction.query(
    `update credentials set use = $2, destination = $3, sealing_key_id = $4, sealed = $5, version = version + 1,
       expires_at = ${expiry === "set" ? "$6" : "case when $6::timestamptz is null then expires_at else $6 end"}
     where credential_id = $1`,
    [
      before.credential_id,
      toJsonString(CredentialUseSchema, use),
      destination,
      sealed.keyId,
      sealed.text,
      dateOf(expiresAtMs),
    ],
  );
  if (!isNew) return;
  await transaction.query(
    `update credentials set refresh_claim_id = null, refresh_claimed_until = null, refresh_unfinished = false,
       refresh_failures = 0, refresh_retry_at = null, refresh_problem = '', refresh_broken = false, refreshed_at = null
     where credential_id = $1`,
    [before.credential_id],
  );
}

async function distinct<T>(run: () => Promise<T>): Promise<T> {
  try {
    return await run();
  } catch (error) {
    throw translateViolation(error, {
      credentials_destination: () =>
        new TendonError("ALREADY_EXISTS", "use: another credential of the vault has the same destination", {
          field: "use",
        }),
      credentials_pkey: () =>
        new TendonError("ALREADY_EXISTS", "credential_id: another credential has this id", {
          field: "credential_id",
        }),
    });
  }
}

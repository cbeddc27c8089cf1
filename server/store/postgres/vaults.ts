import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { invalidField, TendonError } from "../../../kit/errors.ts";
import { type Vault, VaultSchema } from "../../../proto/gen/tendon/v1/vault_service_pb.js";
import type { VaultStore } from "../vaults.ts";
import { insertAudit } from "./audit.ts";
import { listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { timeField } from "./timestamps.ts";
import { inTransaction } from "./transaction.ts";

export interface VaultRow {
  vault_id: string;
  workspace_id: string;
  display_name: string;
  metadata: string;
  created_at: Date;
  updated_at: Date;
  archived_at: Date | null;
}

const COLUMNS = "vault_id, workspace_id, display_name, metadata, created_at, updated_at, archived_at";
const MAX_PAIRS = 16;
/** A vault that is a session's or a deployment's own is nobody else's to see, to change, or to give to a session. */
const LISTED = "session_id is null and deployment_id is null";

export function createVaultStore(pool: Pool): VaultStore {
  return {
    create: ({ id, workspaceId, displayName, metadata, request, audit }) =>
      inTransaction(pool, async (transaction) => {
        const claim = { ...request, workspaceId, scope: "vault", subjectId: id };
        const earlier = await claimRequestId(transaction, claim);
        if (earlier !== undefined) return toVault(await stillThere(transaction, earlier));
        const { rows } = await transaction.query<VaultRow>(
          `insert into vaults (vault_id, workspace_id, display_name, metadata) values ($1, $2, $3, $4) returning ${COLUMNS}`,
          [id, workspaceId, displayName, JSON.stringify(metadata)],
        );
        await insertAudit(transaction, audit);
        return toVault(rows[0]!);
      }),
    async find(vaultId, workspaceId) {
      const row = await findVault(pool, vaultId, workspaceId);
      return row && toVault(row);
    },
    async findAll(vaultIds) {
      if (vaultIds.length === 0) return [];
      const { rows } = await pool.query<VaultRow>(
        `select ${COLUMNS} from vaults where vault_id = any($1) and ${LISTED}`,
        [vaultIds],
      );
      return rows.map(toVault);
    },
    list({ workspaceId, includeArchived, page }) {
      const values: unknown[] = [];
      const where: string[] = [LISTED];
      if (workspaceId !== undefined) where.push(`workspace_id = $${values.push(workspaceId)}`);
      if (!includeArchived) where.push("archived_at is null");
      const query = { columns: COLUMNS, from: "vaults", where, values, page };
      return listPage<VaultRow, Vault>(pool, { ...query, at: "created_at", id: "vault_id" }, toVault);
    },
    update: ({ vaultId, workspaceId, displayName, metadata, audit }) =>
      inTransaction(pool, async (transaction) => {
        const before = await findVault(transaction, vaultId, workspaceId, "for update");
        if (before === undefined) return undefined;
        if (before.archived_at !== null) throw vaultArchived(vaultId);
        const name = displayName ?? before.display_name;
        const pairs = mergedMetadata(before.metadata, metadata);
        if (name === before.display_name && pairs === before.metadata) return toVault(before);
        const { rows } = await transaction.query<VaultRow>(
          `update vaults set display_name = $2, metadata = $3, updated_at = clock_timestamp()
           where vault_id = $1 returning ${COLUMNS}`,
          [vaultId, name, pairs],
        );
        await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id });
        return toVault(rows[0]!);
      }),
    archive: (vaultId, workspaceId, audit) =>
      inTransaction(pool, async (transaction) => {
        const before = await findVault(transaction, vaultId, workspaceId, "for update");
        if (before === undefined || before.archived_at !== null) return before && toVault(before);
        await transaction.query(
          `update credentials set sealed = null, archived_at = clock_timestamp(), updated_at = clock_timestamp(),
             version = version + 1 where vault_id = $1 and archived_at is null`,
          [vaultId],
        );
        const { rows } = await transaction.query<VaultRow>(
          `update vaults set archived_at = clock_timestamp(), updated_at = clock_timestamp()
           where vault_id = $1 returning ${COLUMNS}`,
          [vaultId],
        );
        await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id });
        return toVault(rows[0]!);
      }),
    delete: (vaultId, workspaceId, audit) =>
      inTransaction(pool, async (transaction) => {
        const before = await findVault(transaction, vaultId, workspaceId, "for update");
        if (before === undefined) return false;
        await transaction.query("delete from vaults where vault_id = $1", [vaultId]);
        await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id });
        return true;
      }),
  };
}

export async function findVault(
  db: Queryable,
  vaultId: string,
  workspaceId: string | undefined,
  lock = "",
): Promise<VaultRow | undefined> {
  const { rows } = await db.query<VaultRow>(
    `select ${COLUMNS} from vaults
     where vault_id = $1 and ${LISTED} and ($2::text is null or workspace_id = $2) ${lock}`,
    [vaultId, workspaceId ?? null],
  );
  return rows[0];
}

async function stillThere(db: Queryable, vaultId: string): Promise<VaultRow> {
  const row = await findVault(db, vaultId, undefined);
  if (row !== undefined) return row;
  throw new TendonError("REQUEST_ID_REUSED", "request_id: what it made has been deleted; use a new one", {
    field: "request_id",
  });
}

export function vaultArchived(vaultId: string): TendonError {
  return new TendonError("VAULT_ARCHIVED", `the vault "${vaultId}" is archived`, { id: vaultId });
}

/** JSON text of the pairs once those of `change` are set; an empty value deletes its key. INVALID_FIELD for too many. */
export function mergedMetadata(before: string, change: Readonly<Record<string, string>>): string {
  const pairs = new Map(Object.entries(JSON.parse(before) as Record<string, string>));
  for (const [key, value] of Object.entries(change)) {
    if (value === "") pairs.delete(key);
    else pairs.set(key, value);
  }
  if (pairs.size > MAX_PAIRS)
    throw invalidField("metadata", `there would be ${pairs.size} pairs, at most ${MAX_PAIRS}`);
  return JSON.stringify(Object.fromEntries(pairs));
}

function toVault(row: VaultRow): Vault {
  return create(VaultSchema, {
    id: row.vault_id,
    workspaceId: row.workspace_id,
    displayName: row.display_name,
    metadata: JSON.parse(row.metadata) as Record<string, string>,
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
    ...timeField("archivedAt", row.archived_at),
  });
}

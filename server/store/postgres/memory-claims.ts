/** Who may read and write memories, checked in the transaction that does it. */
import { notFound, TendonError } from "../../../kit/errors.ts";
import type { MemoryClaim } from "../memories.ts";
import { leaseFenced, storeArchived } from "../refusals.ts";
import type { Queryable } from "./pool.ts";
import type { Transaction } from "./transaction.ts";

export interface LockedStore {
  readonly workspaceId: string;
  readonly memoryCount: number;
  readonly isArchived: boolean;
}

/** NOT_FOUND, LEASE_FENCED. */
export async function checkReads(db: Queryable, claim: MemoryClaim): Promise<void> {
  await checkSession(db, claim, "read", "");
  const { rowCount } = await db.query(
    "select 1 from memory_stores where memory_store_id = $1 and ($2::text is null or workspace_id = $2)",
    [claim.memoryStoreId, claim.workspaceId ?? null],
  );
  if (rowCount === 0) throw notFound("memory store", claim.memoryStoreId);
}

/**
 * Locks the store: its changes come one after the other. A session is kept from losing its lease until the end of the
 * transaction. NOT_FOUND, LEASE_FENCED, ROLE_NOT_ALLOWED. One that is archived takes no texts, which `checkTakesTexts` says.
 */
export async function lockForWrite(transaction: Transaction, claim: MemoryClaim): Promise<LockedStore> {
  await checkSession(transaction, claim, "write", "for share");
  const { rows } = await transaction.query<{
    workspace_id: string;
    memory_count: number;
    archived: boolean;
  }>(
    `select workspace_id, memory_count, archived_at is not null as archived from memory_stores
       where memory_store_id = $1 and ($2::text is null or workspace_id = $2) for update`,
    [claim.memoryStoreId, claim.workspaceId ?? null],
  );
  const [row] = rows;
  if (row === undefined) throw notFound("memory store", claim.memoryStoreId);
  return { workspaceId: row.workspace_id, memoryCount: row.memory_count, isArchived: row.archived };
}

/** After a repeat was looked for: one is answered whatever has become of the store. MEMORY_STORE_ARCHIVED. */
export function checkTakesTexts({ isArchived }: LockedStore, { memoryStoreId }: MemoryClaim): void {
  if (isArchived) throw storeArchived(memoryStoreId);
}

interface GivenStore {
  readonly memoryStore?: { readonly memoryStoreId?: string; readonly access?: string };
}

async function checkSession(
  db: Queryable,
  { memoryStoreId, session }: MemoryClaim,
  wants: "read" | "write",
  lock: string,
): Promise<void> {
  if (session === undefined) return;
  const { rows } = await db.query<{ resources: string; lease_id: string | null; lease_epoch: number }>(
    `select resources, lease_id, lease_epoch from sessions where session_id = $1 ${lock}`,
    [session.sessionId],
  );
  const [row] = rows;
  if (row === undefined) throw notFound("session", session.sessionId);
  const isOlder = session.epoch !== undefined && session.epoch !== BigInt(row.lease_epoch);
  const isOther = session.leaseId !== undefined && session.leaseId !== row.lease_id;
  if (isOlder || isOther) throw leaseFenced(String(row.lease_epoch));
  const given = (JSON.parse(row.resources) as GivenStore[]).find(
    ({ memoryStore }) => memoryStore?.memoryStoreId === memoryStoreId,
  )?.memoryStore;
  if (given === undefined) throw notFound("memory store of the session", memoryStoreId);
  if (wants === "write" && given.access === "MEMORY_ACCESS_READ_ONLY") {
    throw new TendonError("ROLE_NOT_ALLOWED", "the session may read this memory store and not change it", {
      memory_store_id: memoryStoreId,
    });
  }
}

import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { invalidField, notFound, TendonError } from "../../../kit/errors.ts";
import { type MemoryStore, MemoryStoreSchema } from "../../../proto/gen/tendon/v1/memory_pb.js";
import type { MemoryStoreStore } from "../memory-stores.ts";
import { storeArchived } from "../refusals.ts";
import { insertAudit } from "./audit.ts";
import { addMemoryBytes } from "./memory-usage.ts";
import { beforeEndOf, listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { timeField } from "./timestamps.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

interface Row {
  memory_store_id: string;
  workspace_id: string;
  name: string;
  description: string;
  metadata: string;
  memory_count: number;
  content_bytes: number;
  created_at: Date;
  updated_at: Date;
  archived_at: Date | null;
}

const COLUMNS = `memory_store_id, workspace_id, name, description, metadata, memory_count, content_bytes,
  created_at, updated_at, archived_at`;
const MAX_METADATA_PAIRS = 16;

export function createMemoryStoreStore(pool: Pool): MemoryStoreStore {
  return {
    create: (store) => inTransaction(pool, (transaction) => createStore(transaction, store)),
    async find(memoryStoreId) {
      const row = await findRow(pool, memoryStoreId, undefined);
      return row && toStore(row);
    },
    list({ workspaceId, includeArchived, createdAtOrAfter, createdAtOrBefore, page }) {
      const values: unknown[] = [];
      const where: string[] = [];
      if (workspaceId !== undefined) where.push(`workspace_id = $${values.push(workspaceId)}`);
      if (!includeArchived) where.push("archived_at is null");
      if (createdAtOrAfter) where.push(`created_at >= $${values.push(createdAtOrAfter)}`);
      if (createdAtOrBefore) where.push(beforeEndOf("created_at", values.push(createdAtOrBefore)));
      const query = { columns: COLUMNS, from: "memory_stores", where, values, page };
      return listPage<Row, MemoryStore>(pool, { ...query, at: "created_at", id: "memory_store_id" }, toStore);
    },
    update: (change) => inTransaction(pool, (transaction) => update(transaction, change)),
    archive: (memoryStoreId, workspaceId, audit) =>
      inTransaction(pool, async (transaction) => {
        const before = await findRow(transaction, memoryStoreId, workspaceId, "for update");
        if (before === undefined || before.archived_at !== null) return before && toStore(before);
        const { rows } = await transaction.query<Row>(
          `update memory_stores set archived_at = now(), updated_at = now() where memory_store_id = $1 returning ${COLUMNS}`,
          [memoryStoreId],
        );
        await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id });
        return toStore(rows[0]!);
      }),
    delete: (memoryStoreId, workspaceId, audit) =>
      inTransaction(pool, async (transaction) => {
        const before = await findRow(transaction, memoryStoreId, workspaceId, "for update");
        if (before === undefined) return false;
        await transaction.query("delete from memory_stores where memory_store_id = $1", [memoryStoreId]);
        await addMemoryBytes(transaction, before.workspace_id, -before.content_bytes);
        const detail = { name: before.name, memories: before.memory_count };
        await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id, detail });
        return true;
      }),
  };
}

async function findRow(
  db: Queryable,
  memoryStoreId: string,
  workspaceId: string | undefined,
  lock = "",
): Promise<Row | undefined> {
  const { rows } = await db.query<Row>(
    `select ${COLUMNS} from memory_stores
       where memory_store_id = $1 and ($2::text is null or workspace_id = $2) ${lock}`,
    [memoryStoreId, workspaceId ?? null],
  );
  return rows[0];
}

async function createStore(
  transaction: Transaction,
  { id, workspaceId, name, description, metadata, request }: Parameters<MemoryStoreStore["create"]>[0],
): Promise<MemoryStore> {
  const claim = { ...request, workspaceId, scope: "memory_store", subjectId: id };
  const earlier = await claimRequestId(transaction, claim);
  if (earlier !== undefined) {
    const first = await findRow(transaction, earlier, workspaceId);
    if (first === undefined) throw notFound("memory store", earlier);
    return toStore(first);
  }
  await checkCount(transaction, workspaceId);
  const { rows } = await transaction.query<Row>(
    `insert into memory_stores (memory_store_id, workspace_id, name, description, metadata)
       values ($1, $2, $3, $4, $5) returning ${COLUMNS}`,
    [id, workspaceId, name, description, JSON.stringify(metadata)],
  );
  return toStore(rows[0]!);
}

/** One at a time where there is a limit, so that two at once do not get past it. */
async function checkCount(transaction: Transaction, workspaceId: string): Promise<void> {
  const { rows } = await transaction.query<{ most: number }>(
    "select coalesce((limits::json ->> 'memoryStores')::integer, 0) as most from workspaces where workspace_id = $1",
    [workspaceId],
  );
  const most = rows[0]?.most ?? 0;
  if (most === 0) return;
  await transaction.query("select 1 from workspaces where workspace_id = $1 for no key update", [
    workspaceId,
  ]);
  const counted = await transaction.query<{ stores: number }>(
    "select count(*)::integer as stores from memory_stores where workspace_id = $1 and archived_at is null",
    [workspaceId],
  );
  if ((counted.rows[0]?.stores ?? 0) < most) return;
  throw new TendonError("LIMIT_EXCEEDED", `the workspace may have ${most} memory stores and has them`, {
    limit: "memory_stores",
    most: String(most),
  });
}

async function update(
  transaction: Transaction,
  change: Parameters<MemoryStoreStore["update"]>[0],
): Promise<MemoryStore | undefined> {
  const before = await findRow(transaction, change.memoryStoreId, change.workspaceId, "for update");
  if (before === undefined) return undefined;
  if (before.archived_at !== null) throw storeArchived(before.memory_store_id);
  const name = change.name ?? before.name;
  const description = change.description ?? before.description;
  const metadata = mergeMetadata(before.metadata, change.metadata);
  if (name === before.name && description === before.description && metadata === before.metadata)
    return toStore(before);
  const { rows } = await transaction.query<Row>(
    `update memory_stores set name = $2, description = $3, metadata = $4, updated_at = now()
       where memory_store_id = $1 returning ${COLUMNS}`,
    [change.memoryStoreId, name, description, metadata],
  );
  return toStore(rows[0]!);
}

function mergeMetadata(before: string, change: Readonly<Record<string, string>>): string {
  const merged = new Map(Object.entries(JSON.parse(before) as Record<string, string>));
  for (const [key, value] of Object.entries(change)) {
    if (value === "") merged.delete(key);
    else merged.set(key, value);
  }
  if (merged.size > MAX_METADATA_PAIRS)
    throw invalidField("metadata", `there would be ${merged.size} pairs, at most ${MAX_METADATA_PAIRS}`);
  return JSON.stringify(Object.fromEntries(merged));
}

function toStore(row: Row): MemoryStore {
  return create(MemoryStoreSchema, {
    id: row.memory_store_id,
    workspaceId: row.workspace_id,
    name: row.name,
    description: row.description,
    metadata: JSON.parse(row.metadata) as Record<string, string>,
    memoryCount: row.memory_count,
    contentBytes: BigInt(row.content_bytes),
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
    ...timeField("archivedAt", row.archived_at),
  });
}

import { notFound, TendonError } from "../../../kit/errors.ts";
import type { MemoryVersion } from "../../../proto/gen/tendon/v1/memory_pb.js";
import { type MemoriesStore, RECENT_VERSIONS } from "../memories.ts";
import { insertAudit } from "./audit.ts";
import { createMemory, deleteMemory, findMemory, updateMemory } from "./memory-changes.ts";
import { checkReads, lockForWrite } from "./memory-claims.ts";
import {
  MEMORY_COLUMNS,
  type MemoryRow,
  operationName,
  toMemory,
  toVersion,
  VERSION_COLUMNS,
  type VersionRow,
} from "./memory-rows.ts";
import { addMemoryBytes } from "./memory-usage.ts";
import { beforeEndOf, listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

const PRUNE_LIMIT = 1_000;

export function createMemoriesStore(pool: Pool): MemoriesStore {
  return {
    create: (write) => inTransaction(pool, (transaction) => createMemory(transaction, write)),
    async find(claim, name) {
      await checkReads(pool, claim);
      const row = await findMemory(pool, claim.memoryStoreId, name);
      return toMemory(row, row.content);
    },
    async list(claim, prefix) {
      await checkReads(pool, claim);
      const { rows } = await pool.query<MemoryRow>(
        `select ${MEMORY_COLUMNS} from memories where memory_store_id = $1
           ${prefix === "" ? "" : "and path > $2 and path < $3"} order by path`,
        prefix === "" ? [claim.memoryStoreId] : [claim.memoryStoreId, prefix, `${prefix.slice(0, -1)}0`],
      );
      return rows.map((row) => toMemory(row));
    },
    async contents(memoryIds) {
      const { rows } = await pool.query<{ memory_id: string; content: string }>(
        `select m.memory_id, v.content from memories m join memory_versions v using (memory_version_id)
           where m.memory_id = any($1)`,
        [memoryIds],
      );
      return new Map(rows.map(({ memory_id, content }) => [memory_id, content]));
    },
    update: (write) => inTransaction(pool, (transaction) => updateMemory(transaction, write)),
    delete: (write) => inTransaction(pool, (transaction) => deleteMemory(transaction, write)),
    async findVersion(claim, name, withContent) {
      await checkReads(pool, claim);
      return toVersion(await findVersion(pool, claim.memoryStoreId, name, withContent));
    },
    listVersions: (query) => listVersions(pool, query),
    redactVersion: (request) => inTransaction(pool, (transaction) => redact(transaction, request)),
    index: (claim, knownRevision) => index(pool, claim, knownRevision),
    texts: (claim, paths, maxBytes) => texts(pool, claim, paths, maxBytes),
    prune: (olderThanMs) => inTransaction(pool, (transaction) => prune(transaction, olderThanMs)),
  };
}

async function findVersion(
  db: Queryable,
  memoryStoreId: string,
  { versionId, requestId }: { versionId: string; requestId: string },
  withContent: boolean,
  lock = "",
): Promise<VersionRow> {
  const { rows } = await db.query<VersionRow>(
    `select ${VERSION_COLUMNS}${withContent ? ", content" : ""} from memory_versions
       where memory_store_id = $1 and ${versionId === "" ? "request_id" : "memory_version_id"} = $2 ${lock}`,
    [memoryStoreId, versionId === "" ? requestId : versionId],
  );
  if (rows[0]) return rows[0];
  if (versionId !== "") throw notFound("memory version", versionId);
  throw new TendonError("NOT_FOUND", `no memory version was made by the request "${requestId}"`, {
    resource: "memory version",
    request_id: requestId,
  });
}

async function listVersions(pool: Pool, query: Parameters<MemoriesStore["listVersions"]>[0]) {
  const { claim, memoryId, actor, operation, createdAtOrAfter, createdAtOrBefore, page } = query;
  await checkReads(pool, claim);
  const values: unknown[] = [claim.memoryStoreId];
  const where = ["memory_store_id = $1"];
  if (memoryId !== "") where.push(`memory_id = $${values.push(memoryId)}`);
  if (actor !== undefined) {
    where.push(`actor_kind = $${values.push(actor.kind)}`, `actor_id = $${values.push(actor.id)}`);
  }
  const name = operationName(operation);
  if (name !== undefined) where.push(`operation = $${values.push(name)}`);
  if (createdAtOrAfter) where.push(`created_at >= $${values.push(createdAtOrAfter)}`);
  if (createdAtOrBefore) where.push(beforeEndOf("created_at", values.push(createdAtOrBefore)));
  const columns = query.withContent ? `${VERSION_COLUMNS}, content` : VERSION_COLUMNS;
  const list = { columns, from: "memory_versions", where, values, page };
  return listPage<VersionRow, MemoryVersion>(
    pool,
    { ...list, at: "created_at", id: "memory_version_id" },
    toVersion,
  );
}

async function redact(
  transaction: Transaction,
  { claim, versionId, actor, audit }: Parameters<MemoriesStore["redactVersion"]>[0],
): Promise<MemoryVersion> {
  const { workspaceId } = await lockForWrite(transaction, claim);
  const name = { versionId, requestId: "" };
  const version = await findVersion(transaction, claim.memoryStoreId, name, true);
  if (version.redacted_at !== null) return toVersion(version);
  const head = await transaction.query("select 1 from memories where memory_version_id = $1", [versionId]);
  if (head.rowCount > 0) {
    throw new TendonError(
      "MEMORY_VERSION_CURRENT",
      `the memory "${version.path}" is at this version; change or delete the memory first`,
      { memory_id: version.memory_id },
    );
  }
  const { rows } = await transaction.query<VersionRow>(
    `update memory_versions set path = null, content = null, content_sha256 = null, size_bytes = null,
       redacted_at = clock_timestamp(), redacted_by = $2 where memory_version_id = $1 returning ${VERSION_COLUMNS}`,
    [versionId, actor.id],
  );
  const bytes = version.size_bytes ?? 0;
  await transaction.query(
    "update memory_stores set content_bytes = content_bytes - $2 where memory_store_id = $1",
    [claim.memoryStoreId, bytes],
  );
  await addMemoryBytes(transaction, workspaceId, -bytes);
  await insertAudit(transaction, { ...audit, workspaceId });
  return toVersion(rows[0]!);
}

/** One snapshot: a change between the two reads would be missed for good. */
async function index(pool: Pool, claim: Parameters<MemoriesStore["index"]>[0], knownRevision: bigint) {
  await checkReads(pool, claim);
  return inTransaction(
    pool,
    async (transaction) => {
      const stores = await transaction.query<{ revision: number }>(
        "select revision from memory_stores where memory_store_id = $1",
        [claim.memoryStoreId],
      );
      const revision = BigInt(stores.rows[0]?.revision ?? 0);
      if (revision === knownRevision && knownRevision !== 0n) return undefined;
      const { rows } = await transaction.query<{ path: string; content_sha256: Buffer }>(
        "select path, content_sha256 from memories where memory_store_id = $1 order by path",
        [claim.memoryStoreId],
      );
      return { revision, rows: rows.map(({ path, content_sha256: sha256 }) => ({ path, sha256 })) };
    },
    { isolation: "repeatable read", readOnly: true },
  );
}

async function texts(
  pool: Pool,
  claim: Parameters<MemoriesStore["texts"]>[0],
  paths: readonly string[],
  maxBytes: number,
) {
  await checkReads(pool, claim);
  const { rows } = await pool.query<{ path: string; content: string }>(
    `select path, content from (
       select m.path, v.content, w.place, sum(m.size_bytes) over (order by w.place) as so_far
         from unnest($2::text[]) with ordinality as w(path, place)
         join memories m on m.memory_store_id = $1 and m.path = w.path
         join memory_versions v using (memory_version_id)
     ) found where so_far <= $3 order by place`,
    [claim.memoryStoreId, paths, maxBytes],
  );
  return rows;
}

async function prune(transaction: Transaction, olderThanMs: number): Promise<number> {
  const { rows } = await transaction.query<{ memory_store_id: string; bytes: number; versions: number }>(
    `with gone as (
       delete from memory_versions where memory_version_id in (
         select v.memory_version_id from memory_versions v left join memories m using (memory_id)
           where v.created_at < clock_timestamp() - $1 * interval '1 millisecond'
             and (m.memory_id is null or v.number <= m.version_number - ${RECENT_VERSIONS})
           order by v.created_at limit ${PRUNE_LIMIT} for update of v skip locked)
       returning memory_store_id, size_bytes
     ) select memory_store_id, coalesce(sum(size_bytes), 0)::bigint as bytes, count(*)::integer as versions
         from gone group by 1 order by 1`,
    [olderThanMs],
  );
  for (const { memory_store_id: storeId, bytes } of rows) {
    const store = await transaction.query<{ workspace_id: string }>(
      `update memory_stores set content_bytes = content_bytes - $2 where memory_store_id = $1 returning workspace_id`,
      [storeId, bytes],
    );
    if (store.rows[0]) await addMemoryBytes(transaction, store.rows[0].workspace_id, -bytes);
  }
  return rows.reduce((sum, { versions }) => sum + versions, 0);
}

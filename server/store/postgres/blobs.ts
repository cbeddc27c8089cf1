import { createHash } from "node:crypto";
import { invalidField, notFound, TendonError } from "../../../kit/errors.ts";
import { BLOB_CHUNK_BYTES, type BlobRecord, type BlobStore, type BlobWrite } from "../blobs.ts";
import type { Pool, Queryable } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

const PURGE_CHUNKS = 256;

/** Nobody can have begun to write such a blob by now. */
const LONG_AGO = "timestamptz 'epoch'";

export function createBlobStore(pool: Pool): BlobStore {
  return {
    write: (write) => writeBlob(pool, write),
    async find(workspaceId, sha256) {
      const row = await findRow(pool, workspaceId, sha256);
      return row && { workspaceId, sha256, sizeBytes: row.size_bytes };
    },
    read: (request) => readBlob(pool, request),
    refer: (request) => inTransaction(pool, (transaction) => referToBlob(transaction, request)),
    release: (request) => inTransaction(pool, (transaction) => releaseBlobs(transaction, request)),
    async usage(workspaceId) {
      const { bytes, limit } = await usage(pool, workspaceId);
      return { bytes, limitBytes: limit === 0 ? undefined : limit };
    },
    purge: (untouchedMs) => inTransaction(pool, (transaction) => purge(transaction, untouchedMs)),
  };
}

interface BlobRow {
  blob_id: number;
  size_bytes: number;
}

const HEX_DIGEST = /^[0-9a-f]{64}$/;

async function findRow(
  db: Queryable,
  workspaceId: string,
  sha256: string,
  lock = "",
): Promise<BlobRow | undefined> {
  if (!HEX_DIGEST.test(sha256)) return undefined;
  const { rows } = await db.query<BlobRow>(
    `select blob_id, size_bytes from blobs where workspace_id = $1 and sha256 = $2 ${lock}`,
    [workspaceId, Buffer.from(sha256, "hex")],
  );
  return rows[0];
}

async function usage(db: Queryable, workspaceId: string): Promise<{ bytes: number; limit: number }> {
  const { rows } = await db.query<{ bytes: number; blob_limit: number }>(
    `select coalesce(u.bytes, 0) as bytes, coalesce((w.limits::json ->> 'blobBytes')::bigint, 0) as blob_limit
       from workspaces w left join blob_usage u using (workspace_id) where w.workspace_id = $1`,
    [workspaceId],
  );
  if (!rows[0]) throw notFound("workspace", workspaceId);
  return { bytes: rows[0].bytes, limit: rows[0].blob_limit };
}

function checkRoom(used: number, more: number, limit: number): void {
  if (limit === 0 || used + more <= limit) return;
  throw new TendonError(
    "LIMIT_EXCEEDED",
    `the workspace may keep ${limit} bytes of stored files and has ${used}; there is no room for ${more} more`,
    { limit: "blob_bytes", limit_bytes: String(limit), used_bytes: String(used) },
  );
}

/** What else the transaction does that makes a blob; what one of them throws leaves nothing. */
export interface BlobCompanions {
  /** Before anything of the blob is locked. */
  readonly before?: (transaction: Transaction) => Promise<void>;
  readonly after?: (transaction: Transaction, blob: BlobRecord) => Promise<void>;
  /** The same was written before, as far as is known: there may be no room for what needs none. */
  readonly isRepeat?: boolean;
}

/** Chunks are written as they come, each by itself; the last transaction makes them a blob. */
export async function writeBlob(
  pool: Pool,
  write: BlobWrite,
  also: BlobCompanions = {},
): Promise<BlobRecord> {
  const { workspaceId, maxBytes } = write;
  const { limit, bytes: used } = await usage(pool, workspaceId);
  const isThere =
    write.sha256 !== undefined && (await findRow(pool, workspaceId, write.sha256)) !== undefined;
  const { rows } = await pool.query<{ blob_id: number }>(
    "insert into blobs (workspace_id) values ($1) returning blob_id",
    [workspaceId],
  );
  const blobId = rows[0]!.blob_id;
  try {
    const hash = createHash("sha256");
    let sizeBytes = 0;
    let number = 0;
    for await (const chunk of rechunk(write.bytes)) {
      sizeBytes += chunk.length;
      if (sizeBytes > maxBytes) {
        throw new TendonError("MESSAGE_TOO_LARGE", `there are more than ${maxBytes} bytes`, {
          limit: String(maxBytes),
        });
      }
      // Again at the end, when it counts; this ends a hopeless write early.
      if (!isThere && !also.isRepeat) checkRoom(used, sizeBytes, limit);
      hash.update(chunk);
      await writeChunk(pool, blobId, number++, chunk);
    }
    const sha256 = hash.digest();
    if (write.sha256 !== undefined && write.sha256 !== sha256.toString("hex")) {
      throw invalidField("sha256", `the bytes have the digest ${sha256.toString("hex")}`);
    }
    const blob = { workspaceId, sha256: sha256.toString("hex"), sizeBytes };
    await inTransaction(pool, async (transaction) => {
      await also.before?.(transaction);
      await finish(transaction, write, { blobId, sha256, sizeBytes });
      await also.after?.(transaction, blob);
    });
    return blob;
  } catch (error) {
    // Erased by the next purge. If the last transaction was committed after all, this finds nothing.
    await pool
      .query(`update blobs set touched_at = ${LONG_AGO} where blob_id = $1 and sha256 is null`, [blobId])
      .catch(() => {});
    throw error;
  }
}

async function writeChunk(pool: Pool, blobId: number, number: number, bytes: Buffer): Promise<void> {
  const { rowCount } = await pool.query(
    `with touched as (update blobs set touched_at = clock_timestamp() where blob_id = $1 and sha256 is null returning blob_id)
     insert into blob_chunks (blob_id, number, bytes) select blob_id, $2, $3 from touched`,
    [blobId, number, bytes],
  );
  if (rowCount === 0) throw new TendonError("UNAVAILABLE", "the write took too long; start again");
}

async function finish(
  transaction: Transaction,
  { workspaceId, owner }: BlobWrite,
  { blobId, sha256, sizeBytes }: { blobId: number; sha256: Buffer; sizeBytes: number },
): Promise<void> {
  // This row's lock is what makes counting, and finding the same bytes, exact.
  await transaction.query("insert into blob_usage (workspace_id) values ($1) on conflict do nothing", [
    workspaceId,
  ]);
  await transaction.query("select 1 from blob_usage where workspace_id = $1 for update", [workspaceId]);
  const same = await findRow(transaction, workspaceId, sha256.toString("hex"), "for key share");
  if (same) {
    await transaction.query(`update blobs set touched_at = ${LONG_AGO} where blob_id = $1`, [blobId]);
    await addReference(transaction, same.blob_id, owner);
    return;
  }
  const { bytes, limit } = await usage(transaction, workspaceId);
  checkRoom(bytes, sizeBytes, limit);
  const { rowCount } = await transaction.query(
    "update blobs set sha256 = $2, size_bytes = $3 where blob_id = $1 and sha256 is null",
    [blobId, sha256, sizeBytes],
  );
  if (rowCount === 0) throw new TendonError("UNAVAILABLE", "the write took too long; start again");
  await transaction.query("update blob_usage set bytes = bytes + $2 where workspace_id = $1", [
    workspaceId,
    sizeBytes,
  ]);
  await addReference(transaction, blobId, owner);
}

async function addReference(db: Queryable, blobId: number, owner: string): Promise<void> {
  await db.query("insert into blob_references (blob_id, owner) values ($1, $2) on conflict do nothing", [
    blobId,
    owner,
  ]);
}

async function* readBlob(
  pool: Pool,
  { workspaceId, sha256, offsetBytes = 0 }: { workspaceId: string; sha256: string; offsetBytes?: number },
): AsyncGenerator<Uint8Array> {
  const row = await findRow(pool, workspaceId, sha256);
  if (!row) throw notFound("blob", sha256);
  for (let at = offsetBytes; at < row.size_bytes; ) {
    const number = Math.floor(at / BLOB_CHUNK_BYTES);
    const { rows } = await pool.query<{ bytes: Buffer }>(
      `select bytes from blob_chunks join blobs using (blob_id) where blob_id = $1 and number = $2 and sha256 is not null`,
      [row.blob_id, number],
    );
    if (!rows[0]) throw notFound("blob", sha256);
    const chunk = rows[0].bytes.subarray(at - number * BLOB_CHUNK_BYTES);
    yield chunk;
    at += chunk.length;
  }
}

/** One more owner, as part of another noun's transaction; false when the workspace has no such bytes. */
export async function referToBlob(
  transaction: Transaction,
  { workspaceId, sha256, owner }: Parameters<BlobStore["refer"]>[0],
): Promise<boolean> {
  const row = await findRow(transaction, workspaceId, sha256, "for key share");
  if (row) await addReference(transaction, row.blob_id, owner);
  return row !== undefined;
}

/** Also as part of another noun's transaction; the chunks themselves are erased by `purge`. */
export function releaseBlobs(
  transaction: Transaction,
  { workspaceId, owner, sha256 }: Parameters<BlobStore["release"]>[0],
): Promise<void> {
  return releaseBlobsOf(transaction, { workspaceId, owners: [owner], sha256 });
}

export async function releaseBlobsOf(
  transaction: Transaction,
  {
    workspaceId,
    owners,
    sha256,
  }: { workspaceId: string; owners: readonly string[]; sha256?: string | undefined },
): Promise<void> {
  if (owners.length === 0) return;
  // In the order in which writes lock, and blobs by their ids, so that of two last owners one sees that it is the last.
  await transaction.query("select 1 from blob_usage where workspace_id = $1 for update", [workspaceId]);
  const { rows } = await transaction.query<BlobRow & { last: boolean }>(
    `select blob_id, size_bytes from blobs
       where workspace_id = $1 and ($3::bytea is null or sha256 = $3) and sha256 is not null
         and blob_id in (select blob_id from blob_references where owner = any($2))
       order by blob_id for update`,
    [workspaceId, owners, sha256 === undefined ? null : Buffer.from(sha256, "hex")],
  );
  if (rows.length === 0) return;
  const blobIds = rows.map((row) => row.blob_id);
  await transaction.query("delete from blob_references where owner = any($2) and blob_id = any($1)", [
    blobIds,
    owners,
  ]);
  await transaction.query(
    `with gone as (
       update blobs set sha256 = null, touched_at = ${LONG_AGO} where blob_id = any($1)
         and not exists (select 1 from blob_references r where r.blob_id = blobs.blob_id) returning size_bytes
     ) update blob_usage set bytes = bytes - (select coalesce(sum(size_bytes), 0) from gone) where workspace_id = $2`,
    [blobIds, workspaceId],
  );
}

async function purge(transaction: Transaction, untouchedMs: number): Promise<boolean> {
  const { rows } = await transaction.query<{ blob_id: number }>(
    `select blob_id from blobs where sha256 is null and touched_at < clock_timestamp() - $1 * interval '1 millisecond'
       order by touched_at limit 1 for update skip locked`,
    [untouchedMs],
  );
  const blobId = rows[0]?.blob_id;
  if (blobId === undefined) return false;
  // Whoever still writes to it finds it gone, or waits for this and then finds it gone.
  await transaction.query(
    `delete from blob_chunks where blob_id = $1 and number = any(array(
       select number from blob_chunks where blob_id = $1 order by number desc limit ${PURGE_CHUNKS}))`,
    [blobId],
  );
  await transaction.query(
    "delete from blobs where blob_id = $1 and not exists (select 1 from blob_chunks where blob_id = $1)",
    [blobId],
  );
  return true;
}

/** Pieces of exactly 1 MiB, but for the last. */
async function* rechunk(pieces: BlobWrite["bytes"]): AsyncGenerator<Buffer> {
  let held: Uint8Array[] = [];
  let heldBytes = 0;
  for await (const piece of pieces) {
    for (let at = 0; at < piece.length; ) {
      const part = piece.subarray(at, at + BLOB_CHUNK_BYTES - heldBytes);
      held.push(part);
      heldBytes += part.length;
      at += part.length;
      if (heldBytes < BLOB_CHUNK_BYTES) continue;
      yield Buffer.concat(held);
      held = [];
      heldBytes = 0;
    }
  }
  if (heldBytes > 0) yield Buffer.concat(held);
}

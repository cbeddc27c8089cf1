/** Changes of memories: each locks its store, so that paths, counts and revisions are exact. */
import { createHash } from "node:crypto";
import { notFound, TendonError } from "../../../kit/errors.ts";
import { newId } from "../../../kit/ids.ts";
import type { Memory } from "../../../proto/gen/tendon/v1/memory_pb.js";
import {
  MAX_MEMORIES,
  MAX_VERSIONS,
  type MemoriesStore,
  type MemoryName,
  type MemoryWrite,
} from "../memories.ts";
import { checkTakesTexts, type LockedStore, lockForWrite } from "./memory-claims.ts";
import {
  MEMORY_COLUMNS,
  type MemoryRow,
  type OperationName,
  toMemory,
  VERSION_COLUMNS,
  type VersionRow,
} from "./memory-rows.ts";
import { addMemoryBytes } from "./memory-usage.ts";
import type { Queryable } from "./pool.ts";
import type { Transaction } from "./transaction.ts";

export async function createMemory(
  transaction: Transaction,
  { memoryId, path, content, ...write }: Parameters<MemoriesStore["create"]>[0],
): Promise<Memory> {
  const store = await lockForWrite(transaction, write.claim);
  const first = await earlier(transaction, write);
  if (first !== undefined) return memoryOfVersion(transaction, first);
  checkTakesTexts(store, write.claim);
  await checkPath(transaction, write.claim.memoryStoreId, path, "");
  if (store.memoryCount >= MAX_MEMORIES) throw full();
  const version = await addVersion(transaction, store, write, {
    memoryId,
    number: 1,
    operation: "created",
    path,
    content,
  });
  const { rows } = await transaction.query<MemoryRow>(
    `insert into memories (memory_id, memory_store_id, memory_version_id, path, content_sha256, size_bytes, version_number,
       created_at, updated_at)
     select $1, $2, $3, $4, $5, $6, 1, created_at, created_at from memory_versions where memory_version_id = $3
       returning ${MEMORY_COLUMNS}`,
    [memoryId, write.claim.memoryStoreId, version.id, path, version.sha256, version.sizeBytes],
  );
  return toMemory(rows[0]!, content);
}

export async function updateMemory(
  transaction: Transaction,
  { memoryId, path, content, newPath, expectedSha256, ...write }: Parameters<MemoriesStore["update"]>[0],
): Promise<Memory> {
  const store = await lockForWrite(transaction, write.claim);
  const first = await earlier(transaction, write);
  if (first !== undefined) return memoryOfVersion(transaction, first);
  checkTakesTexts(store, write.claim);
  const before = await findMemory(transaction, write.claim.memoryStoreId, { memoryId, path });
  const wanted = { path: newPath ?? before.path, content: content ?? before.content };
  if (wanted.path === before.path && wanted.content === before.content)
    return toMemory(before, before.content);
  checkDigest(before, expectedSha256);
  if (wanted.path !== before.path)
    await checkPath(transaction, write.claim.memoryStoreId, wanted.path, before.memory_id);
  const version = await addVersion(transaction, store, write, {
    memoryId: before.memory_id,
    number: before.version_number + 1,
    operation: "modified",
    ...wanted,
  });
  const { rows } = await transaction.query<MemoryRow>(
    `update memories set memory_version_id = $2, path = $3, content_sha256 = $4, size_bytes = $5,
       version_number = version_number + 1,
       updated_at = (select created_at from memory_versions where memory_version_id = $2) where memory_id = $1 returning ${MEMORY_COLUMNS}`,
    [before.memory_id, version.id, wanted.path, version.sha256, version.sizeBytes],
  );
  return toMemory(rows[0]!, wanted.content);
}

export async function deleteMemory(
  transaction: Transaction,
  { memoryId, path, expectedSha256, ...write }: Parameters<MemoriesStore["delete"]>[0],
): Promise<string> {
  const store = await lockForWrite(transaction, write.claim);
  const first = await earlier(transaction, write);
  if (first !== undefined) return first.memory_id;
  const before = await findMemory(transaction, write.claim.memoryStoreId, { memoryId, path });
  checkDigest(before, expectedSha256);
  await transaction.query("delete from memories where memory_id = $1", [before.memory_id]);
  await addVersion(transaction, store, write, {
    memoryId: before.memory_id,
    number: before.version_number + 1,
    operation: "deleted",
    path: before.path,
    content: undefined,
  });
  return before.memory_id;
}

/** With its text. NOT_FOUND. */
export async function findMemory(
  db: Queryable,
  memoryStoreId: string,
  { memoryId, path }: MemoryName,
): Promise<MemoryRow & { content: string }> {
  const { rows } = await db.query<MemoryRow & { content: string }>(
    `select m.*, v.content from memories m join memory_versions v using (memory_version_id)
       where m.memory_store_id = $1 and ${memoryId === "" ? "m.path" : "m.memory_id"} = $2`,
    [memoryStoreId, memoryId === "" ? path : memoryId],
  );
  if (rows[0]) return rows[0];
  if (memoryId !== "") throw notFound("memory", memoryId);
  throw new TendonError("NOT_FOUND", `no memory has the path "${path}"`, { resource: "memory", path });
}

interface Change {
  readonly memoryId: string;
  readonly number: number;
  readonly operation: OperationName;
  readonly path: string;
  /** Undefined for a deletion. */
  readonly content: string | undefined;
}

async function addVersion(
  transaction: Transaction,
  { workspaceId }: LockedStore,
  { claim, actor, request }: MemoryWrite,
  { memoryId, number, operation, path, content }: Change,
): Promise<{ id: string; sha256: Buffer; sizeBytes: number }> {
  const id = newId("memoryVersion");
  const bytes = Buffer.from(content ?? "", "utf8");
  const sha256 = createHash("sha256").update(bytes).digest();
  const facts = content === undefined ? [null, null, null] : [content, sha256, bytes.length];
  const asked =
    request.requestId === "" ? [null, null] : [request.requestId, Buffer.from(request.contentHash)];
  await transaction.query(
    `insert into memory_versions (memory_version_id, memory_store_id, memory_id, number, operation, path,
       actor_kind, actor_id, content, content_sha256, size_bytes, request_id, request_hash)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
    [id, claim.memoryStoreId, memoryId, number, operation, path, actor.kind, actor.id, ...facts, ...asked],
  );
  const dropped = await transaction.query<{ bytes: number }>(
    `with gone as (delete from memory_versions where memory_id = $1 and number <= $2 returning size_bytes)
       select coalesce(sum(size_bytes), 0)::bigint as bytes from gone`,
    [memoryId, number - MAX_VERSIONS],
  );
  const added = bytes.length - (dropped.rows[0]?.bytes ?? 0);
  const counted = operation === "created" ? 1 : operation === "deleted" ? -1 : 0;
  await transaction.query(
    `update memory_stores set revision = revision + 1, content_bytes = content_bytes + $2, memory_count = memory_count + $3
       where memory_store_id = $1`,
    [claim.memoryStoreId, added, counted],
  );
  await addMemoryBytes(transaction, workspaceId, added);
  return { id, sha256, sizeBytes: bytes.length };
}

/** A path is taken by itself, and by what lies above or below it: a memory is no directory. */
async function checkPath(
  transaction: Transaction,
  memoryStoreId: string,
  path: string,
  ownId: string,
): Promise<void> {
  const parts = path.split("/");
  const above = parts.slice(2).map((_, index) => parts.slice(0, index + 2).join("/"));
  // `0` is the character after `/`.
  const { rows } = await transaction.query<{ memory_id: string; path: string }>(
    `select memory_id, path from memories where memory_store_id = $1 and memory_id <> $2
       and (path = any($3::text[]) or (path > $4 and path < $5)) order by path limit 1`,
    [memoryStoreId, ownId, [path, ...above], `${path}/`, `${path}0`],
  );
  const [other] = rows;
  if (other === undefined) return;
  const why =
    other.path === path ? "is taken" : `and "${other.path}" cannot both be: one would lie below the other`;
  throw new TendonError("MEMORY_PATH_CONFLICT", `the path "${path}" ${why}`, {
    conflicting_memory_id: other.memory_id,
    conflicting_path: other.path,
  });
}

function checkDigest({ content_sha256: current, path }: MemoryRow, expected: string): void {
  if (expected === "" || current.toString("hex") === expected) return;
  throw new TendonError(
    "MEMORY_PRECONDITION_FAILED",
    `the memory "${path}" has another text than expected; read it again`,
    { current_content_sha256: current.toString("hex") },
  );
}

function full(): TendonError {
  return new TendonError(
    "LIMIT_EXCEEDED",
    `the memory store has its ${MAX_MEMORIES} memories; existing ones can still be changed`,
    { limit: "memories", most: String(MAX_MEMORIES) },
  );
}

/** What the same request made before. REQUEST_ID_REUSED. */
async function earlier(
  transaction: Transaction,
  { claim, request: { requestId, contentHash } }: MemoryWrite,
): Promise<VersionRow | undefined> {
  if (requestId === "") return undefined;
  const { rows } = await transaction.query<VersionRow & { request_hash: Buffer }>(
    `select ${VERSION_COLUMNS}, content, request_hash from memory_versions where memory_store_id = $1 and request_id = $2`,
    [claim.memoryStoreId, requestId],
  );
  const [first] = rows;
  if (first === undefined || first.request_hash.equals(contentHash)) return first;
  throw new TendonError(
    "REQUEST_ID_REUSED",
    "request_id: was used before for another change of the memory store; use a new one",
    { field: "request_id", request_id: requestId },
  );
}

/** The memory as it was right after that version. */
async function memoryOfVersion(db: Queryable, version: VersionRow): Promise<Memory> {
  const { rows } = await db.query<{ created_at: Date }>(
    "select created_at from memories where memory_id = $1",
    [version.memory_id],
  );
  const facts = {
    memory_id: version.memory_id,
    memory_store_id: version.memory_store_id,
    memory_version_id: version.memory_version_id,
    path: version.path ?? "",
    content_sha256: version.content_sha256 ?? Buffer.alloc(0),
    size_bytes: version.size_bytes ?? 0,
    version_number: version.number,
    created_at: rows[0]?.created_at ?? version.created_at,
    updated_at: version.created_at,
  };
  return toMemory(facts, version.content ?? undefined);
}

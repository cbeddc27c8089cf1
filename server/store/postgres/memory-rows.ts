/** Memories and versions as rows and as messages. */
import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import {
  type Memory,
  type MemoryActor,
  MemoryOperation,
  MemorySchema,
  type MemoryVersion,
  MemoryVersionSchema,
} from "../../../proto/gen/tendon/v1/memory_pb.js";
import type { MemoryActorRecord } from "../memories.ts";
import { timeField } from "./timestamps.ts";

export interface MemoryRow {
  memory_id: string;
  memory_store_id: string;
  memory_version_id: string;
  path: string;
  content_sha256: Buffer;
  size_bytes: number;
  version_number: number;
  created_at: Date;
  updated_at: Date;
}

export const MEMORY_COLUMNS = `memory_id, memory_store_id, memory_version_id, path, content_sha256, size_bytes,
  version_number, created_at, updated_at`;

export function toMemory(row: MemoryRow, content?: string): Memory {
  return create(MemorySchema, {
    id: row.memory_id,
    memoryStoreId: row.memory_store_id,
    memoryVersionId: row.memory_version_id,
    path: row.path,
    ...(content === undefined ? {} : { content }),
    contentSha256: row.content_sha256.toString("hex"),
    contentSizeBytes: BigInt(row.size_bytes),
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  });
}

export interface VersionRow {
  memory_version_id: string;
  memory_store_id: string;
  memory_id: string;
  number: number;
  operation: OperationName;
  path: string | null;
  /** Left out of what is read without texts. */
  content?: string | null;
  content_sha256: Buffer | null;
  size_bytes: number | null;
  actor_kind: MemoryActorRecord["kind"];
  actor_id: string;
  request_id: string | null;
  created_at: Date;
  redacted_at: Date | null;
  redacted_by: string;
}

export const VERSION_COLUMNS = `memory_version_id, memory_store_id, memory_id, number, operation, path, content_sha256,
  size_bytes, actor_kind, actor_id, request_id, created_at, redacted_at, redacted_by`;

const OPERATIONS = {
  created: MemoryOperation.CREATED,
  modified: MemoryOperation.MODIFIED,
  deleted: MemoryOperation.DELETED,
} as const;
export type OperationName = keyof typeof OPERATIONS;

export function operationName(operation: MemoryOperation): OperationName | undefined {
  const names = Object.keys(OPERATIONS) as OperationName[];
  return names.find((name) => OPERATIONS[name] === operation);
}

export function toVersion(row: VersionRow): MemoryVersion {
  return create(MemoryVersionSchema, {
    id: row.memory_version_id,
    memoryStoreId: row.memory_store_id,
    memoryId: row.memory_id,
    operation: OPERATIONS[row.operation],
    ...(row.path === null ? {} : { path: row.path }),
    ...(row.content == null ? {} : { content: row.content }),
    ...(row.content_sha256 === null ? {} : { contentSha256: row.content_sha256.toString("hex") }),
    ...(row.size_bytes === null ? {} : { contentSizeBytes: BigInt(row.size_bytes) }),
    createdBy: actorMessage({ kind: row.actor_kind, id: row.actor_id }),
    createdAt: timestampFromDate(row.created_at),
    ...timeField("redactedAt", row.redacted_at),
    ...(row.redacted_by === "" ? {} : { redactedBy: actorMessage({ kind: "api_key", id: row.redacted_by }) }),
    requestId: row.request_id ?? "",
  });
}

function actorMessage({ kind, id }: MemoryActorRecord): MemoryActor {
  const actor =
    kind === "session" ? { case: "sessionId" as const, value: id } : { case: "apiKeyId" as const, value: id };
  return { $typeName: "tendon.v1.MemoryActor", kind: actor };
}

/** Memory stores, memories and their versions as existing clients know them (pure). */
import {
  type Memory,
  type MemoryActor,
  MemoryOperation,
  type MemoryStore,
  type MemoryVersion,
} from "../../../../proto/gen/tendon/v1/memory_pb.js";
import type { MemoryEntry } from "../../../../proto/gen/tendon/v1/memory_service_pb.js";
import { timeJson } from "../time-json.ts";

export function memoryStoreJson(store: MemoryStore) {
  return {
    type: "memory_store",
    id: store.id,
    name: store.name,
    description: store.description,
    metadata: store.metadata,
    created_at: timeJson(store.createdAt),
    updated_at: timeJson(store.updatedAt),
    archived_at: timeJson(store.archivedAt),
  };
}

export function memoryJson(memory: Memory) {
  return {
    type: "memory",
    id: memory.id,
    memory_store_id: memory.memoryStoreId,
    memory_version_id: memory.memoryVersionId,
    path: memory.path,
    content: memory.content ?? null,
    content_sha256: memory.contentSha256,
    content_size_bytes: Number(memory.contentSizeBytes),
    created_at: timeJson(memory.createdAt),
    updated_at: timeJson(memory.updatedAt),
  };
}

export function memoryEntryJson({ kind }: MemoryEntry) {
  if (kind.case === "memory") return memoryJson(kind.value);
  return { type: "memory_prefix", path: kind.value ?? "" };
}

export function memoryVersionJson(version: MemoryVersion) {
  return {
    type: "memory_version",
    id: version.id,
    memory_id: version.memoryId,
    memory_store_id: version.memoryStoreId,
    operation: operationWord(version.operation),
    path: version.path ?? null,
    content: version.content ?? null,
    content_sha256: version.contentSha256 ?? null,
    content_size_bytes: version.contentSizeBytes === undefined ? null : Number(version.contentSizeBytes),
    created_by: actorJson(version.createdBy),
    redacted_at: timeJson(version.redactedAt),
    redacted_by: actorJson(version.redactedBy),
    created_at: timeJson(version.createdAt),
  };
}

/** By word; every one that a client may ask for is here. */
export const OPERATIONS: Readonly<Record<string, MemoryOperation>> = {
  created: MemoryOperation.CREATED,
  modified: MemoryOperation.MODIFIED,
  deleted: MemoryOperation.DELETED,
};

function operationWord(operation: MemoryOperation): string {
  return Object.keys(OPERATIONS).find((word) => OPERATIONS[word] === operation) ?? "modified";
}

function actorJson(actor: MemoryActor | undefined) {
  const kind = actor?.kind;
  if (kind?.case === "sessionId") return { type: "session_actor", session_id: kind.value };
  if (kind?.case === "apiKeyId") return { type: "api_actor", api_key_id: kind.value };
  return null;
}

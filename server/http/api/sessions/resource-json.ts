/** Something that a session was given, as existing clients know it (pure). */
import { type AttachedMemoryStore, MemoryAccess } from "../../../../proto/gen/tendon/v1/memory_pb.js";
import type { SessionResource } from "../../../../proto/gen/tendon/v1/session_pb.js";
import { timeJson } from "../time-json.ts";

export function resourceJson({ id, kind }: SessionResource) {
  switch (kind.case) {
    case "memoryStore":
      return memoryStoreJson(kind.value);
    case "file": {
      const { fileId, mountPath, createdAt } = kind.value;
      const at = timeJson(createdAt);
      return { type: "file", id, file_id: fileId, mount_path: mountPath, created_at: at, updated_at: at };
    }
    default:
      return { type: "unknown" };
  }
}

function memoryStoreJson(store: AttachedMemoryStore) {
  const { memoryStoreId, access, instructions, name, description, mountPath } = store;
  return {
    type: "memory_store",
    memory_store_id: memoryStoreId,
    access: access === MemoryAccess.READ_ONLY ? "read_only" : "read_write",
    instructions,
    name: name || null,
    description,
    mount_path: mountPath || null,
  };
}

/** Something that a session was given, as existing clients know it (pure). */
import type { AttachedGitRepository, GitCheckout } from "../../../../proto/gen/tendon/v1/git_pb.js";
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
    case "gitRepository":
      return repositoryJson(id, kind.value);
    default:
      return { type: "unknown" };
  }
}

/** Its token is nowhere to be shown from. */
function repositoryJson(id: string, repository: AttachedGitRepository) {
  const { url, mountPath, checkout, pushBranches, createdAt, updatedAt } = repository;
  return {
    type: "github_repository",
    id,
    url,
    mount_path: mountPath,
    checkout: checkoutJson(checkout),
    ...(pushBranches.length > 0 && { tendon: { push_branches: pushBranches } }),
    created_at: timeJson(createdAt),
    updated_at: timeJson(updatedAt ?? createdAt),
  };
}

export function checkoutJson(checkout: GitCheckout | undefined) {
  const at = checkout?.at;
  if (at?.case === undefined) return null;
  return at.case === "commit" ? { type: "commit", sha: at.value } : { type: at.case, name: at.value };
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

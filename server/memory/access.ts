/** For whom a caller reads and writes memories. */
import { invalidField, TendonError } from "../../kit/errors.ts";
import type { MemorySession } from "../../proto/gen/tendon/v1/memory_service_pb.js";
import { type Principal, scopeOf } from "../ports/principal.ts";
import type { MemoryActorRecord, MemoryClaim } from "../store/memories.ts";

export interface MemoryCaller {
  readonly claim: MemoryClaim;
  readonly actor: MemoryActorRecord;
}

/** A harness acts for a session alone, and shows its lease. */
export function callerOf(
  principal: Principal,
  memoryStoreId: string,
  acting: MemorySession | undefined,
): MemoryCaller {
  const workspaceId = scopeOf(principal);
  if (principal.kind === "session") {
    const { sessionId, epoch } = principal;
    const session = { sessionId, epoch, leaseId: undefined };
    return { claim: { memoryStoreId, workspaceId, session }, actor: { kind: "session", id: sessionId } };
  }
  if (principal.kind === "work_item") {
    if (principal.isLost) throw new TendonError("ROLE_NOT_ALLOWED", "the work item is not yours any more");
    const { sessionId } = principal;
    const session = { sessionId, epoch: undefined, leaseId: undefined };
    return { claim: { memoryStoreId, workspaceId, session }, actor: { kind: "session", id: sessionId } };
  }
  if (acting !== undefined) {
    if (principal.kind !== "harness") throw invalidField("session", "is for harnesses; leave it unset");
    const { sessionId, lease } = acting;
    const session = { sessionId, epoch: lease?.epoch ?? 0n, leaseId: lease?.leaseId ?? "" };
    return { claim: { memoryStoreId, workspaceId, session }, actor: { kind: "session", id: sessionId } };
  }
  if (principal.kind === "harness")
    throw invalidField("session", "a harness has to show the session's lease");
  if (!("keyId" in principal))
    throw new TendonError("ROLE_NOT_ALLOWED", `a ${principal.kind} has no memory stores`);
  return { claim: { memoryStoreId, workspaceId }, actor: { kind: "api_key", id: principal.keyId } };
}

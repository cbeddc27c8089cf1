/** Memory stores: directories of texts that outlive sessions. What is in them is in memories.ts. */
import type { MemoryStore } from "../../proto/gen/tendon/v1/memory_pb.js";
import type { AuditInput } from "./audit.ts";
import type { Page, PageRequest } from "./page.ts";
import type { RequestIdClaim } from "./request-ids.ts";

export interface MemoryStoreStore {
  /** A repeat returns the first store as it is now. REQUEST_ID_REUSED, LIMIT_EXCEEDED above the workspace's number of stores. */
  create(store: {
    id: string;
    workspaceId: string;
    name: string;
    description: string;
    metadata: Readonly<Record<string, string>>;
    request: RequestIdClaim;
  }): Promise<MemoryStore>;
  /** Callers check the workspace. */
  find(memoryStoreId: string): Promise<MemoryStore | undefined>;
  /** Newest first; without a workspace all of the installation. */
  list(query: {
    workspaceId: string | undefined;
    includeArchived: boolean;
    createdAtOrAfter: Date | undefined;
    createdAtOrBefore: Date | undefined;
    page: PageRequest;
  }): Promise<Page<MemoryStore>>;
  /**
   * Sets what is given; an empty metadata value deletes its key. Undefined when there is none in what the caller sees.
   * MEMORY_STORE_ARCHIVED, INVALID_FIELD for more than 16 pairs of metadata.
   */
  update(change: {
    memoryStoreId: string;
    workspaceId: string | undefined;
    name: string | undefined;
    description: string | undefined;
    metadata: Readonly<Record<string, string>>;
  }): Promise<MemoryStore | undefined>;
  /** Undefined when there is none in what the caller sees; an archived one stays as it is. */
  archive(
    memoryStoreId: string,
    workspaceId: string | undefined,
    audit: AuditInput,
  ): Promise<MemoryStore | undefined>;
  /** With all of its memories and versions. False when there is none in what the caller sees. */
  delete(memoryStoreId: string, workspaceId: string | undefined, audit: AuditInput): Promise<boolean>;
}

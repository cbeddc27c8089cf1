/** Memories and their versions. Each change is one version, in the transaction that makes it. */
import type { Memory, MemoryOperation, MemoryVersion } from "../../proto/gen/tendon/v1/memory_pb.js";
import type { AuditInput } from "./audit.ts";
import type { Page, PageRequest } from "./page.ts";
import type { RequestIdClaim } from "./request-ids.ts";

/** Memories of one store. */
export const MAX_MEMORIES = 2_000;
/** Versions of one memory; the oldest go first. */
export const MAX_VERSIONS = 1_000;
/** Versions of a living memory that are kept whatever their age. */
export const RECENT_VERSIONS = 10;
/** A memory's text, as UTF-8. */
export const MAX_CONTENT_BYTES = 102_400;

export interface MemoryActorRecord {
  readonly kind: "session" | "api_key";
  readonly id: string;
}

/** For whom memories are read and written; checked in the transaction that does it. */
export interface MemoryClaim {
  readonly memoryStoreId: string;
  /** What the caller sees; undefined for the whole installation. */
  readonly workspaceId: string | undefined;
  /** Set for who acts for a session: the store must be one that it was given. */
  readonly session?: {
    readonly sessionId: string;
    /** Must be the newest; undefined where somebody else has checked who acts. */
    readonly epoch: bigint | undefined;
    /** Must be the lease of that epoch; undefined for a session token. */
    readonly leaseId: string | undefined;
  };
}

export interface MemoryWrite {
  readonly claim: MemoryClaim;
  readonly actor: MemoryActorRecord;
  readonly request: RequestIdClaim;
}

/** By id, or by path where the id is empty. */
export interface MemoryName {
  readonly memoryId: string;
  readonly path: string;
}

/** A memory without its text. */
export interface MemoryIndexRow {
  readonly path: string;
  readonly sha256: Buffer;
}

export interface MemoriesStore {
  /**
   * MEMORY_PATH_CONFLICT, LIMIT_EXCEEDED, REQUEST_ID_REUSED; and like all methods here NOT_FOUND for the store, and for who
   * acts for a session LEASE_FENCED and, where it writes, ROLE_NOT_ALLOWED; MEMORY_STORE_ARCHIVED where texts are written.
   */
  create(write: MemoryWrite & { memoryId: string; path: string; content: string }): Promise<Memory>;
  /** With its text. NOT_FOUND. */
  find(claim: MemoryClaim, name: MemoryName): Promise<Memory>;
  /** All below the prefix (empty: all) by path, without their texts. */
  list(claim: MemoryClaim, prefix: string): Promise<Memory[]>;
  /** The texts of those that are still there, by id. */
  contents(memoryIds: readonly string[]): Promise<ReadonlyMap<string, string>>;
  /** NOT_FOUND, MEMORY_PRECONDITION_FAILED, MEMORY_PATH_CONFLICT, LIMIT_EXCEEDED, REQUEST_ID_REUSED. */
  update(
    write: MemoryWrite &
      MemoryName & {
        content: string | undefined;
        newPath: string | undefined;
        /** Lower-case hex; empty for any. */
        expectedSha256: string;
      },
  ): Promise<Memory>;
  /** The id of what was deleted. NOT_FOUND, MEMORY_PRECONDITION_FAILED, REQUEST_ID_REUSED. */
  delete(write: MemoryWrite & MemoryName & { expectedSha256: string }): Promise<string>;
  /** By id, or by the request that made it where the id is empty. NOT_FOUND. */
  findVersion(
    claim: MemoryClaim,
    name: { versionId: string; requestId: string },
    withContent: boolean,
  ): Promise<MemoryVersion>;
  /** Newest first. */
  listVersions(query: {
    claim: MemoryClaim;
    memoryId: string;
    actor: MemoryActorRecord | undefined;
    operation: MemoryOperation;
    createdAtOrAfter: Date | undefined;
    createdAtOrBefore: Date | undefined;
    withContent: boolean;
    page: PageRequest;
  }): Promise<Page<MemoryVersion>>;
  /** NOT_FOUND, MEMORY_VERSION_CURRENT. */
  redactVersion(request: {
    claim: MemoryClaim;
    versionId: string;
    actor: MemoryActorRecord;
    audit: AuditInput;
  }): Promise<MemoryVersion>;
  /** Revision, and everything by path, as of one moment; undefined when the revision is the one that is known. */
  index(
    claim: MemoryClaim,
    knownRevision: bigint,
  ): Promise<{ revision: bigint; rows: MemoryIndexRow[] } | undefined>;
  /** Texts of these paths, in this order, until there are more than `maxBytes`; those that are gone are left out. */
  texts(
    claim: MemoryClaim,
    paths: readonly string[],
    maxBytes: number,
  ): Promise<{ path: string; content: string }[]>;
  /** Forgets versions that are older and not to be kept, at most 1,000 at a time. Returns how many. */
  prune(olderThanMs: number): Promise<number>;
}

/** API keys: callers' credentials, of which only hashes are stored (S6). */
import type { ApiKey } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { AuditInput } from "./audit.ts";
import type { Page, PageRequest } from "./page.ts";

export type KeyRole = "admin" | "client" | "harness" | "proxy" | "peer";

/** What a caller who shows a key is. */
export interface KeyIdentity {
  readonly apiKeyId: string;
  readonly role: KeyRole;
  /** Undefined: installation-wide. */
  readonly workspaceId: string | undefined;
  readonly expiresAtMs: number | undefined;
  readonly revoked: boolean;
  readonly workspaceArchived: boolean;
  readonly lastUsedAtMs: number | undefined;
}

export interface NewApiKey {
  readonly id: string;
  readonly name: string;
  readonly role: KeyRole;
  readonly workspaceId: string | undefined;
  /** First characters of the key. */
  readonly hint: string;
  /** SHA-256 of the key. */
  readonly secretHash: Uint8Array;
  readonly expiresAtMs: number | undefined;
}

export interface ApiKeyStore {
  create(key: NewApiKey, audit: AuditInput): Promise<ApiKey>;
  /** Makes the key unless one with this hash is there; says what is there. Any number of servers may do it at once. */
  ensure(key: NewApiKey, audit: AuditInput): Promise<KeyIdentity>;
  findByHash(secretHash: Uint8Array): Promise<KeyIdentity | undefined>;
  /** Remembers that the key was used, to the minute. */
  touch(apiKeyId: string): Promise<void>;
  /** Whether an installation-wide key of this role works at this moment. */
  hasLive(role: KeyRole): Promise<boolean>;
  /** Newest first; without a workspace all of the installation. */
  list(query: {
    workspaceId: string | undefined;
    includeRevoked: boolean;
    page: PageRequest;
  }): Promise<Page<ApiKey>>;
  /** Undefined when there is no such key, or when it is not of this workspace; a revoked one stays as it is. */
  revoke(apiKeyId: string, workspaceId: string | undefined, audit: AuditInput): Promise<ApiKey | undefined>;
}

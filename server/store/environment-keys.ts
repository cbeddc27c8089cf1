/** Keys of workers of self-hosted environments, of which only hashes are stored (S6). */
import type { EnvironmentKey } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { AuditInput } from "./audit.ts";
import type { Page, PageRequest } from "./page.ts";

/** Keys that one environment has at most. */
export const MAX_ENVIRONMENT_KEYS = 100;

/** What a worker that shows a key is. */
export interface EnvironmentKeyIdentity {
  readonly environmentKeyId: string;
  readonly environmentId: string;
  readonly workspaceId: string;
  readonly isRevoked: boolean;
  readonly isExpired: boolean;
}

/** What a worker that shows the token of an item is. */
export interface WorkTokenIdentity extends EnvironmentKeyIdentity {
  readonly workId: string;
  readonly sessionId: string;
  readonly claim: number;
  /** Somebody else was given the item since, or may be. */
  readonly isLost: boolean;
}

export interface NewEnvironmentKey {
  readonly id: string;
  readonly environmentId: string;
  readonly workspaceId: string;
  readonly name: string;
  readonly hint: string;
  /** SHA-256 of the key. */
  readonly secretHash: Uint8Array;
  /** 0: it does not end by itself. */
  readonly expiresInSeconds: number;
}

export interface EnvironmentKeyStore {
  /** LIMIT_EXCEEDED. */
  create(key: NewEnvironmentKey, audit: AuditInput): Promise<EnvironmentKey>;
  /** Newest first; without those that were revoked. */
  list(environmentId: string, page: PageRequest): Promise<Page<EnvironmentKey>>;
  /** False when the environment has no such key. */
  revoke(environmentId: string, environmentKeyId: string, audit: AuditInput): Promise<boolean>;
  findByHash(secretHash: Uint8Array): Promise<EnvironmentKeyIdentity | undefined>;
  /** Remembers that the key was used, to the minute. */
  touch(environmentKeyId: string): Promise<void>;
  findWorkToken(tokenHash: Uint8Array): Promise<WorkTokenIdentity | undefined>;
}

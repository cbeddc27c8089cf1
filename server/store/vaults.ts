/** Vaults: places for credentials. */
import type { Vault } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { AuditInput } from "./audit.ts";
import type { Page, PageRequest } from "./page.ts";
import type { RequestIdClaim } from "./request-ids.ts";

/** Those that are a session's or a deployment's own are not among them. */
export interface VaultStore {
  /** Throws REQUEST_ID_REUSED; a repeat returns the first vault. */
  create(vault: {
    id: string;
    workspaceId: string;
    displayName: string;
    metadata: Readonly<Record<string, string>>;
    request: RequestIdClaim;
    audit: AuditInput;
  }): Promise<Vault>;
  /** Undefined when there is none in what the caller sees. */
  find(vaultId: string, workspaceId: string | undefined): Promise<Vault | undefined>;
  /** Those of these that there are, in any workspace. */
  findAll(vaultIds: readonly string[]): Promise<Vault[]>;
  /** Newest first; without a workspace all of the installation. */
  list(query: {
    workspaceId: string | undefined;
    includeArchived: boolean;
    page: PageRequest;
  }): Promise<Page<Vault>>;
  /** Undefined when there is none in what the caller sees. Throws VAULT_ARCHIVED, INVALID_FIELD for more than 16 pairs. */
  update(change: {
    vaultId: string;
    workspaceId: string | undefined;
    displayName: string | undefined;
    /** An empty value deletes its key. */
    metadata: Readonly<Record<string, string>>;
    audit: AuditInput;
  }): Promise<Vault | undefined>;
  /** Erases all secrets in it. Undefined when there is none in what the caller sees; an archived one stays as it is. */
  archive(vaultId: string, workspaceId: string | undefined, audit: AuditInput): Promise<Vault | undefined>;
  /** With its credentials. False when there is none in what the caller sees. */
  delete(vaultId: string, workspaceId: string | undefined, audit: AuditInput): Promise<boolean>;
}

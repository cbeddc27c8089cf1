/** Credentials: what they are for, in the clear, and secrets that the server cannot open. */
import type { Credential, CredentialUse } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { AuditInput } from "./audit.ts";
import type { Page, PageRequest } from "./page.ts";
import type { RequestIdClaim } from "./request-ids.ts";

export const MAX_CREDENTIALS = 20;

export interface StoredCredential {
  readonly credential: Credential;
  readonly workspaceId: string;
  /** Compact JWE; undefined for one that has ended. */
  readonly sealed: string | undefined;
  /** Of the sealed text, from 1. */
  readonly version: number;
  /** A refresh of its token goes on. */
  readonly isRefreshing: boolean;
}

/** A credential that a session wants for one of these destinations, and who is told to have opened it. */
export interface CredentialOpening {
  readonly sessionId: string;
  /** As kit/vault/destination.ts makes them; of those that fit, one of an earlier vault goes first. */
  readonly destinations: readonly string[];
  /** Of the entry `credential.open` of the audit log; its detail also gets the vault's id. */
  readonly audit: { readonly actor: string; readonly detail: Readonly<Record<string, string>> };
}

export interface SealedText {
  readonly text: string;
  readonly keyId: string;
}

export interface NewCredential {
  readonly id: string;
  readonly vaultId: string;
  readonly workspaceId: string | undefined;
  readonly displayName: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly use: CredentialUse;
  /** As kit/vault/destination.ts makes it. */
  readonly destination: string;
  readonly sealed: SealedText;
  readonly expiresAtMs: number | undefined;
  readonly request: RequestIdClaim;
  readonly audit: AuditInput;
}

export interface CredentialChange {
  readonly credentialId: string;
  readonly workspaceId: string | undefined;
  readonly displayName: string | undefined;
  /** An empty value deletes its key. */
  readonly metadata: Readonly<Record<string, string>>;
  readonly secret?:
    | {
        /** Refused when another secret was stored meanwhile; undefined: replaces any. */
        readonly expectedVersion: number | undefined;
        readonly use: CredentialUse;
        readonly destination: string;
        readonly sealed: SealedText;
        /** Undefined: not known. */
        readonly expiresAtMs: number | undefined;
        /** "keep": the time stays as it was. */
        readonly expiry: "set" | "keep";
        /** A new secret: what is known against the old one is forgotten. */
        readonly isNew: boolean;
      }
    | undefined;
  readonly audit: AuditInput;
}

export interface ResolvedSession {
  readonly workspaceId: string;
  readonly epoch: bigint;
  readonly isArchived: boolean;
}

export type RefreshClaimOutcome =
  | { readonly claim: "granted" | "broken" | "fresh"; readonly problem: string }
  | { readonly claim: "held" | "failed"; readonly problem: string; readonly retryAfterMs: number }
  | {
      readonly claim: "changed";
      readonly problem: string;
      readonly sealed: string;
      readonly version: number;
    };

export interface CredentialStore {
  /**
   * Undefined when there is no such vault in what the caller sees. Throws VAULT_ARCHIVED, ALREADY_EXISTS, LIMIT_EXCEEDED,
   * REQUEST_ID_REUSED; a repeat returns the first credential.
   */
  create(credential: NewCredential): Promise<Credential | undefined>;
  /** Undefined when there is none in what the caller sees. */
  find(credentialId: string, workspaceId: string | undefined): Promise<StoredCredential | undefined>;
  /** Newest first. */
  list(query: { vaultId: string; includeArchived: boolean; page: PageRequest }): Promise<Page<Credential>>;
  /** Undefined when there is none in what the caller sees. Throws CREDENTIAL_ARCHIVED, ALREADY_EXISTS, VERSION_MISMATCH, CREDENTIAL_REFRESHING. */
  update(change: CredentialChange): Promise<Credential | undefined>;
  /** Erases the secret. Undefined when there is none in what the caller sees; an archived one stays as it is. */
  archive(
    credentialId: string,
    workspaceId: string | undefined,
    audit: AuditInput,
  ): Promise<Credential | undefined>;
  /** False when there is none in what the caller sees. */
  delete(credentialId: string, workspaceId: string | undefined, audit: AuditInput): Promise<boolean>;

  /** The session as it stands, undefined when there is none; callers check it before they look for a credential. */
  session(sessionId: string): Promise<ResolvedSession | undefined>;
  /**
   * The first by the session's vaults in their order, its own and then its deployment's before them, and within one by these
   * destinations in theirs. It is in the audit log by the time that this resolves (S5).
   */
  open(opening: CredentialOpening): Promise<StoredCredential | undefined>;
  /** Whether `open` would find one; none is opened by asking. */
  hasAny(sessionId: string, destinations: readonly string[]): Promise<boolean>;
  /** Of the live variable credentials of these vaults, by name; at most 320. */
  variableNames(vaultIds: readonly string[], workspaceId: string): Promise<string[]>;
  /** The session's live variable credentials, of each name the first by its vaults in their order; at most 320. */
  variables(sessionId: string): Promise<StoredCredential[]>;
  /** Undefined when there is none. `epoch`, `now` and all times are the database's. */
  claimRefresh(claim: {
    credentialId: string;
    workspaceId: string | undefined;
    version: number;
    claimId: string;
    refused: boolean;
    ttlMs: number;
    audit: AuditInput;
  }): Promise<RefreshClaimOutcome | undefined>;
  /** The new version. Undefined when there is no such credential. Throws VERSION_MISMATCH. */
  storeRefreshed(refreshed: {
    credentialId: string;
    workspaceId: string | undefined;
    expectedVersion: number;
    sealed: SealedText;
    expiresAtMs: number | undefined;
    audit: AuditInput;
  }): Promise<number | undefined>;
  /** Undefined when there is no such credential; false when the claim has ended. */
  endRefresh(end: {
    credentialId: string;
    workspaceId: string | undefined;
    claimId: string;
    problem: string;
    isFinal: boolean;
    audit: AuditInput;
  }): Promise<boolean | undefined>;

  /** Live ones that are sealed to another key, at most `limit`, without these. */
  sealedToOthers(query: {
    keyId: string;
    without: readonly string[];
    limit: number;
  }): Promise<StoredCredential[]>;
  /** False when another text was stored meanwhile or a refresh goes on. */
  storeResealed(resealed: {
    credentialId: string;
    expectedVersion: number;
    sealed: SealedText;
    audit: AuditInput;
  }): Promise<boolean>;
}

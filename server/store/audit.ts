/** The audit log: who did what to what, written in the transaction that did it. */
import type { AuditEntry } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { Page, PageRequest } from "./page.ts";

export interface AuditInput {
  /** Kind and id of the principal. */
  readonly actor: string;
  /** What is done, such as `api_key.create`. */
  readonly action: string;
  /** What it is done to; an id. */
  readonly subject: string;
  readonly workspaceId?: string | undefined;
  /** For which session it is done. */
  readonly sessionId?: string | undefined;
  /** More about it, without secrets. */
  readonly detail?: Readonly<Record<string, unknown>>;
}

export interface CredentialRecordInput extends Omit<AuditInput, "workspaceId" | "sessionId"> {
  readonly id: string;
  readonly credentialId: string;
  /** Empty for none. */
  readonly sessionId: string;
}

/** Every condition that is given must hold. */
export interface AuditQuery {
  /** Without it: all of the installation. */
  readonly workspaceId?: string | undefined;
  readonly subject?: string | undefined;
  readonly actor?: string | undefined;
  /** With a dot at its end: all that begin with it. */
  readonly action?: string | undefined;
  readonly sessionId?: string | undefined;
  readonly since?: Date | undefined;
  readonly until?: Date | undefined;
  /** Oldest first. */
  readonly ascending?: boolean | undefined;
  readonly page: PageRequest;
}

export interface AuditStore {
  /** For what is no change of the store's own, such as a use of a credential. */
  record(entry: AuditInput): Promise<void>;
  /**
   * Of what proxies did with credentials. A record whose id is there already is left alone; `actor` may see all
   * workspaces, or one. The workspace is the credential's, else the session's.
   */
  recordUses(records: readonly CredentialRecordInput[], workspaceId: string | undefined): Promise<void>;
  /** Newest first. */
  list(query: AuditQuery): Promise<Page<AuditEntry>>;
}

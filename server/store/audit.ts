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
  /** More about it, without secrets. */
  readonly detail?: Readonly<Record<string, unknown>>;
}

export interface AuditStore {
  /** For what is no change of the store's own, such as a use of a credential. */
  record(entry: AuditInput): Promise<void>;
  /** Newest first. Without a workspace: all of the installation. */
  list(query: {
    workspaceId: string | undefined;
    subject: string | undefined;
    page: PageRequest;
  }): Promise<Page<AuditEntry>>;
}

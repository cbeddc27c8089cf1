/** Join tokens: what a hand agent enrols with. Only hashes are stored (S6). */
import type { JoinToken } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { AuditInput } from "./audit.ts";
import type { Page, PageRequest } from "./page.ts";

export interface JoinTokenStore {
  create(
    token: {
      id: string;
      workspaceId: string;
      pool: string;
      secretHash: Uint8Array;
      uses: number;
      validForMs: number;
    },
    audit: AuditInput,
  ): Promise<JoinToken>;
  /** Newest first, also spent and revoked ones; without a workspace all of the installation. */
  list(query: { workspaceId: string | undefined; page: PageRequest }): Promise<Page<JoinToken>>;
  /** Undefined when there is no such token, or when it is not of this workspace; a revoked one stays as it is. */
  revoke(
    joinTokenId: string,
    workspaceId: string | undefined,
    audit: AuditInput,
  ): Promise<JoinToken | undefined>;
}

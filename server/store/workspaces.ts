/** Tenants. */
import type { Workspace, WorkspaceLimits } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { AuditInput } from "./audit.ts";
import type { Page, PageRequest } from "./page.ts";
import type { RequestIdClaim } from "./request-ids.ts";

/** Sums over sessions. */
export interface WorkspaceUsage {
  readonly sessions: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly cacheReadInputTokens: number;
  readonly cacheCreationInputTokens: number;
  readonly modelRequests: number;
  readonly activeMs: number;
  readonly listCostNanoUsd: number;
  readonly unpricedRequests: number;
}

export interface WorkspaceStore {
  /** Throws ALREADY_EXISTS for a name in use, REQUEST_ID_REUSED. */
  create(workspace: {
    id: string;
    name: string;
    limits: WorkspaceLimits | undefined;
    tamperEvident: boolean;
    request: RequestIdClaim;
    audit: AuditInput;
  }): Promise<Workspace>;
  find(workspaceId: string): Promise<Workspace | undefined>;
  /** Newest first; with `only`, that workspace alone. */
  list(query: {
    only: string | undefined;
    includeArchived: boolean;
    page: PageRequest;
  }): Promise<Page<Workspace>>;
  /** Undefined when there is no such workspace. Throws ALREADY_EXISTS for a name in use. */
  update(change: {
    workspaceId: string;
    name: string | undefined;
    limits: WorkspaceLimits | undefined;
    tamperEvident: boolean | undefined;
    audit: AuditInput;
  }): Promise<Workspace | undefined>;
  /** Undefined when there is no such workspace; archived ones stay as they are. Throws INVALID_FIELD for the default one. */
  archive(workspaceId: string, audit: AuditInput): Promise<Workspace | undefined>;
  /** What its sessions have used, those that are erased included. Undefined when there is no such workspace. */
  usage(workspaceId: string): Promise<WorkspaceUsage | undefined>;
}

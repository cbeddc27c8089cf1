/** Deployments: what their sessions are made of, and when the next one is due. When that is, callers say. */
import type { DeploymentSpec } from "../../proto/gen/tendon/v1/deployment_pb.js";
import type { Page, PageRequest } from "./page.ts";
import type { RequestIdClaim } from "./request-ids.ts";
import type { OwnVault } from "./session-vaults.ts";

/** A time of a schedule, and the time a little later at which its run starts. */
export interface PlannedRun {
  readonly scheduledAt: Date;
  readonly firesAt: Date;
}

export interface DeploymentRecord {
  readonly id: string;
  readonly workspaceId: string;
  /** With the agent's version. */
  readonly spec: DeploymentSpec;
  /** Grows with every change of the spec. */
  readonly revision: number;
  /** The next run of its schedule; what it says of a paused one counts for nothing. */
  readonly planned: PlannedRun | undefined;
  /** Undefined unless it is paused. */
  readonly pausedBy: "manual" | "error" | undefined;
  /** Of the run that paused it; else empty. */
  readonly pausedErrorType: string;
  readonly lastRunAt: Date | undefined;
  readonly createdAt: Date;
  readonly updatedAt: Date;
  readonly archivedAt: Date | undefined;
}

export interface DeploymentList {
  /** Undefined: all of the installation. */
  readonly workspaceId: string | undefined;
  /** Empty: any. */
  readonly agentId: string;
  /** Of those that are not archived; undefined: any. */
  readonly isPaused: boolean | undefined;
  readonly includeArchived: boolean;
  readonly createdAtOrAfter: Date | undefined;
  readonly createdBefore: Date | undefined;
  readonly page: PageRequest;
  /** Of specs as they are stored; a page that would hold more ends before, after at least one. */
  readonly maxBytes: number;
}

/** Every method that changes one is one transaction, and one place where a deployment gets into a new state. */
export interface DeploymentStore {
  /**
   * A repeat of the request returns the first. REQUEST_ID_REUSED, AGENT_ARCHIVED, LIMIT_EXCEEDED for more than `most` that
   * are not archived.
   */
  create(deployment: {
    id: string;
    workspaceId: string;
    spec: DeploymentSpec;
    planned: PlannedRun | undefined;
    most: number;
    /** Tokens that came with its repositories. */
    tokens?: OwnVault | undefined;
    request: RequestIdClaim;
  }): Promise<DeploymentRecord>;
  /** Callers check the workspace, here and below. */
  find(deploymentId: string): Promise<DeploymentRecord | undefined>;
  /** Newest first. INVALID_PAGE_TOKEN. */
  list(query: DeploymentList): Promise<Page<DeploymentRecord>>;
  /**
   * Undefined when its revision is another one by now. `planned`: what its schedule does next; "kept" leaves it as it is.
   * `tokens`: all that there are from then on; undefined leaves those that there are. NOT_FOUND, DEPLOYMENT_ARCHIVED, AGENT_ARCHIVED.
   */
  update(change: {
    deploymentId: string;
    revision: number;
    spec: DeploymentSpec;
    planned: PlannedRun | "kept" | undefined;
    tokens?: OwnVault | undefined;
  }): Promise<DeploymentRecord | undefined>;
  /** What its tokens are sealed for; undefined when it never had one. A change of it grows the revision. */
  ownVault(deploymentId: string): Promise<{ vaultId: string; hasTokens: boolean } | undefined>;
  /** By hand; one that is paused stays as it is. NOT_FOUND, DEPLOYMENT_ARCHIVED. */
  pause(deploymentId: string): Promise<DeploymentRecord>;
  /**
   * `plan` says what the schedule does next; an active one stays as it is. NOT_FOUND, DEPLOYMENT_ARCHIVED.
   */
  unpause(
    deploymentId: string,
    plan: (spec: DeploymentSpec) => PlannedRun | undefined,
  ): Promise<DeploymentRecord>;
  /** One that is archived stays as it is. Its tokens end with its last session that lives. NOT_FOUND. */
  archive(deploymentId: string): Promise<DeploymentRecord>;
  /** Erases tokens of archived ones whose last session has ended since, of at most `limit`. Returns of how many. */
  eraseTokens(limit: number): Promise<number>;
  /** Those whose run starts now or was to start before, the longest due first. */
  due(at: Date, limit: number): Promise<DeploymentRecord[]>;
}

/** Runs of deployments: each is written once, in one transaction with its session. */

import type { PlannedRun } from "./deployments.ts";
import type { Page, PageRequest } from "./page.ts";
import type { RequestIdClaim } from "./request-ids.ts";
import type { ChangedSession, NewSession } from "./sessions.ts";

export interface RunFailure {
  /** As clients know it, such as `vault_archived_error`. */
  readonly type: string;
  readonly message: string;
  /** Whether it pauses a deployment whose schedule started the run. */
  readonly pauses: boolean;
}

export interface RunRecord {
  readonly id: string;
  readonly workspaceId: string;
  readonly deploymentId: string;
  readonly agentId: string;
  readonly agentVersion: number;
  /** Undefined for one that somebody asked for. */
  readonly scheduledAt: Date | undefined;
  /** Empty when none was made. */
  readonly sessionId: string;
  readonly error: { readonly type: string; readonly message: string } | undefined;
  readonly createdAt: Date;
}

export type RunStart =
  | {
      readonly kind: "schedule";
      /** The time that the run stands for. */
      readonly scheduledAt: Date;
      /** What the deployment had planned when this was decided. */
      readonly planned: PlannedRun;
      /** What it does next. */
      readonly next: PlannedRun | undefined;
    }
  | { readonly kind: "manual"; readonly request: RequestIdClaim };

export interface NewRun {
  readonly runId: string;
  readonly deploymentId: string;
  /** Of the deployment that the outcome comes from. */
  readonly revision: number;
  readonly start: RunStart;
  readonly outcome: { readonly session: NewSession } | { readonly failure: RunFailure };
}

export interface RecordedRun {
  readonly run: RunRecord;
  /** To be announced; undefined without one, and for a repeat. */
  readonly made: ChangedSession | undefined;
}

export interface DeploymentRunStore {
  /**
   * Run and session, or run and reason; and for a scheduled one what comes next, with a pause where the reason asks for it.
   * All of it or nothing. Undefined when the deployment's spec was changed since the outcome was prepared, and for a scheduled
   * run that is not due any more: somebody else has recorded it, or the deployment was paused or archived meanwhile. A run whose workspace is archived fails, whatever was prepared.
   * NOT_FOUND, DEPLOYMENT_ARCHIVED and REQUEST_ID_REUSED for a manual one; what the session's creation fails with.
   */
  record(run: NewRun): Promise<RecordedRun | undefined>;
  /** Callers check the workspace. */
  find(runId: string): Promise<RunRecord | undefined>;
  /** Newest first. INVALID_PAGE_TOKEN. */
  list(query: {
    /** Undefined: all of the installation. */
    workspaceId: string | undefined;
    /** Empty: any. */
    deploymentId: string;
    hasError: boolean | undefined;
    isScheduled: boolean | undefined;
    createdAtOrAfter: Date | undefined;
    createdBefore: Date | undefined;
    page: PageRequest;
  }): Promise<Page<RunRecord>>;
  /** Forgets at most `limit` runs that are older than sessions of their workspace may get. Returns how many. */
  prune(limit: number): Promise<number>;
}

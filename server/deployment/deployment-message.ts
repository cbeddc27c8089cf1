/** Deployments and runs as the contract shows them (pure). */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import {
  type Deployment,
  type DeploymentRun,
  DeploymentRunSchema,
  DeploymentSchema,
  DeploymentStatus,
  DeploymentTrigger,
} from "../../proto/gen/tendon/v1/deployment_pb.js";
import type { RunRecord } from "../store/deployment-runs.ts";
import type { DeploymentRecord } from "../store/deployments.ts";
import { upcomingRuns } from "./planning.ts";

export function toDeploymentMessage(record: DeploymentRecord, nowMs: number): Deployment {
  const { id, workspaceId, spec, pausedBy, pausedErrorType, lastRunAt, archivedAt } = record;
  const init: MessageInitShape<typeof DeploymentSchema> = {
    id,
    workspaceId,
    spec,
    status: pausedBy === undefined ? DeploymentStatus.ACTIVE : DeploymentStatus.PAUSED,
    upcomingRunsAt: archivedAt === undefined ? upcomingRuns(spec, nowMs).map(timestampFromDate) : [],
    createdAt: timestampFromDate(record.createdAt),
    updatedAt: timestampFromDate(record.updatedAt),
  };
  if (pausedBy !== undefined) init.pause = { errorType: pausedErrorType };
  if (lastRunAt !== undefined) init.lastRunAt = timestampFromDate(lastRunAt);
  if (archivedAt !== undefined) init.archivedAt = timestampFromDate(archivedAt);
  return create(DeploymentSchema, init);
}

export function toRunMessage(record: RunRecord): DeploymentRun {
  const { id, workspaceId, deploymentId, agentId, agentVersion, scheduledAt, sessionId, error } = record;
  const init: MessageInitShape<typeof DeploymentRunSchema> = {
    id,
    workspaceId,
    deploymentId,
    agentId,
    agentVersion,
    trigger: scheduledAt === undefined ? DeploymentTrigger.MANUAL : DeploymentTrigger.SCHEDULE,
    sessionId,
    createdAt: timestampFromDate(record.createdAt),
  };
  if (scheduledAt !== undefined) init.scheduledAt = timestampFromDate(scheduledAt);
  if (error !== undefined) init.error = { ...error };
  return create(DeploymentRunSchema, init);
}

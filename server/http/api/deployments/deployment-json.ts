/** A deployment as existing clients know it (pure). */
import {
  type Deployment,
  type DeploymentSpec,
  DeploymentStatus,
} from "../../../../proto/gen/tendon/v1/deployment_pb.js";
import type { EventInput } from "../../../../proto/gen/tendon/v1/event_pb.js";
import type { GitRepositoryInput } from "../../../../proto/gen/tendon/v1/git_pb.js";
import { MemoryAccess } from "../../../../proto/gen/tendon/v1/memory_pb.js";
import type { SessionResourceInput } from "../../../../proto/gen/tendon/v1/session_pb.js";
import { checkoutJson } from "../sessions/resource-json.ts";
import { budgetJson } from "../sessions/session-json.ts";
import { timeJson } from "../time-json.ts";

export function deploymentJson(deployment: Deployment) {
  const { id, status, pause, createdAt, updatedAt, archivedAt } = deployment;
  const spec = deployment.spec!;
  return {
    type: "deployment",
    id,
    name: spec.name,
    description: spec.description || null,
    agent: { type: "agent", id: spec.agentId, version: spec.agentVersion },
    environment_id: spec.environmentId,
    initial_events: spec.initialEvents.map(eventJson),
    resources: spec.resources.map(resourceConfigJson),
    vault_ids: spec.vaultIds,
    schedule: scheduleJson(deployment, spec),
    status: status === DeploymentStatus.PAUSED ? "paused" : "active",
    paused_reason: pause === undefined ? null : pausedReason(pause.errorType),
    ...budgetJson(spec.budget),
    metadata: spec.metadata,
    created_at: timeJson(createdAt),
    updated_at: timeJson(updatedAt),
    archived_at: timeJson(archivedAt),
  };
}

function eventJson({ type, payload }: EventInput) {
  return { type, ...JSON.parse(payload || "{}") };
}

function scheduleJson({ lastRunAt, upcomingRunsAt }: Deployment, { schedule }: DeploymentSpec) {
  if (schedule === undefined) return null;
  return {
    type: "cron",
    expression: schedule.expression,
    timezone: schedule.timeZone,
    last_run_at: timeJson(lastRunAt),
    upcoming_runs_at: upcomingRunsAt.map(timeJson),
  };
}

function pausedReason(errorType: string) {
  return errorType === "" ? { type: "manual" } : { type: "error", error: { type: errorType } };
}

/** As it was asked for: no session has it yet. */
function resourceConfigJson({ kind }: SessionResourceInput) {
  switch (kind.case) {
    case "memoryStore": {
      const { memoryStoreId, access, instructions } = kind.value;
      return {
        type: "memory_store",
        memory_store_id: memoryStoreId,
        access: access === MemoryAccess.READ_ONLY ? "read_only" : "read_write",
        instructions: instructions || null,
      };
    }
    case "file":
      return { type: "file", file_id: kind.value.fileId, mount_path: kind.value.mountPath || null };
    case "gitRepository":
      return repositoryJson(kind.value);
    default:
      return { type: "unknown" };
  }
}

/** Its token is nowhere to be shown from. */
function repositoryJson({ url, checkout, mountPath, pushBranches }: GitRepositoryInput) {
  return {
    type: "github_repository",
    url,
    checkout: checkoutJson(checkout),
    mount_path: mountPath || null,
    ...(pushBranches.length > 0 && { tendon: { push_branches: pushBranches } }),
  };
}

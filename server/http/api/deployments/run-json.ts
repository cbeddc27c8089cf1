/** A run of a deployment as existing clients know it (pure). */
import type { DeploymentRun } from "../../../../proto/gen/tendon/v1/deployment_pb.js";
import { timeJson } from "../time-json.ts";

export function runJson(run: DeploymentRun) {
  const { id, deploymentId, agentId, agentVersion, scheduledAt, sessionId, error, createdAt } = run;
  return {
    type: "deployment_run",
    id,
    deployment_id: deploymentId,
    agent: { type: "agent", id: agentId, version: agentVersion },
    trigger_context:
      scheduledAt === undefined
        ? { type: "manual" }
        : { type: "schedule", scheduled_at: timeJson(scheduledAt) },
    session_id: sessionId || null,
    error: error === undefined ? null : { type: error.type, message: error.message },
    created_at: timeJson(createdAt),
  };
}

/** Items of work as existing clients know them (pure). */
import {
  type GetWorkStatsResponse,
  type HeartbeatWorkResponse,
  type Work,
  WorkState,
} from "../../../../proto/gen/tendon/v1/work_service_pb.js";
import { timeJson } from "../time-json.ts";

const STATES: Readonly<Record<WorkState, string>> = {
  [WorkState.UNSPECIFIED]: "queued",
  [WorkState.QUEUED]: "queued",
  [WorkState.STARTING]: "starting",
  [WorkState.ACTIVE]: "active",
  [WorkState.STOPPING]: "stopping",
  [WorkState.STOPPED]: "stopped",
};

/** `token`: only in the answer to a poll. */
export function workJson(work: Work, token = "") {
  return {
    type: "work",
    id: work.id,
    environment_id: work.environmentId,
    data: { type: "session", id: work.sessionId },
    state: STATES[work.state],
    secret: token === "" ? null : secretOf(token),
    metadata: work.metadata,
    created_at: timeJson(work.createdAt),
    acknowledged_at: timeJson(work.acknowledgedAt),
    started_at: timeJson(work.startedAt),
    latest_heartbeat_at: timeJson(work.latestHeartbeatAt),
    stop_requested_at: timeJson(work.stopRequestedAt),
    stopped_at: timeJson(work.stoppedAt),
  };
}

function secretOf(token: string): string {
  return Buffer.from(JSON.stringify({ sessions_token: token })).toString("base64url");
}

export function heartbeatJson({ lastHeartbeat, leaseExtended, state, ttlMs }: HeartbeatWorkResponse) {
  return {
    type: "work_heartbeat",
    last_heartbeat: lastHeartbeat,
    lease_extended: leaseExtended,
    state: STATES[state],
    ttl_seconds: Number(ttlMs) / 1_000,
  };
}

export function statsJson({ depth, pending, oldestQueuedAt, workersPolling }: GetWorkStatsResponse) {
  return {
    type: "work_queue_stats",
    depth: Number(depth),
    pending: Number(pending),
    oldest_queued_at: timeJson(oldestQueuedAt),
    workers_polling: Number(workersPolling),
  };
}

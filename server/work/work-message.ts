/** Items of work as the contract has them (pure). */
import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { type Work, WorkSchema, WorkState } from "../../proto/gen/tendon/v1/work_service_pb.js";
import type { WorkRecord, WorkStateName } from "../store/work.ts";

export const STATES: Readonly<Record<WorkStateName, WorkState>> = {
  queued: WorkState.QUEUED,
  starting: WorkState.STARTING,
  active: WorkState.ACTIVE,
  stopping: WorkState.STOPPING,
  stopped: WorkState.STOPPED,
};

export function workMessage(work: WorkRecord): Work {
  const { acknowledgedAt, startedAt, latestHeartbeatAt, stopRequestedAt, stoppedAt } = work;
  return create(WorkSchema, {
    id: work.workId,
    environmentId: work.environmentId,
    sessionId: work.sessionId,
    state: STATES[work.state],
    metadata: { ...work.metadata },
    createdAt: timestampFromDate(work.createdAt),
    ...(acknowledgedAt && { acknowledgedAt: timestampFromDate(acknowledgedAt) }),
    ...(startedAt && { startedAt: timestampFromDate(startedAt) }),
    ...(latestHeartbeatAt && { latestHeartbeatAt: timestampFromDate(latestHeartbeatAt) }),
    ...(stopRequestedAt && { stopRequestedAt: timestampFromDate(stopRequestedAt) }),
    ...(stoppedAt && { stoppedAt: timestampFromDate(stoppedAt) }),
  });
}

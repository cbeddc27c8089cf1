/** Rows of the work queue. Transactions lock the session's row first, then the item's. */
import { notFound } from "../../../kit/errors.ts";
import type { LockedWork, WorkName, WorkRecord, WorkStateName } from "../work.ts";
import type { Transaction } from "./transaction.ts";
import { claimFor } from "./worker-calls.ts";

export const WORK_COLUMNS = `work_id, workspace_id, environment_id, session_id, state, metadata, created_at, acknowledged_at, started_at,
  latest_heartbeat_at, stop_requested_at, stopped_at, fenced_claim, holder_claim, last_heartbeat, previous_heartbeat, ttl_ms`;

export interface WorkRow {
  work_id: string;
  workspace_id: string;
  environment_id: string;
  session_id: string;
  state: WorkStateName;
  metadata: string;
  created_at: Date;
  acknowledged_at: Date | null;
  started_at: Date | null;
  latest_heartbeat_at: Date | null;
  stop_requested_at: Date | null;
  stopped_at: Date | null;
  fenced_claim: number;
  holder_claim: number | null;
  last_heartbeat: string | null;
  previous_heartbeat: string | null;
  ttl_ms: number;
}

/** NOT_FOUND, also for an item of another environment. */
export async function lockWork(transaction: Transaction, name: WorkName): Promise<LockedWork> {
  const { rows } = await transaction.query<WorkRow>(
    `select ${WORK_COLUMNS} from work_items where work_id = $1 and environment_id = $2 for update`,
    [name.workId, name.environmentId],
  );
  const row = rows[0];
  if (row === undefined) throw notFound("work item", name.workId);
  return toLocked(row, await claimFor(transaction, name.workId, name.caller));
}

/** NOT_FOUND, also for an item of another environment. */
export async function sessionOfWork(
  transaction: Transaction,
  { workId, environmentId }: WorkName,
): Promise<string> {
  const { rows } = await transaction.query<{ session_id: string }>(
    "select session_id from work_items where work_id = $1 and environment_id = $2",
    [workId, environmentId],
  );
  const sessionId = rows[0]?.session_id;
  if (sessionId === undefined) throw notFound("work item", workId);
  return sessionId;
}

export async function writeWork(
  transaction: Transaction,
  workId: string,
  assignments: string,
  values: readonly unknown[] = [],
): Promise<WorkRow> {
  const { rows } = await transaction.query<WorkRow>(
    `update work_items set ${assignments} where work_id = $1 returning ${WORK_COLUMNS}`,
    [workId, ...values],
  );
  return rows[0]!;
}

export function toWork(row: WorkRow): WorkRecord {
  return {
    workId: row.work_id,
    workspaceId: row.workspace_id,
    environmentId: row.environment_id,
    sessionId: row.session_id,
    state: row.state,
    metadata: JSON.parse(row.metadata) as Record<string, string>,
    createdAt: row.created_at,
    acknowledgedAt: row.acknowledged_at ?? undefined,
    startedAt: row.started_at ?? undefined,
    latestHeartbeatAt: row.latest_heartbeat_at ?? undefined,
    stopRequestedAt: row.stop_requested_at ?? undefined,
    stoppedAt: row.stopped_at ?? undefined,
  };
}

export function toLocked(row: WorkRow, callerClaim: number | undefined): LockedWork {
  return {
    ...toWork(row),
    fencedClaim: row.fenced_claim,
    holderClaim: row.holder_claim ?? undefined,
    callerClaim,
    lastHeartbeat: row.last_heartbeat ?? undefined,
    previousHeartbeat: row.previous_heartbeat ?? undefined,
    ttlMs: Number(row.ttl_ms),
  };
}

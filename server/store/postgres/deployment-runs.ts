import { failpoint } from "../../../kit/failpoint.ts";
import type { DeploymentRunStore, NewRun, RecordedRun, RunFailure, RunRecord } from "../deployment-runs.ts";
import type { DeploymentRecord } from "../deployments.ts";
import { SCOPES } from "../request-ids.ts";
import type { ChangedSession } from "../sessions.ts";
import { lockDeployment, lockLive, pauseDeployment, plannedValues } from "./deployments.ts";
import { listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { createSession } from "./sessions.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

interface Row {
  run_id: string;
  workspace_id: string;
  deployment_id: string;
  agent_id: string;
  agent_version: number;
  scheduled_at: Date | null;
  session_id: string | null;
  error_type: string | null;
  error_message: string | null;
  created_at: Date;
}

const COLUMNS =
  "run_id, workspace_id, deployment_id, agent_id, agent_version, scheduled_at, session_id, error_type, error_message, created_at";

/** Longer than any installation lives, and still a time that Postgres can name. */
const MAX_DAYS = 36_500;

export function createDeploymentRunStore(pool: Pool): DeploymentRunStore {
  return {
    record: (run) =>
      inTransaction(pool, (transaction) =>
        run.start.kind === "schedule"
          ? recordScheduled(transaction, run, run.start)
          : recordManual(transaction, run, run.start),
      ),
    find: (runId) => findRun(pool, runId),
    list: (query) => {
      const values: unknown[] = [];
      const where: string[] = [];
      const add = (condition: string, value: unknown) => where.push(`${condition} $${values.push(value)}`);
      if (query.workspaceId !== undefined) add("workspace_id =", query.workspaceId);
      if (query.deploymentId !== "") add("deployment_id =", query.deploymentId);
      if (query.hasError !== undefined) add("(error_type is not null) =", query.hasError);
      if (query.isScheduled !== undefined) add("(scheduled_at is not null) =", query.isScheduled);
      if (query.createdAtOrAfter !== undefined) add("created_at >=", query.createdAtOrAfter);
      if (query.createdBefore !== undefined) add("created_at <", query.createdBefore);
      const from = { columns: COLUMNS, from: "deployment_runs", at: "created_at", id: "run_id" };
      return listPage<Row, RunRecord>(pool, { ...from, where, values, page: query.page }, toRecord);
    },
    async prune(limit) {
      const { rowCount } = await pool.query(
        `delete from deployment_runs where run_id in (
           select r.run_id from (select workspace_id, (limits::json ->> 'retentionDays')::bigint as days from workspaces) w
             cross join lateral (select run_id from deployment_runs where workspace_id = w.workspace_id
               and created_at < clock_timestamp() - least(w.days, ${MAX_DAYS}) * interval '1 day'
               order by created_at limit $1) r
           where w.days > 0 limit $1)`,
        [limit],
      );
      return rowCount;
    },
  };
}

type Start<Kind> = Extract<NewRun["start"], { kind: Kind }>;

/** Whoever comes second finds another plan; the index over (deployment, time) holds also where a clock went back. */
async function recordScheduled(
  transaction: Transaction,
  run: NewRun,
  start: Start<"schedule">,
): Promise<RecordedRun | undefined> {
  const deployment = await lockDeployment(transaction, run.deploymentId);
  if (deployment?.revision !== run.revision || !isDue(deployment, start)) return undefined;
  const outcome = await outcomeOf(transaction, deployment, run.outcome);
  const recorded = await insertRun(transaction, { ...run, outcome }, deployment);
  await transaction.query(
    "update deployments set next_scheduled_at = $2, fires_at = $3 where deployment_id = $1",
    [deployment.id, ...plannedValues(start.next)],
  );
  if (recorded === undefined) return undefined;
  failpoint("server.run_claimed");
  const made = await makeSession(transaction, outcome);
  if ("failure" in outcome) {
    const { pauses, type } = outcome.failure;
    if (pauses) await pauseDeployment(transaction, deployment.id, "error", type);
  } else {
    await transaction.query(
      "update deployments set last_run_at = clock_timestamp() where deployment_id = $1",
      [deployment.id],
    );
  }
  return { run: recorded, made };
}

async function recordManual(
  transaction: Transaction,
  run: NewRun,
  { request }: Start<"manual">,
): Promise<RecordedRun | undefined> {
  const deployment = await lockLive(transaction, run.deploymentId);
  if (deployment.revision !== run.revision) return undefined;
  const claim = {
    ...request,
    workspaceId: deployment.workspaceId,
    scope: SCOPES.deploymentRun,
    subjectId: run.runId,
  };
  const earlier = await claimRequestId(transaction, claim);
  if (earlier !== undefined) return { run: (await findRun(transaction, earlier))!, made: undefined };
  const outcome = await outcomeOf(transaction, deployment, run.outcome);
  const recorded = await insertRun(transaction, { ...run, outcome }, deployment);
  return { run: recorded!, made: await makeSession(transaction, outcome) };
}

function isDue({ planned, pausedBy, archivedAt }: DeploymentRecord, start: Start<"schedule">): boolean {
  if (pausedBy !== undefined || archivedAt !== undefined) return false;
  return planned?.scheduledAt.getTime() === start.planned.scheduledAt.getTime();
}

/** Nobody can reach a session of an archived workspace. */
async function outcomeOf(
  transaction: Transaction,
  { workspaceId }: DeploymentRecord,
  outcome: NewRun["outcome"],
): Promise<NewRun["outcome"]> {
  const { rows } = await transaction.query<{ archived: boolean }>(
    "select archived_at is not null as archived from workspaces where workspace_id = $1",
    [workspaceId],
  );
  return rows[0]?.archived ? { failure: WORKSPACE_ARCHIVED } : outcome;
}

const WORKSPACE_ARCHIVED: RunFailure = {
  type: "workspace_archived_error",
  message: "the deployment's workspace is archived",
  pauses: true,
};

/** Undefined when that time has its run. */
async function insertRun(
  transaction: Transaction,
  { runId, start, outcome }: NewRun,
  { id, workspaceId, spec }: DeploymentRecord,
): Promise<RunRecord | undefined> {
  const failure = "failure" in outcome ? outcome.failure : undefined;
  const { rows } = await transaction.query<Row>(
    `insert into deployment_runs
       (run_id, workspace_id, deployment_id, agent_id, agent_version, scheduled_at, session_id, error_type, error_message)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict do nothing returning ${COLUMNS}`,
    [
      runId,
      workspaceId,
      id,
      spec.agentId,
      spec.agentVersion,
      start.kind === "schedule" ? start.scheduledAt : null,
      "session" in outcome ? outcome.session.sessionId : null,
      failure?.type ?? null,
      failure?.message ?? null,
    ],
  );
  return rows[0] && toRecord(rows[0]);
}

async function makeSession(
  transaction: Transaction,
  outcome: NewRun["outcome"],
): Promise<ChangedSession | undefined> {
  return "session" in outcome ? createSession(transaction, outcome.session) : undefined;
}

async function findRun(db: Queryable, runId: string): Promise<RunRecord | undefined> {
  const { rows } = await db.query<Row>(`select ${COLUMNS} from deployment_runs where run_id = $1`, [runId]);
  return rows[0] && toRecord(rows[0]);
}

function toRecord(row: Row): RunRecord {
  return {
    id: row.run_id,
    workspaceId: row.workspace_id,
    deploymentId: row.deployment_id,
    agentId: row.agent_id,
    agentVersion: row.agent_version,
    scheduledAt: row.scheduled_at ?? undefined,
    sessionId: row.session_id ?? "",
    error: row.error_type === null ? undefined : { type: row.error_type, message: row.error_message ?? "" },
    createdAt: row.created_at,
  };
}

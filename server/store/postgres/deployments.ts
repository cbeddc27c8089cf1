import { fromJsonString } from "@bufbuild/protobuf";
import { canonicalJson } from "../../../kit/canonical-json.ts";
import { notFound, TendonError } from "../../../kit/errors.ts";
import { type DeploymentSpec, DeploymentSpecSchema } from "../../../proto/gen/tendon/v1/deployment_pb.js";
import type { DeploymentList, DeploymentRecord, DeploymentStore, PlannedRun } from "../deployments.ts";
import type { Page } from "../page.ts";
import { deploymentArchived } from "../refusals.ts";
import { SCOPES } from "../request-ids.ts";
import { endDeploymentVaults, findDeploymentVault, replaceTokens } from "./deployment-vaults.ts";
import { checkCursor } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

interface Row {
  deployment_id: string;
  workspace_id: string;
  spec: string;
  revision: number;
  next_scheduled_at: Date | null;
  fires_at: Date | null;
  paused_by: "manual" | "error" | null;
  paused_error_type: string;
  last_run_at: Date | null;
  created_at: Date;
  updated_at: Date;
  archived_at: Date | null;
}

const COLUMNS = `deployment_id, workspace_id, spec, revision, next_scheduled_at, fires_at, paused_by, paused_error_type,
  last_run_at, created_at, updated_at, archived_at`;

export function createDeploymentStore(pool: Pool): DeploymentStore {
  return {
    create: (deployment) => inTransaction(pool, (transaction) => create(transaction, deployment)),
    find: (deploymentId) => findDeployment(pool, deploymentId),
    list: (query) => list(pool, query),
    update: (change) => inTransaction(pool, (transaction) => update(transaction, change)),
    pause: (deploymentId) =>
      inTransaction(pool, async (transaction) => {
        const before = await lockLive(transaction, deploymentId);
        if (before.pausedBy !== undefined) return before;
        return pauseDeployment(transaction, deploymentId, "manual", "");
      }),
    unpause: (deploymentId, plan) =>
      inTransaction(pool, async (transaction) => {
        const before = await lockLive(transaction, deploymentId);
        if (before.pausedBy === undefined) return before;
        return change(
          transaction,
          deploymentId,
          "paused_by = null, paused_error_type = '', next_scheduled_at = $2, fires_at = $3",
          plannedValues(plan(before.spec)),
        );
      }),
    archive: (deploymentId) =>
      inTransaction(pool, async (transaction) => {
        const before = await lockDeployment(transaction, deploymentId);
        if (before === undefined) throw notFound("deployment", deploymentId);
        if (before.archivedAt !== undefined) return before;
        const archived = await change(transaction, deploymentId, ARCHIVED, []);
        await endDeploymentVaults(transaction, 1, [deploymentId]);
        return archived;
      }),
    ownVault: (deploymentId) => findDeploymentVault(pool, deploymentId),
    eraseTokens: (limit) => inTransaction(pool, (transaction) => endDeploymentVaults(transaction, limit)),
    async due(at, limit) {
      const { rows } = await pool.query<Row>(
        `select ${COLUMNS} from deployments
         where fires_at <= $1 and paused_by is null and archived_at is null
         order by fires_at, deployment_id limit $2`,
        [at, limit],
      );
      return rows.map(toRecord);
    },
  };
}

const ARCHIVED =
  "archived_at = clock_timestamp(), paused_by = null, paused_error_type = '', next_scheduled_at = null, fires_at = null";

/** With their agent, in the transaction that archives it. */
export async function archiveDeploymentsOf(transaction: Transaction, agentId: string): Promise<void> {
  const { rows } = await transaction.query<{ deployment_id: string }>(
    `update deployments set ${ARCHIVED}, updated_at = clock_timestamp() where agent_id = $1 and archived_at is null
     returning deployment_id`,
    [agentId],
  );
  const ids = rows.map((row) => row.deployment_id);
  if (ids.length > 0) await endDeploymentVaults(transaction, ids.length, ids);
}

/** In a transaction that holds the deployment's lock. */
export function pauseDeployment(
  transaction: Transaction,
  deploymentId: string,
  by: "manual" | "error",
  errorType: string,
): Promise<DeploymentRecord> {
  return change(transaction, deploymentId, "paused_by = $2, paused_error_type = $3", [by, errorType]);
}

/** For a transaction that goes on to change it. */
export async function lockDeployment(
  transaction: Transaction,
  deploymentId: string,
): Promise<DeploymentRecord | undefined> {
  const { rows } = await transaction.query<Row>(
    `select ${COLUMNS} from deployments where deployment_id = $1 for no key update`,
    [deploymentId],
  );
  return rows[0] && toRecord(rows[0]);
}

/** NOT_FOUND, DEPLOYMENT_ARCHIVED. */
export async function lockLive(transaction: Transaction, deploymentId: string): Promise<DeploymentRecord> {
  const deployment = await lockDeployment(transaction, deploymentId);
  if (deployment === undefined) throw notFound("deployment", deploymentId);
  if (deployment.archivedAt !== undefined) throw deploymentArchived(deploymentId);
  return deployment;
}

export function plannedValues(planned: PlannedRun | undefined): [Date | null, Date | null] {
  return [planned?.scheduledAt ?? null, planned?.firesAt ?? null];
}

async function create(
  transaction: Transaction,
  { id, workspaceId, spec, planned, most, tokens, request }: Parameters<DeploymentStore["create"]>[0],
): Promise<DeploymentRecord> {
  const claim = { ...request, workspaceId, scope: SCOPES.deployment, subjectId: id };
  const earlier = await claimRequestId(transaction, claim);
  if (earlier !== undefined) return (await findDeployment(transaction, earlier))!;
  await holdAgent(transaction, spec.agentId);
  await checkCount(transaction, workspaceId, most);
  const { rows } = await transaction.query<Row>(
    `insert into deployments (deployment_id, workspace_id, agent_id, spec, next_scheduled_at, fires_at)
     values ($1, $2, $3, $4, $5, $6) returning ${COLUMNS}`,
    [id, workspaceId, spec.agentId, specText(spec), ...plannedValues(planned)],
  );
  if (tokens !== undefined) await replaceTokens(transaction, { deploymentId: id, workspaceId }, tokens);
  return toRecord(rows[0]!);
}

/** Whoever archives the agent waits, and archives what is made here as well. Before a deployment's own lock. */
async function holdAgent(transaction: Transaction, agentId: string): Promise<void> {
  const { rows } = await transaction.query<{ archived: boolean }>(
    "select archived_at is not null as archived from agents where agent_id = $1 for key share",
    [agentId],
  );
  const [agent] = rows;
  if (agent === undefined) throw notFound("agent", agentId);
  if (agent.archived)
    throw new TendonError("AGENT_ARCHIVED", `the agent "${agentId}" is archived`, { agent_id: agentId });
}

/** One at a time, so that two at once do not get past it. */
async function checkCount(transaction: Transaction, workspaceId: string, most: number): Promise<void> {
  await transaction.query("select 1 from workspaces where workspace_id = $1 for no key update", [
    workspaceId,
  ]);
  const { rows } = await transaction.query<{ live: number }>(
    "select count(*)::integer as live from deployments where workspace_id = $1 and archived_at is null",
    [workspaceId],
  );
  if ((rows[0]?.live ?? 0) < most) return;
  throw new TendonError(
    "LIMIT_EXCEEDED",
    `a workspace may have ${most} deployments that are not archived, and this one has them`,
    { limit: "deployments", most: String(most) },
  );
}

async function update(
  transaction: Transaction,
  { deploymentId, revision, spec, planned, tokens }: Parameters<DeploymentStore["update"]>[0],
): Promise<DeploymentRecord | undefined> {
  await holdAgent(transaction, spec.agentId);
  const before = await lockLive(transaction, deploymentId);
  if (before.revision !== revision) return undefined;
  if (tokens !== undefined) await replaceTokens(transaction, { ...before, deploymentId }, tokens);
  const set = "revision = revision + 1, agent_id = $2, spec = $3";
  const values = [spec.agentId, specText(spec)];
  return planned === "kept"
    ? change(transaction, deploymentId, set, values)
    : change(transaction, deploymentId, `${set}, next_scheduled_at = $4, fires_at = $5`, [
        ...values,
        ...plannedValues(planned),
      ]);
}

async function change(
  transaction: Transaction,
  deploymentId: string,
  set: string,
  values: readonly unknown[],
): Promise<DeploymentRecord> {
  const { rows } = await transaction.query<Row>(
    `update deployments set ${set}, updated_at = clock_timestamp() where deployment_id = $1 returning ${COLUMNS}`,
    [deploymentId, ...values],
  );
  return toRecord(rows[0]!);
}

export async function findDeployment(
  db: Queryable,
  deploymentId: string,
): Promise<DeploymentRecord | undefined> {
  const { rows } = await db.query<Row>(`select ${COLUMNS} from deployments where deployment_id = $1`, [
    deploymentId,
  ]);
  return rows[0] && toRecord(rows[0]);
}

/** First only which they are and how large, then those that fit: a page of the largest ones would not fit into an answer. */
async function list(pool: Pool, query: DeploymentList): Promise<Page<DeploymentRecord>> {
  const { where, values } = conditions(query);
  const { size } = query.page;
  const { rows } = await pool.query<{ deployment_id: string; cursor_at: string; bytes: number }>(
    `select deployment_id, created_at::text as cursor_at, octet_length(spec) as bytes from deployments
     ${where.length === 0 ? "" : `where ${where.join(" and ")}`}
     order by created_at desc, deployment_id desc limit ${size + 1}`,
    values,
  );
  let bytes = 0;
  const beyond = rows.findIndex((row, at) => {
    bytes += row.bytes;
    return at >= size || (at > 0 && bytes > query.maxBytes);
  });
  const shown = beyond < 0 ? rows : rows.slice(0, beyond);
  const last = beyond < 0 ? undefined : shown.at(-1);
  const read = await pool.query<Row>(
    `select ${COLUMNS} from deployments where deployment_id = any($1) order by created_at desc, deployment_id desc`,
    [shown.map((row) => row.deployment_id)],
  );
  return { items: read.rows.map(toRecord), next: last && [last.cursor_at, last.deployment_id] };
}

function conditions(query: DeploymentList): { where: string[]; values: unknown[] } {
  const where: string[] = [];
  const values: unknown[] = [];
  const add = (condition: (parameter: string) => string, value: unknown) => {
    values.push(value);
    where.push(condition(`$${values.length}`));
  };
  if (query.workspaceId !== undefined) add((p) => `workspace_id = ${p}`, query.workspaceId);
  if (query.agentId !== "") add((p) => `agent_id = ${p}`, query.agentId);
  if (query.isPaused !== undefined) add((p) => `(paused_by is not null) = ${p}`, query.isPaused);
  if (!query.includeArchived) where.push("archived_at is null");
  if (query.createdAtOrAfter) add((p) => `created_at >= ${p}`, query.createdAtOrAfter);
  if (query.createdBefore) add((p) => `created_at < ${p}`, query.createdBefore);
  if (query.page.after !== undefined) {
    checkCursor(query.page.after);
    values.push(...query.page.after);
    where.push(`(created_at, deployment_id) < ($${values.length - 1}::timestamptz, $${values.length})`);
  }
  return { where, values };
}

function specText(spec: DeploymentSpec): string {
  return canonicalJson(DeploymentSpecSchema, spec);
}

function toRecord(row: Row): DeploymentRecord {
  const { next_scheduled_at: scheduledAt, fires_at: firesAt } = row;
  return {
    id: row.deployment_id,
    workspaceId: row.workspace_id,
    spec: fromJsonString(DeploymentSpecSchema, row.spec, { ignoreUnknownFields: true }),
    revision: row.revision,
    planned: scheduledAt === null || firesAt === null ? undefined : { scheduledAt, firesAt },
    pausedBy: row.paused_by ?? undefined,
    pausedErrorType: row.paused_error_type,
    lastRunAt: row.last_run_at ?? undefined,
    createdAt: row.created_at,
    updatedAt: row.updated_at,
    archivedAt: row.archived_at ?? undefined,
  };
}

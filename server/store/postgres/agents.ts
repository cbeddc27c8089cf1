import { create, fromJsonString } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { canonicalJson } from "../../../kit/canonical-json.ts";
import { TendonError } from "../../../kit/errors.ts";
import {
  type Agent,
  AgentSchema,
  type AgentSpec,
  AgentSpecSchema,
} from "../../../proto/gen/tendon/v1/agent_pb.js";
import type { AgentStore } from "../agents.ts";
import { SCOPES } from "../request-ids.ts";
import { archiveDeploymentsOf } from "./deployments.ts";
import { listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { timeField } from "./timestamps.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

interface Row {
  agent_id: string;
  workspace_id: string;
  version: number;
  spec: string;
  created_at: Date;
  updated_at: Date;
  archived_at: Date | null;
}

interface Head {
  workspace_id: string;
  latest_version: number;
  archived_at: Date | null;
}

const COLUMNS =
  "a.agent_id, a.workspace_id, v.version, v.spec, a.created_at, v.created_at as updated_at, a.archived_at";
const LATEST = "agents a join agent_versions v on v.agent_id = a.agent_id and v.version = a.latest_version";

export function createAgentStore(pool: Pool): AgentStore {
  return {
    create: ({ id, workspaceId, spec, request }) =>
      inTransaction(pool, async (transaction) => {
        const claim = { ...request, workspaceId, scope: SCOPES.agent, subjectId: id };
        const earlier = await claimRequestId(transaction, claim);
        if (earlier !== undefined) return (await findAgent(transaction, earlier, 0))!;
        await transaction.query(
          "insert into agents (agent_id, workspace_id, latest_version) values ($1, $2, 1)",
          [id, workspaceId],
        );
        await insertVersion(transaction, id, 1, spec);
        return (await findAgent(transaction, id, 0))!;
      }),
    find: (agentId, version) => findAgent(pool, agentId, version),
    list({ workspaceId, includeArchived, createdAtOrAfter, createdBefore, page }) {
      const values: unknown[] = [];
      const where: string[] = [];
      if (workspaceId !== undefined) where.push(`a.workspace_id = $${values.push(workspaceId)}`);
      if (!includeArchived) where.push("a.archived_at is null");
      if (createdAtOrAfter) where.push(`a.created_at >= $${values.push(createdAtOrAfter)}`);
      if (createdBefore) where.push(`a.created_at < $${values.push(createdBefore)}`);
      const query = { columns: COLUMNS, from: LATEST, where, values, page };
      return listPage<Row, Agent>(pool, { ...query, at: "a.created_at", id: "a.agent_id" }, toAgent);
    },
    listVersions: ({ agentId, page }) =>
      listPage<Row, Agent>(
        pool,
        {
          columns: COLUMNS,
          from: "agents a join agent_versions v using (agent_id)",
          where: ["a.agent_id = $1"],
          values: [agentId],
          at: "v.created_at",
          // Versions of one microsecond stay in order.
          id: "lpad(v.version::text, 10, '0')",
          page,
        },
        toAgent,
      ),
    update: ({ agentId, workspaceId, spec, expectedVersion }) =>
      inTransaction(pool, async (transaction) => {
        const head = await lockHead(transaction, agentId, workspaceId);
        if (head === undefined) return undefined;
        if (head.archived_at !== null) {
          throw new TendonError("AGENT_ARCHIVED", `agent "${agentId}" is archived and cannot change`, {
            id: agentId,
          });
        }
        if (expectedVersion !== 0 && expectedVersion !== head.latest_version) {
          throw versionMismatch(agentId, expectedVersion, head.latest_version);
        }
        const latest = (await findAgent(transaction, agentId, 0))!;
        if (specText(latest.spec!) === specText(spec)) return latest;
        const version = head.latest_version + 1;
        await insertVersion(transaction, agentId, version, spec);
        await transaction.query("update agents set latest_version = $2 where agent_id = $1", [
          agentId,
          version,
        ]);
        return findAgent(transaction, agentId, 0);
      }),
    archive: (agentId, workspaceId) =>
      inTransaction(pool, async (transaction) => {
        if ((await lockHead(transaction, agentId, workspaceId)) === undefined) return undefined;
        await transaction.query(
          "update agents set archived_at = now() where agent_id = $1 and archived_at is null",
          [agentId],
        );
        await archiveDeploymentsOf(transaction, agentId);
        return findAgent(transaction, agentId, 0);
      }),
  };
}

async function lockHead(
  transaction: Transaction,
  agentId: string,
  workspaceId: string | undefined,
): Promise<Head | undefined> {
  const { rows } = await transaction.query<Head>(
    `select workspace_id, latest_version, archived_at from agents
     where agent_id = $1 and ($2::text is null or workspace_id = $2) for update`,
    [agentId, workspaceId ?? null],
  );
  return rows[0];
}

async function findAgent(db: Queryable, agentId: string, version: number): Promise<Agent | undefined> {
  const { rows } = await db.query<Row>(
    `select ${COLUMNS} from agents a join agent_versions v using (agent_id)
     where a.agent_id = $1 and v.version = case when $2 = 0 then a.latest_version else $2 end`,
    [agentId, version],
  );
  return rows[0] && toAgent(rows[0]);
}

async function insertVersion(
  transaction: Transaction,
  agentId: string,
  version: number,
  spec: AgentSpec,
): Promise<void> {
  await transaction.query(
    "insert into agent_versions (agent_id, version, spec, created_at) values ($1, $2, $3, clock_timestamp())",
    [agentId, version, specText(spec)],
  );
}

function specText(spec: AgentSpec): string {
  return canonicalJson(AgentSpecSchema, spec);
}

function versionMismatch(agentId: string, expected: number, latest: number): TendonError {
  return new TendonError(
    "VERSION_MISMATCH",
    `expected_version: agent "${agentId}" is at version ${latest}, not ${expected}; read it again and repeat the change`,
    { field: "expected_version", version: String(latest) },
  );
}

function toAgent(row: Row): Agent {
  return create(AgentSchema, {
    id: row.agent_id,
    workspaceId: row.workspace_id,
    version: row.version,
    spec: fromJsonString(AgentSpecSchema, row.spec, { ignoreUnknownFields: true }),
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
    ...timeField("archivedAt", row.archived_at),
  });
}

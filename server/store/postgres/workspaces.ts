import { create, fromJsonString } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { canonicalJson } from "../../../kit/canonical-json.ts";
import { invalidField, TendonError } from "../../../kit/errors.ts";
import {
  type Workspace,
  type WorkspaceLimits,
  WorkspaceLimitsSchema,
  WorkspaceSchema,
} from "../../../proto/gen/tendon/v1/admin_service_pb.js";
import type { WorkspaceStore } from "../workspaces.ts";
import { insertAudit } from "./audit.ts";
import { listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { timeField } from "./timestamps.ts";
import { inTransaction, translateViolation } from "./transaction.ts";
import { workspaceUsage } from "./workspace-usage.ts";

interface Row {
  workspace_id: string;
  name: string;
  is_default: boolean;
  limits: string;
  tamper_evident: boolean;
  created_at: Date;
  archived_at: Date | null;
}

const COLUMNS = "workspace_id, name, is_default, limits, tamper_evident, created_at, archived_at";

/** Workspaces are made by the whole installation; their request ids belong to no workspace. */
const INSTALLATION_SCOPE = "";

export function createWorkspaceStore(pool: Pool): WorkspaceStore {
  return {
    create: ({ id, name, limits, tamperEvident, request, audit }) =>
      named(name, () =>
        inTransaction(pool, async (transaction) => {
          const claim = { ...request, workspaceId: INSTALLATION_SCOPE, scope: "workspace", subjectId: id };
          const earlier = await claimRequestId(transaction, claim);
          if (earlier !== undefined) return toWorkspace((await findRow(transaction, earlier))!);
          const { rows } = await transaction.query<Row>(
            `insert into workspaces (workspace_id, name, limits, tamper_evident) values ($1, $2, $3, $4) returning ${COLUMNS}`,
            [id, name, limitsText(limits), tamperEvident],
          );
          await insertAudit(transaction, audit);
          return toWorkspace(rows[0]!);
        }),
      ),
    async find(workspaceId) {
      const row = await findRow(pool, workspaceId);
      return row && toWorkspace(row);
    },
    list({ only, includeArchived, page }) {
      const values: unknown[] = [];
      const where: string[] = [];
      if (only !== undefined) where.push(`workspace_id = $${values.push(only)}`);
      if (!includeArchived) where.push("archived_at is null");
      const query = { columns: COLUMNS, from: "workspaces", where, values, page };
      return listPage<Row, Workspace>(pool, { ...query, at: "created_at", id: "workspace_id" }, toWorkspace);
    },
    update: ({ workspaceId, name, limits, tamperEvident, audit }) =>
      named(name ?? "", () =>
        inTransaction(pool, async (transaction) => {
          const before = await findRow(transaction, workspaceId, "for update");
          if (before === undefined) return undefined;
          const wanted = {
            name: name ?? before.name,
            limits: limits === undefined ? before.limits : limitsText(limits),
            tamper_evident: tamperEvident ?? before.tamper_evident,
          };
          const isSame = (field: keyof typeof wanted) => wanted[field] === before[field];
          if (isSame("name") && isSame("limits") && isSame("tamper_evident")) return toWorkspace(before);
          const { rows } = await transaction.query<Row>(
            `update workspaces set name = $2, limits = $3, tamper_evident = $4 where workspace_id = $1 returning ${COLUMNS}`,
            [workspaceId, wanted.name, wanted.limits, wanted.tamper_evident],
          );
          await insertAudit(transaction, audit);
          return toWorkspace(rows[0]!);
        }),
      ),
    archive: (workspaceId, audit) =>
      inTransaction(pool, async (transaction) => {
        const before = await findRow(transaction, workspaceId, "for update");
        if (before === undefined) return undefined;
        if (before.archived_at !== null) return toWorkspace(before);
        if (before.is_default) throw invalidField("workspace_id", "the default workspace cannot be archived");
        const { rows } = await transaction.query<Row>(
          `update workspaces set archived_at = now() where workspace_id = $1 returning ${COLUMNS}`,
          [workspaceId],
        );
        await insertAudit(transaction, audit);
        return toWorkspace(rows[0]!);
      }),
    usage: (workspaceId) => workspaceUsage(pool, workspaceId),
  };
}

async function findRow(db: Queryable, workspaceId: string, lock = ""): Promise<Row | undefined> {
  const { rows } = await db.query<Row>(`select ${COLUMNS} from workspaces where workspace_id = $1 ${lock}`, [
    workspaceId,
  ]);
  return rows[0];
}

async function named<T>(name: string, run: () => Promise<T>): Promise<T> {
  try {
    return await run();
  } catch (error) {
    throw translateViolation(error, {
      workspaces_name_key: () =>
        new TendonError("ALREADY_EXISTS", `name: another workspace is called "${name}"`, { field: "name" }),
    });
  }
}

function limitsText(limits: WorkspaceLimits | undefined): string {
  return canonicalJson(WorkspaceLimitsSchema, limits ?? create(WorkspaceLimitsSchema));
}

function toWorkspace(row: Row): Workspace {
  return create(WorkspaceSchema, {
    id: row.workspace_id,
    name: row.name,
    limits: fromJsonString(WorkspaceLimitsSchema, row.limits, { ignoreUnknownFields: true }),
    tamperEvident: row.tamper_evident,
    createdAt: timestampFromDate(row.created_at),
    ...timeField("archivedAt", row.archived_at),
  });
}

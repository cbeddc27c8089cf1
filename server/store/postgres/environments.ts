import { create, fromJsonString } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { canonicalJson } from "../../../kit/canonical-json.ts";
import { TendonError } from "../../../kit/errors.ts";
import {
  type Environment,
  EnvironmentSchema,
  type EnvironmentSpec,
  EnvironmentSpecSchema,
} from "../../../proto/gen/tendon/v1/environment_pb.js";
import type { EnvironmentStore } from "../environments.ts";
import { listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { timeField } from "./timestamps.ts";
import { inTransaction, type Transaction, translateViolation } from "./transaction.ts";

interface Row {
  environment_id: string;
  workspace_id: string;
  spec: string;
  is_default: boolean;
  created_at: Date;
  updated_at: Date;
  archived_at: Date | null;
}

const COLUMNS = "environment_id, workspace_id, spec, is_default, created_at, updated_at, archived_at";

export function createEnvironmentStore(pool: Pool): EnvironmentStore {
  return {
    create: ({ id, workspaceId, spec, makeDefault, request }) =>
      named(spec.name, () =>
        inTransaction(pool, async (transaction) => {
          const claim = { ...request, workspaceId, scope: "environment", subjectId: id };
          const earlier = await claimRequestId(transaction, claim);
          if (earlier !== undefined) return created(await findEnvironment(transaction, earlier));
          if (makeDefault) {
            // One at a time: a workspace has one default.
            await transaction.query("select from workspaces where workspace_id = $1 for update", [
              workspaceId,
            ]);
            await transaction.query(
              "update environments set is_default = false where workspace_id = $1 and is_default",
              [workspaceId],
            );
          }
          const { rows } = await transaction.query<Row>(
            `insert into environments (environment_id, workspace_id, name, spec, is_default)
             values ($1, $2, $3, $4, $5) returning ${COLUMNS}`,
            [id, workspaceId, spec.name, specText(spec), makeDefault],
          );
          return toEnvironment(rows[0]!);
        }),
      ),
    find: (environmentId) => findEnvironment(pool, environmentId),
    async findDefault(workspaceId) {
      const { rows } = await pool.query<Row>(
        `select ${COLUMNS} from environments where workspace_id = $1 and is_default`,
        [workspaceId],
      );
      return rows[0] && toEnvironment(rows[0]);
    },
    list({ workspaceId, includeArchived, page }) {
      const values: unknown[] = [];
      const where: string[] = [];
      if (workspaceId !== undefined) where.push(`workspace_id = $${values.push(workspaceId)}`);
      if (!includeArchived) where.push("archived_at is null");
      const query = { columns: COLUMNS, from: "environments", where, values, page };
      const key = { at: "created_at", id: "environment_id" };
      return listPage<Row, Environment>(pool, { ...query, ...key }, toEnvironment);
    },
    update: ({ environmentId, workspaceId, spec, expected }) =>
      named(spec.name, () =>
        inTransaction(pool, async (transaction) => {
          const before = await lockRow(transaction, environmentId, workspaceId);
          if (before === undefined) return undefined;
          if (before.archived_at !== null) throw archived(environmentId);
          if (before.spec === specText(spec)) return toEnvironment(before);
          if (expected !== undefined && before.spec !== specText(expected)) throw mismatch(environmentId);
          const { rows } = await transaction.query<Row>(
            `update environments set name = $2, spec = $3, updated_at = now()
             where environment_id = $1 returning ${COLUMNS}`,
            [environmentId, spec.name, specText(spec)],
          );
          return toEnvironment(rows[0]!);
        }),
      ),
    archive: (environmentId, workspaceId) =>
      inTransaction(pool, async (transaction) => {
        const before = await lockRow(transaction, environmentId, workspaceId);
        if (before === undefined) return undefined;
        if (before.archived_at !== null) return toEnvironment(before);
        const { rows } = await transaction.query<Row>(
          `update environments set archived_at = now(), is_default = false
           where environment_id = $1 returning ${COLUMNS}`,
          [environmentId],
        );
        return toEnvironment(rows[0]!);
      }),
    delete: (environmentId, workspaceId) =>
      inTransaction(pool, async (transaction) => {
        if ((await lockRow(transaction, environmentId, workspaceId)) === undefined) return false;
        await refuseWhileUsed(transaction, environmentId);
        await transaction.query("delete from environments where environment_id = $1", [environmentId]);
        return true;
      }),
  };
}

async function lockRow(
  transaction: Transaction,
  environmentId: string,
  workspaceId: string | undefined,
): Promise<Row | undefined> {
  const { rows } = await transaction.query<Row>(
    `select ${COLUMNS} from environments
     where environment_id = $1 and ($2::text is null or workspace_id = $2) for update`,
    [environmentId, workspaceId ?? null],
  );
  return rows[0];
}

/** A session names its environments in a foreign key and, for its other slots, in a JSON object of slot → id. */
async function refuseWhileUsed(transaction: Transaction, environmentId: string): Promise<void> {
  const { rows } = await transaction.query<{ session_id: string }>(
    `select session_id from sessions where environment_id = $1
     or exists (select from json_each_text(slot_environment_ids::json) where value = $1) limit 1`,
    [environmentId],
  );
  const [session] = rows;
  if (session === undefined) return;
  throw new TendonError(
    "ENVIRONMENT_IN_USE",
    `environment "${environmentId}" is used by session "${session.session_id}"; delete its sessions first, or archive it`,
    { id: environmentId, session_id: session.session_id },
  );
}

async function findEnvironment(db: Queryable, environmentId: string): Promise<Environment | undefined> {
  const { rows } = await db.query<Row>(`select ${COLUMNS} from environments where environment_id = $1`, [
    environmentId,
  ]);
  return rows[0] && toEnvironment(rows[0]);
}

function created(environment: Environment | undefined): Environment {
  if (environment !== undefined) return environment;
  throw new TendonError(
    "REQUEST_ID_REUSED",
    "request_id: the environment that this request made was deleted; use a new one",
    { field: "request_id" },
  );
}

async function named<T>(name: string, run: () => Promise<T>): Promise<T> {
  try {
    return await run();
  } catch (error) {
    throw translateViolation(error, {
      environments_name: () =>
        new TendonError("ALREADY_EXISTS", `spec.name: another environment is called "${name}"`, {
          field: "spec.name",
        }),
    });
  }
}

function mismatch(id: string): TendonError {
  const message = `expected_spec: environment "${id}" is another by now; read it again and repeat the change`;
  return new TendonError("VERSION_MISMATCH", message, { field: "expected_spec", id });
}

function archived(environmentId: string): TendonError {
  return new TendonError(
    "ENVIRONMENT_ARCHIVED",
    `environment "${environmentId}" is archived and cannot change`,
    { id: environmentId },
  );
}

function specText(spec: EnvironmentSpec): string {
  return canonicalJson(EnvironmentSpecSchema, spec);
}

function toEnvironment(row: Row): Environment {
  return create(EnvironmentSchema, {
    id: row.environment_id,
    workspaceId: row.workspace_id,
    spec: fromJsonString(EnvironmentSpecSchema, row.spec, { ignoreUnknownFields: true }),
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
    ...timeField("archivedAt", row.archived_at),
    isDefault: row.is_default,
  });
}

import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { type ApiKey, ApiKeySchema, Role } from "../../../proto/gen/tendon/v1/admin_service_pb.js";
import type { ApiKeyStore, KeyIdentity, KeyRole, NewApiKey } from "../api-keys.ts";
import { insertAudit } from "./audit.ts";
import { listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { dateOf, timeField } from "./timestamps.ts";
import { inTransaction } from "./transaction.ts";

interface Row {
  api_key_id: string;
  workspace_id: string | null;
  name: string;
  role: KeyRole;
  hint: string;
  created_at: Date;
  expires_at: Date | null;
  revoked_at: Date | null;
  last_used_at: Date | null;
}

const COLUMNS =
  "api_key_id, workspace_id, name, role, hint, created_at, expires_at, revoked_at, last_used_at";

const INSERT = `insert into api_keys (api_key_id, workspace_id, name, role, hint, secret_hash, expires_at)
  values ($1, $2, $3, $4, $5, $6, $7) on conflict (secret_hash) do nothing`;

const ROLES: Readonly<Record<KeyRole, Role>> = {
  admin: Role.ADMIN,
  client: Role.CLIENT,
  harness: Role.HARNESS,
  proxy: Role.PROXY,
  peer: Role.PEER,
};

export function createApiKeyStore(pool: Pool): ApiKeyStore {
  return {
    create: (key, audit) =>
      inTransaction(pool, async (transaction) => {
        const { rows } = await transaction.query<Row>(`${INSERT} returning ${COLUMNS}`, valuesOf(key));
        await insertAudit(transaction, audit);
        return toApiKey(rows[0]!);
      }),
    ensure: (key, audit) =>
      inTransaction(pool, async (transaction) => {
        const { rowCount } = await transaction.query(INSERT, valuesOf(key));
        if (rowCount === 1) await insertAudit(transaction, audit);
        return (await findIdentity(transaction, key.secretHash))!;
      }),
    findByHash: (secretHash) => findIdentity(pool, secretHash),
    async touch(apiKeyId) {
      await pool.query(
        `update api_keys set last_used_at = date_trunc('minute', now())
         where api_key_id = $1 and (last_used_at is null or last_used_at < date_trunc('minute', now()))`,
        [apiKeyId],
      );
    },
    async hasLive(role) {
      const { rows } = await pool.query<{ found: boolean }>(
        `select exists (select from api_keys where role = $1 and workspace_id is null and revoked_at is null
         and (expires_at is null or expires_at > now())) as found`,
        [role],
      );
      return rows[0]?.found ?? false;
    },
    list({ workspaceId, includeRevoked, page }) {
      const values: unknown[] = [];
      const where: string[] = [];
      if (workspaceId !== undefined) where.push(`workspace_id = $${values.push(workspaceId)}`);
      if (!includeRevoked) where.push("revoked_at is null");
      const query = { columns: COLUMNS, from: "api_keys", where, values, page };
      return listPage<Row, ApiKey>(pool, { ...query, at: "created_at", id: "api_key_id" }, toApiKey);
    },
    revoke: (apiKeyId, workspaceId, audit) =>
      inTransaction(pool, async (transaction) => {
        const { rows } = await transaction.query<Row>(
          `select ${COLUMNS} from api_keys where api_key_id = $1 and ($2::text is null or workspace_id = $2) for update`,
          [apiKeyId, workspaceId ?? null],
        );
        const [before] = rows;
        if (before === undefined) return undefined;
        if (before.revoked_at !== null) return toApiKey(before);
        const changed = await transaction.query<Row>(
          `update api_keys set revoked_at = now() where api_key_id = $1 returning ${COLUMNS}`,
          [apiKeyId],
        );
        await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id ?? undefined });
        return toApiKey(changed.rows[0]!);
      }),
  };
}

function valuesOf(key: NewApiKey): unknown[] {
  const { id, workspaceId, name, role, hint, secretHash, expiresAtMs } = key;
  return [id, workspaceId ?? null, name, role, hint, Buffer.from(secretHash), dateOf(expiresAtMs)];
}

async function findIdentity(db: Queryable, secretHash: Uint8Array): Promise<KeyIdentity | undefined> {
  const { rows } = await db.query<Row & { archived: boolean }>(
    `select k.*, w.archived_at is not null as archived
     from api_keys k left join workspaces w using (workspace_id) where k.secret_hash = $1`,
    [Buffer.from(secretHash)],
  );
  const [row] = rows;
  if (row === undefined) return undefined;
  return {
    apiKeyId: row.api_key_id,
    role: row.role,
    workspaceId: row.workspace_id ?? undefined,
    expiresAtMs: row.expires_at?.getTime(),
    revoked: row.revoked_at !== null,
    workspaceArchived: row.archived,
    lastUsedAtMs: row.last_used_at?.getTime(),
  };
}

function toApiKey(row: Row): ApiKey {
  return create(ApiKeySchema, {
    id: row.api_key_id,
    name: row.name,
    role: ROLES[row.role],
    workspaceId: row.workspace_id ?? "",
    hint: row.hint,
    createdAt: timestampFromDate(row.created_at),
    ...timeField("expiresAt", row.expires_at),
    ...timeField("revokedAt", row.revoked_at),
    ...timeField("lastUsedAt", row.last_used_at),
  });
}

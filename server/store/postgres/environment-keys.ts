import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { TendonError } from "../../../kit/errors.ts";
import {
  type EnvironmentKey,
  EnvironmentKeySchema,
} from "../../../proto/gen/tendon/v1/environment_service_pb.js";
import {
  type EnvironmentKeyIdentity,
  type EnvironmentKeyStore,
  MAX_ENVIRONMENT_KEYS,
} from "../environment-keys.ts";
import { insertAudit } from "./audit.ts";
import { listPage } from "./page.ts";
import type { Pool } from "./pool.ts";
import { timeField } from "./timestamps.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

interface Row {
  environment_key_id: string;
  environment_id: string;
  name: string;
  hint: string;
  created_at: Date;
  expires_at: Date | null;
  last_used_at: Date | null;
}

const COLUMNS = "environment_key_id, environment_id, name, hint, created_at, expires_at, last_used_at";

interface IdentityRow {
  environment_key_id: string;
  environment_id: string;
  workspace_id: string;
  revoked: boolean;
  expired: boolean;
}

/** A key whose workspace was archived opens nothing any more. */
const IDENTITY = `k.environment_key_id, k.environment_id, k.workspace_id,
  k.revoked_at is not null or w.archived_at is not null as revoked, coalesce(k.expires_at <= clock_timestamp(), false) as expired`;

export function createEnvironmentKeyStore(pool: Pool): EnvironmentKeyStore {
  return {
    create: (key, audit) =>
      inTransaction(pool, async (transaction) => {
        await checkRoom(transaction, key.environmentId);
        const { rows } = await transaction.query<Row>(
          `insert into environment_keys (environment_key_id, environment_id, workspace_id, name, hint, secret_hash, expires_at)
           values ($1, $2, $3, $4, $5, $6,
             case when $7::bigint > 0 then clock_timestamp() + $7::bigint * interval '1 second' end) returning ${COLUMNS}`,
          [
            key.id,
            key.environmentId,
            key.workspaceId,
            key.name,
            key.hint,
            Buffer.from(key.secretHash),
            key.expiresInSeconds,
          ],
        );
        await insertAudit(transaction, audit);
        return toKey(rows[0]!);
      }),
    list: (environmentId, page) =>
      listPage<Row, EnvironmentKey>(
        pool,
        {
          columns: COLUMNS,
          from: "environment_keys",
          where: ["environment_id = $1", "revoked_at is null"],
          values: [environmentId],
          at: "created_at",
          id: "environment_key_id",
          page,
        },
        toKey,
      ),
    revoke: (environmentId, environmentKeyId, audit) =>
      inTransaction(pool, async (transaction) => {
        const { rows } = await transaction.query<{ revoked: boolean }>(
          `select revoked_at is not null as revoked from environment_keys
           where environment_id = $1 and environment_key_id = $2 for update`,
          [environmentId, environmentKeyId],
        );
        const [before] = rows;
        if (before === undefined) return false;
        if (before.revoked) return true;
        await transaction.query(
          "update environment_keys set revoked_at = clock_timestamp() where environment_key_id = $1",
          [environmentKeyId],
        );
        await insertAudit(transaction, audit);
        return true;
      }),
    async findByHash(secretHash) {
      const { rows } = await pool.query<IdentityRow>(
        `select ${IDENTITY} from environment_keys k join workspaces w using (workspace_id) where k.secret_hash = $1`,
        [Buffer.from(secretHash)],
      );
      return rows[0] && toIdentity(rows[0]);
    },
    async touch(environmentKeyId) {
      await pool.query(
        `update environment_keys set last_used_at = date_trunc('minute', now())
         where environment_key_id = $1 and (last_used_at is null or last_used_at < date_trunc('minute', now()))`,
        [environmentKeyId],
      );
    },
    async findWorkToken(tokenHash) {
      const { rows } = await pool.query<
        IdentityRow & { work_id: string; session_id: string; claim: number; lost: boolean }
      >(
        `select ${IDENTITY}, i.work_id, i.session_id, c.claim,
           i.state = 'stopped' or c.claim <= i.fenced_claim or coalesce(i.holder_claim <> c.claim, false) as lost
         from work_claims c join work_items i using (work_id) join environment_keys k using (environment_key_id)
           join workspaces w on w.workspace_id = k.workspace_id
         where c.token_hash = $1`,
        [Buffer.from(tokenHash)],
      );
      const row = rows[0];
      if (row === undefined) return undefined;
      const { work_id: workId, session_id: sessionId, claim, lost: isLost } = row;
      return { ...toIdentity(row), workId, sessionId, claim, isLost };
    },
  };
}

/** One at a time for an environment, so that two at once do not get past the limit. */
async function checkRoom(transaction: Transaction, environmentId: string): Promise<void> {
  await transaction.query("select from environments where environment_id = $1 for no key update", [
    environmentId,
  ]);
  const { rows } = await transaction.query<{ keys: number }>(
    `select count(*)::integer as keys from environment_keys where environment_id = $1 and revoked_at is null
       and (expires_at is null or expires_at > clock_timestamp())`,
    [environmentId],
  );
  if ((rows[0]?.keys ?? 0) < MAX_ENVIRONMENT_KEYS) return;
  throw new TendonError(
    "LIMIT_EXCEEDED",
    `the environment has all ${MAX_ENVIRONMENT_KEYS} keys that it may have; revoke one`,
    { limit: "environment_keys", most: String(MAX_ENVIRONMENT_KEYS) },
  );
}

function toIdentity(row: IdentityRow): EnvironmentKeyIdentity {
  return {
    environmentKeyId: row.environment_key_id,
    environmentId: row.environment_id,
    workspaceId: row.workspace_id,
    isRevoked: row.revoked,
    isExpired: row.expired,
  };
}

function toKey(row: Row): EnvironmentKey {
  return create(EnvironmentKeySchema, {
    id: row.environment_key_id,
    environmentId: row.environment_id,
    name: row.name,
    hint: row.hint,
    createdAt: timestampFromDate(row.created_at),
    ...timeField("expiresAt", row.expires_at),
    ...timeField("lastUsedAt", row.last_used_at),
  });
}

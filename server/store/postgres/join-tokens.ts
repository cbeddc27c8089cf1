import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { type JoinToken, JoinTokenSchema } from "../../../proto/gen/tendon/v1/admin_service_pb.js";
import type { JoinTokenStore } from "../join-tokens.ts";
import { insertAudit } from "./audit.ts";
import { listPage } from "./page.ts";
import type { Pool } from "./pool.ts";
import { timeField } from "./timestamps.ts";
import { inTransaction } from "./transaction.ts";

interface Row {
  join_token_id: string;
  workspace_id: string;
  pool: string;
  uses_left: number;
  created_at: Date;
  expires_at: Date;
  revoked_at: Date | null;
}

const COLUMNS = "join_token_id, workspace_id, pool, uses_left, created_at, expires_at, revoked_at";

export function createJoinTokenStore(pool: Pool): JoinTokenStore {
  return {
    create: (token, audit) =>
      inTransaction(pool, async (transaction) => {
        const { rows } = await transaction.query<Row>(
          `insert into join_tokens (join_token_id, workspace_id, pool, secret_hash, uses_left, expires_at)
           values ($1, $2, $3, $4, $5, now() + $6 * interval '1 millisecond') returning ${COLUMNS}`,
          [
            token.id,
            token.workspaceId,
            token.pool,
            Buffer.from(token.secretHash),
            token.uses,
            token.validForMs,
          ],
        );
        await insertAudit(transaction, audit);
        return toJoinToken(rows[0]!);
      }),
    list({ workspaceId, page }) {
      const values: unknown[] = [];
      const where: string[] = [];
      if (workspaceId !== undefined) where.push(`workspace_id = $${values.push(workspaceId)}`);
      const query = { columns: COLUMNS, from: "join_tokens", where, values, page };
      return listPage<Row, JoinToken>(pool, { ...query, at: "created_at", id: "join_token_id" }, toJoinToken);
    },
    revoke: (joinTokenId, workspaceId, audit) =>
      inTransaction(pool, async (transaction) => {
        const { rows } = await transaction.query<Row>(
          `select ${COLUMNS} from join_tokens where join_token_id = $1 and ($2::text is null or workspace_id = $2) for update`,
          [joinTokenId, workspaceId ?? null],
        );
        const [before] = rows;
        if (before === undefined) return undefined;
        if (before.revoked_at !== null) return toJoinToken(before);
        const changed = await transaction.query<Row>(
          `update join_tokens set revoked_at = now() where join_token_id = $1 returning ${COLUMNS}`,
          [joinTokenId],
        );
        await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id });
        return toJoinToken(changed.rows[0]!);
      }),
  };
}

function toJoinToken(row: Row): JoinToken {
  return create(JoinTokenSchema, {
    id: row.join_token_id,
    workspaceId: row.workspace_id,
    pool: row.pool,
    usesLeft: row.uses_left,
    createdAt: timestampFromDate(row.created_at),
    expiresAt: timestampFromDate(row.expires_at),
    ...timeField("revokedAt", row.revoked_at),
  });
}

import type { IdentityStore } from "../identities.ts";
import { insertAudit } from "./audit.ts";
import type { Pool } from "./pool.ts";
import { inTransaction } from "./transaction.ts";

interface Row {
  workspace_id: string;
  pool: string;
  public_key: Buffer;
  revoked: boolean;
}

export function createIdentityStore(pool: Pool): IdentityStore {
  return {
    async findHandAgent(handAgentId) {
      const { rows } = await pool.query<Row>(
        `select workspace_id, a.pool, public_key, a.revoked_at is not null or w.archived_at is not null as revoked
         from hand_agents a join workspaces w using (workspace_id) where hand_agent_id = $1`,
        [handAgentId],
      );
      const [row] = rows;
      if (row === undefined) return undefined;
      return {
        handAgentId,
        workspaceId: row.workspace_id,
        pool: row.pool,
        publicKey: row.public_key,
        revoked: row.revoked,
      };
    },
    revokeHandAgent: (handAgentId, workspaceId, audit) =>
      inTransaction(pool, async (transaction) => {
        const { rows } = await transaction.query<{ workspace_id: string; revoked_at: Date | null }>(
          `select workspace_id, revoked_at from hand_agents
           where hand_agent_id = $1 and ($2::text is null or workspace_id = $2) for update`,
          [handAgentId, workspaceId ?? null],
        );
        const [before] = rows;
        if (before === undefined) return false;
        if (before.revoked_at !== null) return true;
        await transaction.query("update hand_agents set revoked_at = now() where hand_agent_id = $1", [
          handAgentId,
        ]);
        await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id });
        return true;
      }),
  };
}

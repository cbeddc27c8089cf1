/** Calls of MCP servers in Postgres. Every transaction locks the session's row first. */
import { notFound, TendonError } from "../../../kit/errors.ts";
import type { BegunCall, McpCallStore } from "../mcp-calls.ts";
import { appendToLog } from "./hand-log.ts";
import type { Pool } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

export function createMcpCallStore(pool: Pool): McpCallStore {
  return {
    async session(sessionId) {
      const { rows } = await pool.query<{
        workspace_id: string;
        lease_epoch: number;
        archived: boolean;
        agent: string;
      }>(
        `select s.workspace_id, s.lease_epoch, s.agent, (s.archived_at is not null or r.archived_at is not null) as archived
         from sessions s join sessions r on r.session_id = coalesce(s.root_session_id, s.session_id)
         where s.session_id = $1`,
        [sessionId],
      );
      const row = rows[0];
      if (row === undefined) return undefined;
      const { workspace_id: workspaceId, lease_epoch, archived: isArchived, agent } = row;
      return { workspaceId, epoch: BigInt(lease_epoch), isArchived, agent };
    },
    begin: (request) => inTransaction(pool, (transaction) => begin(transaction, request)),
    finish: (request) => inTransaction(pool, (transaction) => finish(transaction, request)),
  };
}

async function begin(
  transaction: Transaction,
  { sessionId, toolUseId, epoch, workspaceId, check }: Parameters<McpCallStore["begin"]>[0],
): Promise<BegunCall> {
  const session = await lock(transaction, sessionId, workspaceId);
  if (session === undefined) throw notFound("session", sessionId);
  if (BigInt(session.lease_epoch) !== epoch) {
    throw new TendonError("LEASE_FENCED", "a newer brain holds the session", {
      epoch: String(session.lease_epoch),
    });
  }
  if (session.archived)
    throw new TendonError("SESSION_ARCHIVED", "the session is archived", { id: sessionId });
  const { rows } = await transaction.query<{
    type: string;
    payload: string;
    answer: string | null;
    begun: boolean;
    result: string | null;
  }>(
    `select e.type, e.payload, c.session_id is not null as begun, c.result,
       (select payload from events where session_id = $1 and answers = $2) as answer
     from events e left join mcp_calls c on c.session_id = $1 and c.tool_use_id = $2
     where e.session_id = $1 and e.event_id = $2`,
    [sessionId, toolUseId],
  );
  const row = rows[0];
  if (row === undefined) throw notFound("event", toolUseId);
  check(row);
  if (row.result !== null) return { kind: "finished", result: row.result };
  if (row.answer !== null) return { kind: "answered", payload: row.answer };
  if (row.begun) return { kind: "unknown" };
  await transaction.query("insert into mcp_calls (session_id, tool_use_id, epoch) values ($1, $2, $3)", [
    sessionId,
    toolUseId,
    String(epoch),
  ]);
  return { kind: "begun" };
}

async function finish(
  transaction: Transaction,
  { sessionId, toolUseId, workspaceId, result, event }: Parameters<McpCallStore["finish"]>[0],
): ReturnType<McpCallStore["finish"]> {
  // An archived session's call ends like any other: what happened has happened.
  if ((await lock(transaction, sessionId, workspaceId)) === undefined) return undefined;
  const { rowCount } = await transaction.query(
    `update mcp_calls set result = $3, finished_at = clock_timestamp()
     where session_id = $1 and tool_use_id = $2 and result is null`,
    [sessionId, toolUseId, result],
  );
  if (rowCount === 0) {
    const { rows } = await transaction.query<{ result: string }>(
      "select result from mcp_calls where session_id = $1 and tool_use_id = $2",
      [sessionId, toolUseId],
    );
    return rows[0] && { result: rows[0].result, advance: undefined };
  }
  // An answer that came by other means stands in the log; the result is kept here all the same.
  const { advance } = await appendToLog(transaction, sessionId, event);
  return { result, advance };
}

async function lock(transaction: Transaction, sessionId: string, workspaceId: string | undefined) {
  const { rows } = await transaction.query<{ lease_epoch: number; archived: boolean }>(
    `select lease_epoch, archived_at is not null as archived from sessions
     where session_id = $1 and ($2::text is null or workspace_id = $2) for no key update`,
    [sessionId, workspaceId ?? null],
  );
  return rows[0];
}

/** Calls of MCP servers and of web tools in Postgres. Every transaction locks the session's row first. */
import { notFound, TendonError } from "../../../kit/errors.ts";
import type { BegunCall, McpCallStore, McpSession } from "../mcp-calls.ts";
import { insertAudit } from "./audit.ts";
import { openCredential } from "./credential-uses.ts";
import { appendToLog } from "./hand-log.ts";
import type { Pool } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

export function createMcpCallStore(pool: Pool): McpCallStore {
  return {
    async session(sessionId) {
      const { rows } = await pool.query<SessionRow>(`${SESSION_SQL} where s.session_id = $1`, [sessionId]);
      return rows[0] && toSession(rows[0]);
    },
    async agentsAbove(sessionId) {
      const { rows } = await pool.query<{ agent: string }>(AGENTS_ABOVE_SQL, [sessionId]);
      return rows.map(({ agent }) => agent);
    },
    begin: (request) => inTransaction(pool, (transaction) => begin(transaction, request)),
    finish: (request) => inTransaction(pool, (transaction) => finish(transaction, request)),
  };
}

interface SessionRow {
  workspace_id: string;
  lease_epoch: number;
  archived: boolean;
  agent: string;
  environment: string | null;
}

/** The environment only where it matters: most name no such servers. */
const SESSION_SQL = `select s.workspace_id, s.lease_epoch, s.agent, (s.archived_at is not null or r.archived_at is not null) as archived,
    case when strpos(e.spec, '"mcpTunnelHosts"') > 0 then e.spec end as environment
  from sessions s join sessions r on r.session_id = coalesce(s.root_session_id, s.session_id)
    left join environments e on e.environment_id = s.environment_id`;

/** Threads are nested eight deep at most. */
const AGENTS_ABOVE_SQL = `with recursive above as (
    select p.session_id, p.parent_session_id, p.agent, 1 as depth
      from sessions s join sessions p on p.session_id = s.parent_session_id where s.session_id = $1
    union all
    select p.session_id, p.parent_session_id, p.agent, depth + 1
      from above a join sessions p on p.session_id = a.parent_session_id where depth < 16)
  select agent from above order by depth`;

function toSession({
  workspace_id: workspaceId,
  lease_epoch,
  archived,
  agent,
  environment,
}: SessionRow): McpSession {
  return {
    workspaceId,
    epoch: BigInt(lease_epoch),
    isArchived: archived,
    agent,
    environment: environment ?? undefined,
  };
}

async function begin(
  transaction: Transaction,
  { sessionId, toolUseId, epoch, workspaceId, check, needs = RECORD_ALONE }: Beginning,
): Promise<BegunCall> {
  const { rows: sessions } = await transaction.query<SessionRow>(
    `${SESSION_SQL} where s.session_id = $1 and ($2::text is null or s.workspace_id = $2) for no key update of s`,
    [sessionId, workspaceId ?? null],
  );
  const session = sessions[0] && toSession(sessions[0]);
  if (session === undefined) throw notFound("session", sessionId);
  if (session.isArchived)
    throw new TendonError("SESSION_ARCHIVED", "the session is archived", { id: sessionId });
  if (session.epoch !== epoch) {
    throw new TendonError("LEASE_FENCED", "a newer brain holds the session", {
      epoch: String(session.epoch),
    });
  }
  const needed = needs(session);
  if (needed.kind === "skip") return { kind: "skipped" };
  const row = await findToolUse(transaction, sessionId, toolUseId);
  if (row === undefined) throw notFound("event", toolUseId);
  check(row);
  if (row.result !== null) return { kind: "finished", result: row.result };
  if (row.answer !== null) return { kind: "answered", payload: row.answer };
  if (!row.begun) {
    await transaction.query("insert into mcp_calls (session_id, tool_use_id, epoch) values ($1, $2, $3)", [
      sessionId,
      toolUseId,
      String(epoch),
    ]);
  }
  const credential = needed.credential && (await openCredential(transaction, needed.credential));
  return { kind: row.begun ? "unknown" : "begun", credential };
}

type Beginning = Parameters<McpCallStore["begin"]>[0];

const RECORD_ALONE = () => ({ kind: "begin" as const, credential: undefined });

interface ToolUseRow {
  type: string;
  payload: string;
  answer: string | null;
  begun: boolean;
  result: string | null;
}

/** After the session's row is locked, in a statement of its own: it must see what the holder before has written. */
async function findToolUse(
  transaction: Transaction,
  sessionId: string,
  toolUseId: string,
): Promise<ToolUseRow | undefined> {
  const { rows } = await transaction.query<ToolUseRow>(
    `select e.type, e.payload, c.session_id is not null as begun, c.result,
       (select payload from events where session_id = $1 and answers = $2) as answer
     from events e left join mcp_calls c on c.session_id = $1 and c.tool_use_id = $2
     where e.session_id = $1 and e.event_id = $2`,
    [sessionId, toolUseId],
  );
  return rows[0];
}

async function finish(
  transaction: Transaction,
  { sessionId, toolUseId, workspaceId, result, event, audit }: Parameters<McpCallStore["finish"]>[0],
): ReturnType<McpCallStore["finish"]> {
  // An archived session's call ends like any other: what happened has happened.
  const owner = await lock(transaction, sessionId, workspaceId);
  if (owner === undefined) return undefined;
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
  if (audit !== undefined) await insertAudit(transaction, { ...audit, workspaceId: owner });
  // An answer that came by other means stands in the log; the result is kept here all the same.
  const { advance } = await appendToLog(transaction, sessionId, event);
  return { result, advance };
}

/** Gives the session's workspace. */
async function lock(
  transaction: Transaction,
  sessionId: string,
  workspaceId: string | undefined,
): Promise<string | undefined> {
  const { rows } = await transaction.query<{ workspace_id: string }>(
    `select workspace_id from sessions where session_id = $1 and ($2::text is null or workspace_id = $2) for no key update`,
    [sessionId, workspaceId ?? null],
  );
  return rows[0]?.workspace_id;
}

/** What a workspace has used: asked for by people, so it is summed when it is asked for and costs appends nothing. */
import type { WorkspaceUsage } from "../workspaces.ts";
import type { Queryable } from "./pool.ts";

/** In the order of `erased_usage` (migration 8). */
const COUNTS = [
  "input_tokens",
  "output_tokens",
  "cache_read_input_tokens",
  "cache_creation_input_tokens",
  "model_requests",
  "active_ms",
  "list_cost_nano_usd",
  "unpriced_requests",
] as const;

/** The part of a running session that is not yet in its row. */
const RUNNING_MS = `coalesce(sum(greatest(0, floor(extract(epoch from clock_timestamp() - s.running_since) * 1000)::bigint)), 0)`;

type Row = Record<(typeof COUNTS)[number] | "sessions", string>;

export async function workspaceUsage(
  db: Queryable,
  workspaceId: string,
): Promise<WorkspaceUsage | undefined> {
  const sums = COUNTS.map((count, index) => {
    const running = count === "active_ms" ? ` + ${RUNNING_MS}` : "";
    return `(coalesce(sum(s.${count}), 0)${running} + w.erased_usage[${index + 1}])::text as ${count}`;
  });
  const { rows } = await db.query<Row>(
    `select (count(s.session_id) - count(s.root_session_id))::text as sessions, ${sums.join(", ")}
     from workspaces w left join sessions s using (workspace_id) where w.workspace_id = $1 group by w.workspace_id`,
    [workspaceId],
  );
  const row = rows[0];
  return (
    row && {
      sessions: Number(row.sessions),
      inputTokens: Number(row.input_tokens),
      outputTokens: Number(row.output_tokens),
      cacheReadInputTokens: Number(row.cache_read_input_tokens),
      cacheCreationInputTokens: Number(row.cache_creation_input_tokens),
      modelRequests: Number(row.model_requests),
      activeMs: Number(row.active_ms),
      listCostNanoUsd: Number(row.list_cost_nano_usd),
      unpricedRequests: Number(row.unpriced_requests),
    }
  );
}

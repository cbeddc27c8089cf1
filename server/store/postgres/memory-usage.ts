/** Bytes of memories' texts, by store and by workspace. */
import { TendonError } from "../../../kit/errors.ts";
import type { Transaction } from "./transaction.ts";

/** LIMIT_EXCEEDED when there is no room for more. The row's lock holds until the end of the transaction. */
export async function addMemoryBytes(
  transaction: Transaction,
  workspaceId: string,
  bytes: number,
): Promise<void> {
  if (bytes === 0) return;
  const { rows } = await transaction.query<{ used: number; most: number }>(
    `insert into memory_usage as u (workspace_id, bytes) values ($1, greatest($2::bigint, 0))
       on conflict (workspace_id) do update set bytes = greatest(u.bytes + $2::bigint, 0)
       returning bytes as used,
         (select coalesce((limits::json ->> 'memoryBytes')::bigint, 0) from workspaces where workspace_id = $1) as most`,
    [workspaceId, bytes],
  );
  const { used, most } = rows[0]!;
  if (bytes < 0 || most === 0 || used <= most) return;
  throw new TendonError(
    "LIMIT_EXCEEDED",
    `the workspace may keep ${most} bytes of memories with their versions, and has ${used - bytes}; there is no room for ${bytes} more`,
    { limit: "memory_bytes", limit_bytes: String(most), used_bytes: String(used - bytes) },
  );
}

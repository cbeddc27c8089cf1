/** The log of a copy while it is being written: nobody's yet, and hashed or not for good. */
import { type ChainOrigin, originHash } from "../../../kit/chain/event-hash.ts";
import { TendonError } from "../../../kit/errors.ts";
import { eraseLog } from "./erase-log.ts";
import type { Pool } from "./pool.ts";
import type { Transaction } from "./transaction.ts";

/** Whether the copy is hashed is decided here, once: it is from its first event on, or not at all. */
export async function beginLog(
  pool: Pool,
  sessionId: string,
  workspaceId: string,
  origin: ChainOrigin,
): Promise<boolean> {
  const { rows } = await pool.query<{ hashed: boolean }>(
    `insert into unfinished_logs (session_id, chain_hash, chain_origin)
       select $1, case when tamper_evident then $3::bytea end, case when tamper_evident then $4 else '' end
         from (values (1)) one left join workspaces on workspace_id = $2
       returning chain_hash is not null as hashed`,
    [sessionId, workspaceId, Buffer.from(originHash(sessionId, origin), "hex"), JSON.stringify(origin)],
  );
  return rows[0]!.hashed;
}

/**
 * In every transaction that writes: two never write at once, and nobody writes what is being erased. Gives the hash of the
 * newest event; null when the copy is not hashed.
 */
export async function touchLog(transaction: Transaction, sessionId: string): Promise<Buffer | null> {
  const { rows } = await transaction.query<{ chain_hash: Buffer | null }>(
    `update unfinished_logs set touched_at = clock_timestamp() where session_id = $1 and not erasing returning chain_hash`,
    [sessionId],
  );
  if (!rows[0]) throw new TendonError("UNAVAILABLE", "the copy took too long; start again");
  return rows[0].chain_hash;
}

/** Nothing once the log is a session's: then it is not unfinished any more. */
export async function discardLog(pool: Pool, sessionId: string): Promise<void> {
  const { rowCount } = await pool.query(
    "update unfinished_logs set erasing = true, touched_at = clock_timestamp() where session_id = $1",
    [sessionId],
  );
  if (rowCount > 0) await eraseLog(pool, sessionId);
}

/** The newest event of the copy has this hash. */
export async function advanceChain(transaction: Transaction, sessionId: string, hash: Buffer): Promise<void> {
  await transaction.query("update unfinished_logs set chain_hash = $2 where session_id = $1", [
    sessionId,
    hash,
  ]);
}

/** The log is a session's from now on. */
export async function closeLog(transaction: Transaction, sessionId: string): Promise<void> {
  await touchLog(transaction, sessionId);
  await transaction.query("delete from unfinished_logs where session_id = $1", [sessionId]);
}

/** Of the copy that becomes the session $1. */
export const CHAIN_OF_COPY = `(select u.chain_hash from unfinished_logs u where u.session_id = $1),
  coalesce((select u.chain_origin from unfinished_logs u where u.session_id = $1), '')`;

import { TendonError } from "../../../kit/errors.ts";
import type { RequestIdClaim, RequestIdStore } from "../request-ids.ts";
import type { Pool, Queryable } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

const PRUNE_LIMIT = 10_000;
const NO_CONTENT = new Uint8Array();

export function createRequestIdStore(pool: Pool): RequestIdStore {
  return {
    claimOnce: (claim) =>
      inTransaction(pool, (transaction) =>
        claimRequestId(transaction, { ...claim, contentHash: NO_CONTENT }),
      ),
    async madeBy({ workspaceId, scope, requestId, contentHash }) {
      if (requestId === "") return undefined;
      const { rows } = await pool.query<{ subject_id: string }>(
        `select subject_id from request_ids
           where workspace_id = $1 and scope = $2 and request_id = $3 and content_hash = $4`,
        [workspaceId, scope, requestId, Buffer.from(contentHash)],
      );
      return rows[0]?.subject_id;
    },
    async prune(olderThanMs) {
      const { rowCount } = await pool.query(
        `delete from request_ids where (workspace_id, scope, request_id) in (
           select workspace_id, scope, request_id from request_ids
           where created_at < now() - $1 * interval '1 millisecond' order by created_at limit ${PRUNE_LIMIT})`,
        [olderThanMs],
      );
      return rowCount;
    },
  };
}

/** Whether something was made by a request of this id, of whatever content. */
export async function wasAsked(
  db: Queryable,
  asked: { readonly workspaceId: string; readonly scope: string; readonly requestId: string },
): Promise<boolean> {
  if (asked.requestId === "") return false;
  const { rowCount } = await db.query(
    "select 1 from request_ids where workspace_id = $1 and scope = $2 and request_id = $3",
    [asked.workspaceId, asked.scope, asked.requestId],
  );
  return rowCount > 0;
}

/**
 * In the transaction that creates `subjectId`: undefined when the creation goes on, else the id of what the same request
 * has made before. Waits for another transaction that has the same request. Throws REQUEST_ID_REUSED when the content
 * differs. `scope` tells kinds of creation apart, such as "agent".
 */
export async function claimRequestId(
  transaction: Transaction,
  claim: RequestIdClaim & { workspaceId: string; scope: string; subjectId: string },
): Promise<string | undefined> {
  const { workspaceId, scope, requestId, contentHash, subjectId } = claim;
  if (requestId === "") return undefined;
  const key = [workspaceId, scope, requestId];
  const inserted = await transaction.query(
    `insert into request_ids (workspace_id, scope, request_id, content_hash, subject_id) values ($1, $2, $3, $4, $5)
     on conflict do nothing`,
    [...key, Buffer.from(contentHash), subjectId],
  );
  if (inserted.rowCount === 1) return undefined;
  const { rows } = await transaction.query<{ content_hash: Buffer; subject_id: string }>(
    "select content_hash, subject_id from request_ids where workspace_id = $1 and scope = $2 and request_id = $3",
    key,
  );
  const [first] = rows;
  if (first === undefined)
    throw new TendonError("UNAVAILABLE", "the request id was just forgotten; try again");
  if (!first.content_hash.equals(contentHash)) {
    throw new TendonError(
      "REQUEST_ID_REUSED",
      "request_id: was used before with other content; use a new one",
      { field: "request_id", request_id: requestId },
    );
  }
  return first.subject_id;
}

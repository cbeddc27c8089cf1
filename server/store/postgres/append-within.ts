/** Appends as part of another noun's transaction. */
import type { Appended, AppendRequest } from "../events.ts";
import type { LogAdvance } from "../session-append.ts";
import { appendBatch, appendItem } from "./append-batch.ts";
import type { Transaction } from "./transaction.ts";

/**
 * Appends in the caller's transaction, under the same rules and with the same errors as `EventStore.append`. Waits for
 * the session's row, which stays locked until the transaction ends: append last, and to several sessions in the order of
 * their ids. The caller announces `advance` after the commit (`SessionLog.announce`).
 */
export async function appendWithin(
  transaction: Transaction,
  request: AppendRequest,
): Promise<Appended & { advance: LogAdvance }> {
  const [verdict] = await appendBatch(transaction, [appendItem(request)], true);
  if (verdict?.kind === "refused") throw verdict.error;
  if (verdict?.kind !== "done") throw new Error("an append that waits for its session found it locked");
  const { appended } = verdict;
  return {
    ...appended,
    advance: {
      sessionId: request.sessionId,
      head: BigInt(appended.head),
      hasWork: appended.hasWork,
      ...(appended.checkpointDue && { checkpointDue: true }),
    },
  };
}

/** A call's two transactions as one statement each, for the usual case. The decisions stand in migration 3. */
import { createHash } from "node:crypto";
import { newId } from "../../../kit/ids.ts";
import { factsOf } from "../event-facts.ts";
import type { Concluded, ExecutionRecord, ExecutionStore, KnownCall } from "../executions.ts";
import { isConflict } from "./failure.ts";
import type { Pool, QueryResult } from "./pool.ts";

/** Inputs are compared as text inside the database up to this length; longer ones take the longer way. */
const MAX_INPUT_CHARS = 64 * 1024;

export function hashOfInput(input: string): Buffer {
  return createHash("sha256").update(input).digest();
}

/** Undefined when others made it fail, by a deadlock: transactions of the longer way are tried again. */
async function unlessConflict<Row>(running: Promise<QueryResult<Row>>): Promise<Row | undefined> {
  try {
    return (await running).rows[0];
  } catch (error) {
    if (isConflict(error)) return undefined;
    throw error;
  }
}

interface BoundRow {
  owner_number: number | null;
  notice: string | null;
  bound_at: Date | null;
}

/** Undefined when anything speaks against it; then nothing has changed. */
export async function bindKnown(pool: Pool, request: KnownCall): Promise<ExecutionRecord | undefined> {
  const { call, handId, handAgentId, journalId, lease } = request;
  if (call.input.length > MAX_INPUT_CHARS) return undefined;
  const running = pool.query<BoundRow>(
    `select owner_number, notice, bound_at
     from bind_call($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`,
    [
      call.executionKey,
      call.sessionId,
      call.executionId,
      call.slot,
      call.name,
      call.input,
      hashOfInput(call.input),
      call.timeoutMs,
      JSON.stringify(call.name),
      JSON.stringify(call.slot),
      call.workspaceId,
      lease.leaseId,
      String(lease.epoch),
      handId,
      handAgentId,
      journalId,
    ],
  );
  const row = await unlessConflict(running);
  if (!row || row.owner_number === null || row.notice === null || row.bound_at === null) return undefined;
  const { owner_number: ownerNumber, notice, bound_at: boundAt } = row;
  const { executionKey, workspaceId, sessionId, executionId, name, input, timeoutMs, slot } = call;
  return {
    ...{ executionKey, workspaceId, sessionId, executionId, name, input, timeoutMs, slot },
    ...{ handId, handAgentId, journalId, ownerNumber, boundAt, notice },
    answersToolUse: true,
    stopReason: undefined,
    result: undefined,
  };
}

/** Undefined when it answers no tool use, or anything speaks against it; then nothing has changed. */
export async function finishAtOnce(
  pool: Pool,
  { execution, result, event }: Parameters<ExecutionStore["finish"]>[0],
): Promise<Concluded | undefined> {
  const { executionKey, executionId, sessionId, answersToolUse } = execution;
  if (!answersToolUse || sessionId === undefined) return undefined;
  const facts = factsOf(event, true);
  // finish_call appends an event that answers this call, is work, and changes nothing else of its session.
  const fits = facts.answers === executionId && facts.isWork && !facts.fold && facts.consumed.length === 0;
  if (!fits) return undefined;
  const id = newId("event");
  const running = pool.query<{ position: number | null; at: Date | null }>(
    "select event_position as position, append_time as at from finish_call($1, $2, $3, $4, $5, $6, $7)",
    [executionKey, sessionId, result, id, event.type, event.payload, executionId],
  );
  const row = await unlessConflict(running);
  if (!row || row.position === null || row.at === null) return undefined;
  const { position, at: createdAt } = row;
  const added = [{ id, position, ...event, threadId: "", createdAt, internal: undefined }];
  return { kind: "stored", result, advance: { sessionId, head: BigInt(position), hasWork: true, added } };
}

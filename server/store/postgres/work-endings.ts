/** How items end, and how a holder loses one (W3). Session first, then item, as everybody locks them. */
import type { CallEnding, WorkEnded, WorkStore } from "../work.ts";
import type { Pool } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";
import { lockWork, sessionOfWork, toWork, WORK_COLUMNS, type WorkRow, writeWork } from "./work-rows.ts";
import { answer, ensureWork, openWorkerCalls } from "./worker-calls.ts";

export function workEndings(pool: Pool): Pick<WorkStore, "stop" | "lapsed" | "lapse"> {
  return {
    stop: (name, decide) => inTransaction(pool, (transaction) => stop(transaction, name, decide)),
    async lapsed({ upForMs, graceMs, limit }) {
      const { rows } = await pool.query<{ work_id: string }>(
        `select work_id from work_items where state in ('starting', 'active', 'stopping')
           and lease_expires_at <= clock_timestamp()
           and ($1::bigint >= $2::bigint or lease_expires_at > clock_timestamp() - $1::bigint * interval '1 millisecond')
         order by lease_expires_at limit $3`,
        [Math.floor(upForMs), graceMs, limit],
      );
      return rows.map((row) => row.work_id);
    },
    lapse: (workId, ending) => inTransaction(pool, (transaction) => lapse(transaction, workId, ending)),
  };
}

interface SessionRow {
  status: string;
  archived: boolean;
}

async function lockSessionRow(transaction: Transaction, sessionId: string): Promise<SessionRow | undefined> {
  const { rows } = await transaction.query<SessionRow>(
    `select status, archived_at is not null as archived from sessions where session_id = $1 for no key update`,
    [sessionId],
  );
  return rows[0];
}

const STOPPED = `state = 'stopped', stop_requested_at = coalesce(stop_requested_at, clock_timestamp()),
  stopped_at = clock_timestamp(), lease_expires_at = null, fenced_claim = claim`;

async function stop(
  transaction: Transaction,
  name: Parameters<WorkStore["stop"]>[0],
  decide: Parameters<WorkStore["stop"]>[1],
): Promise<WorkEnded> {
  const sessionId = await sessionOfWork(transaction, name);
  const session = await lockSessionRow(transaction, sessionId);
  const work = await lockWork(transaction, name);
  const { kind, ending } = decide(work);
  if (kind === "stopping") {
    const set = "state = 'stopping', stop_requested_at = coalesce(stop_requested_at, clock_timestamp())";
    return {
      work: toWork(await writeWork(transaction, work.workId, set)),
      advance: undefined,
      isQueued: false,
    };
  }
  const row = await writeWork(transaction, work.workId, STOPPED);
  // An item that was never anybody's is stopped so that its calls end, too.
  const wasOffered = work.state === "queued";
  return settle(transaction, { row, session, ending, shownOnly: !wasOffered });
}

/** Calls that the item's worker may have begun are answered; the others wait in a new item. */
async function settle(
  transaction: Transaction,
  {
    row,
    session,
    ending,
    shownOnly,
  }: { row: WorkRow; session: SessionRow | undefined; ending: CallEnding; shownOnly: boolean },
): Promise<WorkEnded> {
  const { session_id: sessionId, workspace_id: workspaceId, environment_id: environmentId } = row;
  const isLive = session?.archived === false;
  const open = isLive ? await openWorkerCalls(transaction, sessionId) : [];
  await forgetShown(transaction, sessionId);
  const ended = open.filter(({ isShown }) => isShown || !shownOnly);
  const advance = await answer(transaction, sessionId, ended, ending);
  const isQueued = isLive && (await waitsForWorker(transaction, sessionId));
  if (isQueued) await ensureWork(transaction, { sessionId, workspaceId, environmentId });
  return { work: toWork(row), advance, isQueued };
}

/** Calls of the session, or of its threads, are offered and have no result (migration 27). */
async function waitsForWorker(transaction: Transaction, sessionId: string): Promise<boolean> {
  const { rows } = await transaction.query<{ waits: boolean }>("select waits_for_worker($1) as waits", [
    sessionId,
  ]);
  return rows[0]!.waits;
}

/** Nobody has these before them any more. */
async function forgetShown(transaction: Transaction, sessionId: string): Promise<void> {
  await transaction.query(
    "update worker_calls set shown_at = null where session_id = $1 and shown_at is not null",
    [sessionId],
  );
}

async function lapse(
  transaction: Transaction,
  workId: string,
  ending: CallEnding,
): Promise<WorkEnded | undefined> {
  const seen = await transaction.query<{ session_id: string }>(
    "select session_id from work_items where work_id = $1",
    [workId],
  );
  const sessionId = seen.rows[0]?.session_id;
  if (sessionId === undefined) return undefined;
  const session = await lockSessionRow(transaction, sessionId);
  const { rows } = await transaction.query<WorkRow>(
    `select ${WORK_COLUMNS} from work_items where work_id = $1 and state in ('starting', 'active', 'stopping')
       and lease_expires_at <= clock_timestamp() for update`,
    [workId],
  );
  const before = rows[0];
  if (before === undefined || session === undefined) return undefined;
  if (before.state === "stopping" || session.archived) {
    const row = await writeWork(transaction, workId, STOPPED);
    return settle(transaction, { row, session, ending, shownOnly: true });
  }
  const open = await openWorkerCalls(transaction, sessionId);
  await forgetShown(transaction, sessionId);
  // An item that was accepted and never held was shown to nobody: its calls wait for who is next.
  const begun = before.holder_claim === null ? [] : open;
  const advance = await answer(transaction, sessionId, begun, ending);
  // A turn that is over needs no worker; the next call makes an item of its own.
  const isNeeded =
    open.length > 0 || session.status === "running" || (await waitsForWorker(transaction, sessionId));
  const set = isNeeded
    ? `state = 'queued', queued_at = clock_timestamp(), fenced_claim = claim, holder_claim = null, delivered_at = null,
       acknowledged_at = null, started_at = null, latest_heartbeat_at = null, last_heartbeat = null,
       previous_heartbeat = null, lease_expires_at = null`
    : STOPPED;
  const row = await writeWork(transaction, workId, set);
  return { work: toWork(row), advance, isQueued: isNeeded };
}

/** The work queue in Postgres. Transactions lock the session's row first, then the item's. */
import { invalidField } from "../../../kit/errors.ts";
import type { LockedWork, WorkRecord, WorkStats, WorkStore } from "../work.ts";
import { listPage } from "./page.ts";
import type { Pool } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";
import { workEndings } from "./work-endings.ts";
import { lockWork, toLocked, toWork, WORK_COLUMNS, type WorkRow, writeWork } from "./work-rows.ts";
import { workerCalls } from "./worker-calls.ts";

/** Claims of one item that are remembered; a worker with an older one is told that its token is not known. */
const KEPT_CLAIMS = 32;
const MAX_METADATA_PAIRS = 16;
/** Workers count as polling for so long. */
const POLLING_MS = 30_000;

export function createWorkStore(pool: Pool): WorkStore {
  return {
    ...workerCalls(pool),
    ...workEndings(pool),
    poll: (request) => inTransaction(pool, (transaction) => poll(transaction, request)),
    async notePoller(environmentId, workerId) {
      await pool.query(
        `insert into work_pollers (environment_id, worker_id) values ($1, $2)
         on conflict (environment_id, worker_id) do update set polled_at = clock_timestamp()`,
        [environmentId, workerId],
      );
    },
    ack: (name, ttlMs, check) => inTransaction(pool, (transaction) => ack(transaction, name, ttlMs, check)),
    heartbeat: (name, decide) => inTransaction(pool, (transaction) => heartbeat(transaction, name, decide)),
    update: (name, metadata) => inTransaction(pool, (transaction) => update(transaction, name, metadata)),
    async find(workId) {
      const { rows } = await pool.query<WorkRow>(
        `select ${WORK_COLUMNS} from work_items where work_id = $1`,
        [workId],
      );
      return rows[0] && toWork(rows[0]);
    },
    list: (environmentId, page) =>
      listPage<WorkRow, WorkRecord>(
        pool,
        {
          columns: WORK_COLUMNS,
          from: "work_items",
          where: ["environment_id = $1"],
          values: [environmentId],
          at: "created_at",
          id: "work_id",
          page,
        },
        toWork,
      ),
    stats: (environmentId) => stats(pool, environmentId),
    prune: (request) => prune(pool, request),
  };
}

async function poll(
  transaction: Transaction,
  { environmentId, environmentKeyId, tokenHash, reclaimOlderThanMs }: Parameters<WorkStore["poll"]>[0],
): Promise<WorkRecord | undefined> {
  const { rows } = await transaction.query<WorkRow & { claim: number }>(
    `update work_items set claim = claim + 1, delivered_at = clock_timestamp() where work_id = (
       select work_id from work_items where environment_id = $1 and state = 'queued'
         and (delivered_at is null or delivered_at <= clock_timestamp() - $2::bigint * interval '1 millisecond')
       order by queued_at, work_id limit 1 for update skip locked
     ) returning ${WORK_COLUMNS}, claim`,
    [environmentId, reclaimOlderThanMs],
  );
  const row = rows[0];
  if (row === undefined) return undefined;
  await addClaim(transaction, row.work_id, row.claim, environmentKeyId, tokenHash);
  return toWork(row);
}

async function addClaim(
  transaction: Transaction,
  workId: string,
  claim: number,
  environmentKeyId: string,
  tokenHash: Uint8Array | undefined,
): Promise<void> {
  await transaction.query(
    "insert into work_claims (work_id, claim, environment_key_id, token_hash) values ($1, $2, $3, $4)",
    [workId, claim, environmentKeyId, tokenHash === undefined ? null : Buffer.from(tokenHash)],
  );
  await transaction.query("delete from work_claims where work_id = $1 and claim <= $2", [
    workId,
    claim - KEPT_CLAIMS,
  ]);
}

async function ack(
  transaction: Transaction,
  name: Parameters<WorkStore["ack"]>[0],
  ttlMs: number,
  check: Parameters<WorkStore["ack"]>[2],
): Promise<WorkRecord> {
  const work = await lockWork(transaction, name);
  if (!check(work)) return work;
  const { caller } = name;
  if (caller.kind === "key" && (work.callerClaim ?? 0) <= work.fencedClaim) {
    const { rows } = await transaction.query<{ claim: number }>(
      "update work_items set claim = claim + 1 where work_id = $1 returning claim",
      [work.workId],
    );
    await addClaim(transaction, work.workId, rows[0]!.claim, caller.environmentKeyId, undefined);
  }
  const row = await writeWork(
    transaction,
    work.workId,
    `state = 'starting', delivered_at = null, acknowledged_at = clock_timestamp(), ttl_ms = $2::bigint,
     lease_expires_at = clock_timestamp() + $2::bigint * interval '1 millisecond'`,
    [ttlMs],
  );
  return toWork(row);
}

/** Exact to the microsecond, in UTC: the value that a holder sends back. */
const NOW_TEXT = `to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`;

async function heartbeat(
  transaction: Transaction,
  name: Parameters<WorkStore["heartbeat"]>[0],
  decide: Parameters<WorkStore["heartbeat"]>[1],
): Promise<LockedWork> {
  const work = await lockWork(transaction, name);
  const beat = decide(work);
  if (beat === undefined) return work;
  const lease = `latest_heartbeat_at = clock_timestamp(), ttl_ms = $2::bigint,
    lease_expires_at = clock_timestamp() + $2::bigint * interval '1 millisecond'`;
  const row =
    beat.kind === "repeated"
      ? await writeWork(transaction, work.workId, lease, [beat.ttlMs])
      : await writeWork(
          transaction,
          work.workId,
          `${lease}, state = 'active', started_at = coalesce(started_at, clock_timestamp()), holder_claim = $3,
           previous_heartbeat = last_heartbeat, last_heartbeat = ${NOW_TEXT}`,
          [beat.ttlMs, beat.claim],
        );
  return toLocked(row, work.callerClaim);
}

async function update(
  transaction: Transaction,
  name: Parameters<WorkStore["update"]>[0],
  change: Readonly<Record<string, string>>,
): Promise<WorkRecord> {
  const work = await lockWork(transaction, name);
  const merged = new Map(Object.entries(work.metadata));
  for (const [key, value] of Object.entries(change)) {
    if (value === "") merged.delete(key);
    else merged.set(key, value);
  }
  if (merged.size > MAX_METADATA_PAIRS)
    throw invalidField("metadata", `the item would have ${merged.size} pairs, at most ${MAX_METADATA_PAIRS}`);
  const text = JSON.stringify(Object.fromEntries(merged));
  return toWork(await writeWork(transaction, work.workId, "metadata = $2", [text]));
}

async function stats(pool: Pool, environmentId: string): Promise<WorkStats> {
  const { rows } = await pool.query<{ depth: number; pending: number; oldest: Date | null; workers: number }>(
    `select count(*) filter (where delivered_at is null)::integer as depth,
       count(*) filter (where delivered_at is not null)::integer as pending, min(queued_at) as oldest,
       (select count(*)::integer from work_pollers where environment_id = $1
          and polled_at > clock_timestamp() - ${POLLING_MS} * interval '1 millisecond') as workers
     from work_items where environment_id = $1 and state = 'queued'`,
    [environmentId],
  );
  const { depth, pending, oldest, workers } = rows[0]!;
  return { depth, pending, oldestQueuedAt: oldest ?? undefined, workersPolling: workers };
}

async function prune(
  pool: Pool,
  { stoppedForMs, polledForMs, limit }: Parameters<WorkStore["prune"]>[0],
): Promise<void> {
  await pool.query(
    `delete from work_items where work_id in (select work_id from work_items where state = 'stopped'
       and stopped_at < clock_timestamp() - $1::bigint * interval '1 millisecond' order by stopped_at limit $2)`,
    [stoppedForMs, limit],
  );
  await pool.query(
    `delete from work_pollers where ctid = any (array(select ctid from work_pollers
       where polled_at < clock_timestamp() - $1::bigint * interval '1 millisecond' order by polled_at limit $2))`,
    [polledForMs, limit],
  );
  await pool.query(
    `delete from worker_calls where ctid = any (array(select c.ctid from worker_calls c
       join events e on e.session_id = c.session_id and e.answers = c.call_id limit $1))`,
    [limit],
  );
}

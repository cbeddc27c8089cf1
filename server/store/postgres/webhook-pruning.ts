/** How long events and their deliveries are kept, and how many. */
import type { Forgotten, WebhookOutboxStore } from "../webhooks.ts";
import type { Pool } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

const PRUNE_LIMIT = 5_000;
/** Workspaces that one look for those with too many events finds. */
const WORKSPACES_AT_ONCE = 20;

export function webhookPruning(pool: Pool): Pick<WebhookOutboxStore, "prune" | "trim"> {
  return { prune: (bounds) => prune(pool, bounds), trim: (perWorkspace) => trim(pool, perWorkspace) };
}

async function prune(
  pool: Pool,
  { olderThanMs, perEndpoint }: Parameters<WebhookOutboxStore["prune"]>[0],
): Promise<Forgotten> {
  await pool.query(
    `update webhook_endpoints e set state = 'disabled', disabled_reason = 'backlog_full', updated_at = clock_timestamp()
     where state = 'enabled' and (
       select count(*) from (
         select 1 from webhook_deliveries d where d.endpoint_id = e.endpoint_id and d.state = 'pending' limit $1 + 1) w) > $1`,
    [perEndpoint],
  );
  const old = await inTransaction(pool, (transaction) =>
    forget(
      transaction,
      `created_at < clock_timestamp() - $1 * interval '1 millisecond' order by created_at limit ${PRUNE_LIMIT}`,
      [olderThanMs],
    ),
  );
  const isMoreBeyond = await pruneBeyond(pool, perEndpoint);
  await inTransaction(pool, pruneLanes);
  return { dropped: old.dropped, mayBeMore: old.events === PRUNE_LIMIT || isMoreBeyond };
}

async function trim(pool: Pool, perWorkspace: number): Promise<Forgotten> {
  const { rows } = await pool.query<{ workspace_id: string; number: number }>(
    `select w.workspace_id, bound.number from (select distinct workspace_id from webhook_endpoints) w
       cross join lateral (
         select number from webhook_events where workspace_id = w.workspace_id order by number desc offset $1 limit 1
       ) bound limit ${WORKSPACES_AT_ONCE}`,
    [perWorkspace],
  );
  let dropped = 0;
  let isFull = rows.length === WORKSPACES_AT_ONCE;
  for (const { workspace_id: workspaceId, number } of rows) {
    const trimmed = await inTransaction(pool, (transaction) => trimOne(transaction, workspaceId, number));
    dropped += trimmed.dropped;
    isFull ||= trimmed.events === PRUNE_LIMIT;
  }
  return { dropped, mayBeMore: isFull };
}

interface Erased {
  readonly events: number;
  /** Of their deliveries, those that still waited. */
  readonly dropped: number;
}

/** As many as there are up to this number: first those of which nothing waits, whichever they are. */
async function trimOne(transaction: Transaction, workspaceId: string, number: number): Promise<Erased> {
  const { rows } = await transaction.query<{ beyond: number }>(
    `select count(*)::integer as beyond from (
       select from webhook_events where workspace_id = $1 and number <= $2 limit ${PRUNE_LIMIT}) e`,
    [workspaceId, number],
  );
  const beyond = rows[0]!.beyond;
  const ended = await forget(
    transaction,
    `workspace_id = $1 and is_routed and not exists (
       select from webhook_deliveries d where d.event_id = webhook_events.event_id and d.state = 'pending')
     order by number limit $2`,
    [workspaceId, beyond],
  );
  const waiting = await forget(transaction, "workspace_id = $1 order by number limit $2", [
    workspaceId,
    beyond - ended.events,
  ]);
  return { events: ended.events + waiting.events, dropped: ended.dropped + waiting.dropped };
}

/** Events by this condition, with their deliveries. Those that still waited are counted at their endpoints. */
async function forget(transaction: Transaction, which: string, values: readonly unknown[]): Promise<Erased> {
  const { rows: events } = await transaction.query<{ event_id: string; endpoint_ids: string[] | null }>(
    `select event_id, case when is_routed then null else endpoint_ids end as endpoint_ids from webhook_events
     where ${which} for update`,
    values,
  );
  if (events.length === 0) return { events: 0, dropped: 0 };
  const ids = events.map((event) => event.event_id);
  const { rows } = await transaction.query<{ endpoint_id: string; state: string }>(
    "delete from webhook_deliveries where event_id = any($1) returning endpoint_id, state",
    [ids],
  );
  const waited = rows.filter(({ state }) => state === "pending").map((row) => row.endpoint_id);
  const unsent = [...waited, ...events.flatMap((event) => event.endpoint_ids ?? [])];
  await transaction.query(
    `update webhook_endpoints e set dropped_deliveries = dropped_deliveries + gone.deliveries, last_dropped_at = clock_timestamp()
     from (select endpoint_id, count(*) as deliveries from unnest($1::text[]) as u(endpoint_id) group by 1) gone
     where e.endpoint_id = gone.endpoint_id`,
    [unsent],
  );
  await transaction.query("delete from webhook_events where event_id = any($1)", [ids]);
  return { events: ids.length, dropped: unsent.length };
}

/** What ended of endpoints that have too much of it; the oldest goes. */
async function pruneBeyond(pool: Pool, perEndpoint: number): Promise<boolean> {
  const { rowCount } = await pool.query(
    `delete from webhook_deliveries where delivery_id in (
       select old.delivery_id from webhook_endpoints e cross join lateral (
         select created_at from webhook_deliveries d where d.endpoint_id = e.endpoint_id
           order by created_at desc, delivery_id desc offset $1 limit 1
       ) bound cross join lateral (
         select delivery_id from webhook_deliveries d where d.endpoint_id = e.endpoint_id
           and d.created_at <= bound.created_at and d.state <> 'pending' limit ${PRUNE_LIMIT}
       ) old limit ${PRUNE_LIMIT})`,
    [perEndpoint],
  );
  return rowCount === PRUNE_LIMIT;
}

/** Locked first: what is added to a lane meanwhile is seen by the second statement, or comes after it. */
async function pruneLanes(transaction: Transaction): Promise<void> {
  const { rows } = await transaction.query<{ endpoint_id: string; lane: string }>(
    `select endpoint_id, lane from webhook_lanes l where due_at <= clock_timestamp() and not exists (
       select 1 from webhook_deliveries d where d.endpoint_id = l.endpoint_id and d.lane = l.lane and d.state = 'pending')
     limit ${PRUNE_LIMIT} for update skip locked`,
  );
  await transaction.query(
    `delete from webhook_lanes l using unnest($1::text[], $2::text[]) as u(endpoint_id, lane)
     where l.endpoint_id = u.endpoint_id and l.lane = u.lane and not exists (
       select 1 from webhook_deliveries d where d.endpoint_id = l.endpoint_id and d.lane = l.lane and d.state = 'pending')`,
    [rows.map((row) => row.endpoint_id), rows.map((row) => row.lane)],
  );
}

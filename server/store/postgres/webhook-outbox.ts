/** Sending: what was noted becomes deliveries, lanes are claimed, attempts are written down. */

import { newId } from "../../../kit/ids.ts";
import type { AttemptVerdict, ClaimedLane, WaitingDelivery, WebhookOutboxStore } from "../webhooks.ts";
import type { Pool } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";
import { webhookDeliveries } from "./webhook-deliveries.ts";
import { webhookPruning } from "./webhook-pruning.ts";

/** Two that make deliveries at once could mix up the order of a lane. */
const ROUTING = "webhook routing";
/** Endpoints that one look for due lanes considers. */
const ENDPOINTS_AT_ONCE = 200;
const MAX_ERROR_CHARS = 500;

export function createWebhookOutboxStore(pool: Pool): WebhookOutboxStore {
  return {
    ...webhookDeliveries(pool),
    ...webhookPruning(pool),
    async route(limit) {
      // Most of the time there is nothing, and this is all that it costs.
      const { rows } = await pool.query("select 1 from webhook_events where not is_routed limit 1");
      if (rows.length === 0) return 0;
      return inTransaction(pool, (transaction) => route(transaction, limit));
    },
    claim: (wanted) => claim(pool, wanted),
    oldest: (lane) => oldest(pool, lane),
    record: (attempt) => inTransaction(pool, (transaction) => record(transaction, attempt)),
    release: (lane, dueAfterMs) =>
      inTransaction(pool, async (transaction) => {
        if (!(await hold(transaction, lane, 0))) return;
        await leave(transaction, lane, dueAfterMs);
      }),
  };
}

async function route(transaction: Transaction, limit: number): Promise<number> {
  const { rows: locks } = await transaction.query<{ mine: boolean }>(
    "select pg_try_advisory_xact_lock(hashtextextended($1, 0)) as mine",
    [ROUTING],
  );
  if (locks[0]?.mine !== true) return 0;
  const { rows } = await transaction.query<{ events: number }>(
    `with batch as (
       select event_id, number, lane, endpoint_ids, created_at from webhook_events
         where not is_routed order by number limit $1
     ), made as (
       insert into webhook_deliveries (delivery_id, endpoint_id, event_id, number, lane, created_at)
         select 'whdlv_' || replace(gen_random_uuid()::text, '-', ''), u.endpoint_id, b.event_id, b.number, b.lane, b.created_at
           from batch b cross join lateral unnest(b.endpoint_ids) as u(endpoint_id)
             join webhook_endpoints e on e.endpoint_id = u.endpoint_id
         on conflict do nothing returning endpoint_id, lane
     ), waiting as (
       insert into webhook_lanes (endpoint_id, lane) select distinct endpoint_id, lane from made order by endpoint_id, lane
         on conflict (endpoint_id, lane) do update set lane = excluded.lane
     ), routed as (
       update webhook_events set is_routed = true where event_id in (select event_id from batch) returning 1
     ) select count(*)::integer as events from routed`,
    [limit],
  );
  return rows[0]?.events ?? 0;
}

/**
 * The endpoint's row is locked while its claims are counted, so that two replicas do not claim twice as many.
 *
 * `level` is how many places the workspace would have with this lane, `place` how many of the free ones would be gone. Both
 * grow together, so that from some lane on none is taken: where level > free - (place - 1).
 */
const CLAIM = `with due as (
    select e.endpoint_id, row_number() over (partition by e.workspace_id order by random()) as turn from webhook_endpoints e
      where e.state = 'enabled' and exists (
        select from webhook_lanes l where l.endpoint_id = e.endpoint_id and l.due_at <= clock_timestamp())
  ), ready as materialized (
    select e.endpoint_id, e.workspace_id from webhook_endpoints e
      where e.state = 'enabled'
        and e.endpoint_id in (select endpoint_id from due order by turn, random() limit ${ENDPOINTS_AT_ONCE})
      for no key update skip locked
  ), waiting as materialized (
    select r.workspace_id, r.endpoint_id, l.lane, l.due_at, claimed.lanes as claimed
      from ready r cross join lateral (
        select count(*) as lanes from webhook_lanes
          where endpoint_id = r.endpoint_id and claim_id is not null and due_at > clock_timestamp()
      ) claimed cross join lateral (
        select lane, due_at from webhook_lanes where endpoint_id = r.endpoint_id and due_at <= clock_timestamp()
          order by due_at limit greatest(0, $2 - claimed.lanes) for update skip locked
      ) l
  ), ranked as (
    select w.*, w.claimed + row_number() over (partition by endpoint_id order by due_at) as of_endpoint from waiting w
  ), levelled as (
    select r.workspace_id, r.endpoint_id, r.lane, r.due_at, coalesce(t.places, 0)
        + row_number() over (partition by r.workspace_id order by of_endpoint, due_at) as level
      from ranked r left join unnest($5::text[], $6::integer[]) as t(workspace_id, places) on t.workspace_id = r.workspace_id
  ), placed as (
    select *, row_number() over (order by level, due_at) as place from levelled
  )
  update webhook_lanes l set claim_id = $3, due_at = clock_timestamp() + $4 * interval '1 millisecond'
    from placed p where l.endpoint_id = p.endpoint_id and l.lane = p.lane and p.level + p.place <= $1 + 1
    returning p.workspace_id, l.endpoint_id, l.lane`;

async function claim(
  pool: Pool,
  { free, taken, perEndpoint, leaseMs }: Parameters<WebhookOutboxStore["claim"]>[0],
): Promise<ClaimedLane[]> {
  const claimId = newId("lease");
  const { rows } = await pool.query<{ workspace_id: string; endpoint_id: string; lane: string }>(CLAIM, [
    free,
    perEndpoint,
    claimId,
    leaseMs,
    [...taken.keys()],
    [...taken.values()],
  ]);
  return rows.map(({ workspace_id: workspaceId, endpoint_id: endpointId, lane }) => ({
    ...{ workspaceId, endpointId, lane, claimId },
  }));
}

async function oldest(pool: Pool, { endpointId, lane, claimId }: ClaimedLane) {
  const { rows } = await pool.query<{
    delivery_id: string;
    event_id: string;
    workspace_id: string;
    type: string;
    subject_id: string;
    more: string;
    created_at: Date;
    url: string;
    sealed_secrets: string[];
    tries: number;
    tried_for_ms: number | null;
    failing_ms: number | null;
  }>(
    `select d.delivery_id, v.event_id, v.workspace_id, v.type, v.subject_id, v.more, v.created_at, e.url, d.tries,
       (extract(epoch from clock_timestamp() - d.first_try_at) * 1000)::double precision as tried_for_ms,
       (extract(epoch from clock_timestamp() - e.failing_since) * 1000)::double precision as failing_ms,
       array(select sealed from webhook_secrets s where s.endpoint_id = e.endpoint_id
         and (s.ends_at is null or s.ends_at > clock_timestamp()) order by s.number desc) as sealed_secrets
     from webhook_lanes l
       join webhook_endpoints e on e.endpoint_id = l.endpoint_id and e.state = 'enabled'
       join webhook_deliveries d on d.endpoint_id = l.endpoint_id and d.lane = l.lane and d.state = 'pending'
       join webhook_events v on v.event_id = d.event_id
     where l.endpoint_id = $1 and l.lane = $2 and l.claim_id = $3
     order by d.number limit 1`,
    [endpointId, lane, claimId],
  );
  const row = rows[0];
  if (row === undefined) return undefined;
  return {
    deliveryId: row.delivery_id,
    eventId: row.event_id,
    workspaceId: row.workspace_id,
    type: row.type,
    subjectId: row.subject_id,
    more: row.more,
    happenedAt: row.created_at,
    url: row.url,
    sealedSecrets: row.sealed_secrets,
    tries: row.tries,
    triedForMs: row.tried_for_ms ?? undefined,
    endpointFailingMs: row.failing_ms ?? undefined,
  } satisfies WaitingDelivery;
}

/** The lane's row first: whoever adds to the lane waits for it, and is seen by what is asked afterwards. */
async function record(
  transaction: Transaction,
  { lane, deliveryId, verdict, leaseMs }: Parameters<WebhookOutboxStore["record"]>[0],
): Promise<boolean> {
  const isHeld = await hold(transaction, lane, leaseMs);
  if (!isHeld && verdict.kind !== "delivered") return false;
  await recordDelivery(transaction, deliveryId, verdict);
  await recordEndpoint(transaction, lane.endpointId, verdict);
  if (!isHeld) return false;
  if (verdict.kind === "failed") {
    await leave(transaction, lane, verdict.retryAfterMs);
    return false;
  }
  const { rows } = await transaction.query(
    `select 1 from webhook_deliveries where endpoint_id = $1 and lane = $2 and state = 'pending' limit 1`,
    [lane.endpointId, lane.lane],
  );
  if (rows.length > 0 && !("disable" in verdict && verdict.disable)) return true;
  await leave(transaction, lane, 0);
  return false;
}

/** Locks the lane while its claim is this one, and prolongs it. */
async function hold(
  transaction: Transaction,
  { endpointId, lane, claimId }: ClaimedLane,
  leaseMs: number,
): Promise<boolean> {
  const { rowCount } = await transaction.query(
    `update webhook_lanes set due_at = clock_timestamp() + $4 * interval '1 millisecond'
     where endpoint_id = $1 and lane = $2 and claim_id = $3`,
    [endpointId, lane, claimId, leaseMs],
  );
  return rowCount > 0;
}

/** Ends the claim of a lane that is held; one of which nothing waits is gone. */
async function leave(
  transaction: Transaction,
  { endpointId, lane }: ClaimedLane,
  dueAfterMs: number,
): Promise<void> {
  const { rowCount } = await transaction.query(
    `delete from webhook_lanes l where endpoint_id = $1 and lane = $2 and not exists (
       select 1 from webhook_deliveries d where d.endpoint_id = $1 and d.lane = $2 and d.state = 'pending')`,
    [endpointId, lane],
  );
  if (rowCount > 0) return;
  await transaction.query(
    `update webhook_lanes set claim_id = null, due_at = clock_timestamp() + $3 * interval '1 millisecond'
     where endpoint_id = $1 and lane = $2`,
    [endpointId, lane, dueAfterMs],
  );
}

async function recordDelivery(
  transaction: Transaction,
  deliveryId: string,
  verdict: AttemptVerdict,
): Promise<void> {
  const state = verdict.kind === "failed" ? "pending" : verdict.kind;
  const error = verdict.kind === "delivered" ? "" : verdict.error.slice(0, MAX_ERROR_CHARS);
  await transaction.query(
    `update webhook_deliveries set state = $2, attempts = attempts + 1, tries = tries + 1, last_status = $3, last_error = $4,
       last_attempt_at = clock_timestamp(), first_try_at = coalesce(first_try_at, clock_timestamp()),
       delivered_at = case when $2 = 'delivered' then clock_timestamp() end
     where delivery_id = $1 and state = 'pending'`,
    [deliveryId, state, verdict.status, error],
  );
}

/** Written only when it changes something: all deliveries of the endpoint share this row. */
async function recordEndpoint(
  transaction: Transaction,
  endpointId: string,
  verdict: AttemptVerdict,
): Promise<void> {
  if (verdict.kind === "delivered") {
    await transaction.query(
      "update webhook_endpoints set failing_since = null where endpoint_id = $1 and failing_since is not null",
      [endpointId],
    );
    return;
  }
  if (verdict.kind === "failed" && verdict.isOurs) return;
  await transaction.query(
    "update webhook_endpoints set failing_since = clock_timestamp() where endpoint_id = $1 and failing_since is null",
    [endpointId],
  );
  if (!verdict.disable) return;
  await transaction.query(
    `update webhook_endpoints set state = 'disabled', disabled_reason = $2, updated_at = clock_timestamp()
     where endpoint_id = $1 and state = 'enabled'`,
    [endpointId, verdict.disable],
  );
}

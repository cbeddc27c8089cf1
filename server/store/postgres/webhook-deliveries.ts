/** Deliveries as people see them: lists, replays, and how long they are kept. */
import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import {
  type WebhookDelivery,
  WebhookDeliverySchema,
  WebhookDeliveryState,
} from "../../../proto/gen/tendon/v1/webhook_service_pb.js";
import { MAX_REPLAYED, type WebhookOutboxStore } from "../webhooks.ts";
import { listPage } from "./page.ts";
import type { Pool } from "./pool.ts";
import { timeField } from "./timestamps.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

interface Row {
  delivery_id: string;
  endpoint_id: string;
  event_id: string;
  type: string;
  subject_id: string;
  state: string;
  attempts: number;
  last_status: number;
  last_error: string;
  created_at: Date;
  last_attempt_at: Date | null;
  next_attempt_at: Date | null;
  delivered_at: Date | null;
}

const PRUNE_LIMIT = 5_000;

const STATE_WORDS: Readonly<Record<string, WebhookDeliveryState>> = {
  pending: WebhookDeliveryState.PENDING,
  delivered: WebhookDeliveryState.DELIVERED,
  dead: WebhookDeliveryState.DEAD,
};

/** Of a delivery that waits: only the oldest of its lane is the next. */
const NEXT_ATTEMPT = `(select l.due_at from webhook_lanes l where l.endpoint_id = d.endpoint_id and l.lane = d.lane
    and l.claim_id is null and d.state = 'pending' and d.number = (
      select min(p.number) from webhook_deliveries p where p.endpoint_id = d.endpoint_id and p.lane = d.lane and p.state = 'pending'))`;

const COLUMNS = `d.delivery_id, d.endpoint_id, d.event_id, v.type, v.subject_id, d.state, d.attempts, d.last_status, d.last_error,
  d.created_at, d.last_attempt_at, d.delivered_at, ${NEXT_ATTEMPT} as next_attempt_at`;

export function webhookDeliveries(
  pool: Pool,
): Pick<WebhookOutboxStore, "list" | "replayOne" | "replaySince" | "prune"> {
  return {
    list: ({ endpointId, states, page }) =>
      listPage<Row, WebhookDelivery>(
        pool,
        {
          columns: COLUMNS,
          from: "webhook_deliveries d join webhook_events v using (event_id)",
          where: ["d.endpoint_id = $1", ...(states.length === 0 ? [] : ["d.state = any($2)"])],
          values: [endpointId, ...(states.length === 0 ? [] : [wordsOf(states)])],
          at: "d.created_at",
          id: "d.delivery_id",
          page,
        },
        toDelivery,
      ),
    replayOne: (endpointId, deliveryId) =>
      inTransaction(pool, async (transaction) => {
        const { rows } = await transaction.query<{ lane: string }>(
          "select lane from webhook_deliveries where endpoint_id = $1 and delivery_id = $2",
          [endpointId, deliveryId],
        );
        if (rows[0] === undefined) return undefined;
        const { rowCount } = await transaction.query(
          `update webhook_deliveries set ${AFRESH} where delivery_id = $1 and state <> 'pending'`,
          [deliveryId],
        );
        await makeDue(transaction, endpointId, [rows[0].lane]);
        return rowCount;
      }),
    replaySince: (endpointId, since, states) =>
      inTransaction(pool, async (transaction) => {
        const { rows } = await transaction.query<{ lane: string }>(
          `update webhook_deliveries set ${AFRESH} where state <> 'pending' and delivery_id in (
             select delivery_id from webhook_deliveries
               where endpoint_id = $1 and created_at >= $2 and state <> 'pending'
                 and (cardinality($3::text[]) = 0 or state = any($3))
               order by created_at, delivery_id limit ${MAX_REPLAYED}) returning lane`,
          [endpointId, since, wordsOf(states)],
        );
        await makeDue(transaction, endpointId, [...new Set(rows.map(({ lane }) => lane))].sort());
        return rows.length;
      }),
    prune: (bounds) => prune(pool, bounds),
  };
}

const AFRESH = "state = 'pending', tries = 0, first_try_at = null, delivered_at = null";

/** A lane that somebody has claimed is gone on with anyway. */
async function makeDue(transaction: Transaction, endpointId: string, lanes: string[]): Promise<void> {
  await transaction.query(
    `insert into webhook_lanes (endpoint_id, lane) select $1, unnest($2::text[])
     on conflict (endpoint_id, lane) do update
       set due_at = case when webhook_lanes.claim_id is null then clock_timestamp() else webhook_lanes.due_at end`,
    [endpointId, lanes],
  );
}

async function prune(
  pool: Pool,
  { olderThanMs, perEndpoint }: Parameters<WebhookOutboxStore["prune"]>[0],
): Promise<boolean> {
  await pool.query(
    `update webhook_endpoints e set state = 'disabled', disabled_reason = 'backlog_full', updated_at = clock_timestamp()
     where state = 'enabled' and (
       select count(*) from (
         select 1 from webhook_deliveries d where d.endpoint_id = e.endpoint_id and d.state = 'pending' limit $1 + 1) w) > $1`,
    [perEndpoint],
  );
  const { rowCount } = await pool.query(
    `delete from webhook_events where event_id in (
       select event_id from webhook_events where created_at < clock_timestamp() - $1 * interval '1 millisecond'
         order by created_at limit ${PRUNE_LIMIT})`,
    [olderThanMs],
  );
  let isMore = rowCount === PRUNE_LIMIT;
  isMore = (await pruneBeyond(pool, perEndpoint)) || isMore;
  await inTransaction(pool, pruneLanes);
  return isMore;
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

/** Of an endpoint that is gone, a batch at a time. What is left when that is cut short goes with its events. */
export async function eraseDeliveries(pool: Pool, endpointId: string): Promise<void> {
  const erase = () =>
    pool.query(
      `delete from webhook_deliveries where delivery_id in (
         select delivery_id from webhook_deliveries where endpoint_id = $1 limit ${PRUNE_LIMIT})`,
      [endpointId],
    );
  while ((await erase()).rowCount === PRUNE_LIMIT);
  await pool.query("delete from webhook_lanes where endpoint_id = $1", [endpointId]);
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

function wordsOf(states: readonly WebhookDeliveryState[]): string[] {
  return Object.keys(STATE_WORDS).filter((word) => states.includes(STATE_WORDS[word]!));
}

function toDelivery(row: Row): WebhookDelivery {
  return create(WebhookDeliverySchema, {
    id: row.delivery_id,
    endpointId: row.endpoint_id,
    eventId: row.event_id,
    eventType: row.type,
    subjectId: row.subject_id,
    state: STATE_WORDS[row.state] ?? WebhookDeliveryState.UNSPECIFIED,
    attempts: row.attempts,
    lastStatus: row.last_status,
    lastError: row.last_error,
    createdAt: timestampFromDate(row.created_at),
    ...timeField("lastAttemptAt", row.last_attempt_at),
    ...timeField("nextAttemptAt", row.next_attempt_at),
    ...timeField("deliveredAt", row.delivered_at),
  });
}

/** Deliveries as people see them: lists, and replays. */
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

const ERASE_LIMIT = 5_000;

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
): Pick<WebhookOutboxStore, "list" | "replayOne" | "replaySince"> {
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

/** Of an endpoint that is gone, a batch at a time. What is left when that is cut short goes with its events. */
export async function eraseDeliveries(pool: Pool, endpointId: string): Promise<void> {
  const erase = () =>
    pool.query(
      `delete from webhook_deliveries where delivery_id in (
         select delivery_id from webhook_deliveries where endpoint_id = $1 limit ${ERASE_LIMIT})`,
      [endpointId],
    );
  while ((await erase()).rowCount === ERASE_LIMIT);
  await pool.query("delete from webhook_lanes where endpoint_id = $1", [endpointId]);
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

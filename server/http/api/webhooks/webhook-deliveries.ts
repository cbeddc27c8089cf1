/** `/v1/webhook_endpoints/{webhook_endpoint_id}/deliveries`: what was told, and telling it again. */
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { invalidField } from "../../../../kit/errors.ts";
import {
  type WebhookDelivery,
  WebhookDeliveryState,
  WebhookService,
} from "../../../../proto/gen/tendon/v1/webhook_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { limitOf, pageOf, valuesOf } from "../list-query.ts";
import { timeFrom, timeJson } from "../time-json.ts";

const MOST = 1000;
const STATES: Readonly<Record<string, WebhookDeliveryState>> = {
  pending: WebhookDeliveryState.PENDING,
  delivered: WebhookDeliveryState.DELIVERED,
  dead: WebhookDeliveryState.DEAD,
};

const { method } = WebhookService;

export function webhookDeliveryRoutes(): ApiRoute[] {
  const endpoint = "/v1/webhook_endpoints/{webhook_endpoint_id}";
  return [
    route("GET", `${endpoint}/deliveries`, async ({ services, params, query }) => {
      const { deliveries, nextPageToken } = await services.call(method.listWebhookDeliveries, {
        endpointId: params.webhook_endpoint_id!,
        states: statesOf(valuesOf(query, "states"), "states"),
        pageSize: limitOf(query, MOST),
        pageToken: pageOf(query),
      });
      return { data: deliveries.map(deliveryJson), next_page: nextPageToken || null };
    }),
    route("POST", `${endpoint}/deliveries/{delivery_id}/replay`, async ({ services, params }) => {
      const { replayed } = await services.call(method.replayWebhookDeliveries, {
        endpointId: params.webhook_endpoint_id!,
        which: { case: "deliveryId", value: params.delivery_id! },
      });
      return { type: "webhook_replay", replayed };
    }),
    route("POST", `${endpoint}/replay`, replaySince),
  ];
}

async function replaySince({ services, params, body: { fields } }: ApiCall) {
  fields.only("since", "states");
  const { replayed } = await services.call(method.replayWebhookDeliveries, {
    endpointId: params.webhook_endpoint_id!,
    which: { case: "since", value: timestampFromDate(timeFrom(fields.requiredText("since"), "since")) },
    states: statesOf(fields.texts("states") ?? [], "states"),
  });
  return { type: "webhook_replay", replayed };
}

function statesOf(words: readonly string[], field: string): WebhookDeliveryState[] {
  return words.map((word) => {
    const state = Object.hasOwn(STATES, word) ? STATES[word] : undefined;
    if (state === undefined) throw invalidField(field, `must be among ${Object.keys(STATES).join(", ")}`);
    return state;
  });
}

function deliveryJson(delivery: WebhookDelivery) {
  const state = Object.keys(STATES).find((word) => STATES[word] === delivery.state);
  return {
    type: "webhook_delivery",
    id: delivery.id,
    webhook_endpoint_id: delivery.endpointId,
    event_id: delivery.eventId,
    event_type: delivery.eventType,
    subject_id: delivery.subjectId,
    state: state ?? "pending",
    attempts: delivery.attempts,
    last_status: delivery.lastStatus || null,
    last_error: delivery.lastError || null,
    created_at: timeJson(delivery.createdAt),
    last_attempt_at: timeJson(delivery.lastAttemptAt),
    next_attempt_at: timeJson(delivery.nextAttemptAt),
    delivered_at: timeJson(delivery.deliveredAt),
  };
}

/** `/v1/webhook_endpoints`: words as in the API for the endpoints of organizations that existing clients know. */
import {
  type WebhookEndpoint,
  WebhookService,
  WebhookState,
} from "../../../../proto/gen/tendon/v1/webhook_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { limitOf, pageOf } from "../list-query.ts";
import { timeJson } from "../time-json.ts";

const MOST = 100;
const STATES: Readonly<Record<"enabled" | "disabled", WebhookState>> = {
  enabled: WebhookState.ENABLED,
  disabled: WebhookState.DISABLED,
};

const { method } = WebhookService;

export function webhookEndpointRoutes(): ApiRoute[] {
  const path = "/v1/webhook_endpoints/{webhook_endpoint_id}";
  return [
    route("POST", "/v1/webhook_endpoints", createEndpoint),
    route("GET", "/v1/webhook_endpoints", async ({ services, query }) => {
      const { endpoints, nextPageToken } = await services.call(method.listWebhookEndpoints, {
        pageSize: limitOf(query, MOST),
        pageToken: pageOf(query),
      });
      return { data: endpoints.map(endpointJson), next_page: nextPageToken || null };
    }),
    route("GET", path, async ({ services, params }) => {
      const request = { endpointId: params.webhook_endpoint_id! };
      return endpointJson((await services.call(method.getWebhookEndpoint, request)).endpoint!);
    }),
    route("POST", path, updateEndpoint),
    route("DELETE", path, async ({ services, params }) => {
      await services.call(method.deleteWebhookEndpoint, { endpointId: params.webhook_endpoint_id! });
      return { id: params.webhook_endpoint_id, type: "webhook_endpoint_deleted" };
    }),
    route("POST", `${path}/regenerate_signing_secret`, regenerateSecret),
  ];
}

async function createEndpoint({ services, body: { fields }, requestId }: ApiCall) {
  fields.only("url", "enabled_events", "name", "description");
  const { endpoint, signingSecret } = await services.call(method.createWebhookEndpoint, {
    requestId,
    url: fields.requiredText("url"),
    enabledEvents: [...(fields.texts("enabled_events") ?? [])],
    name: fields.text("name") ?? "",
    description: fields.text("description") ?? "",
  });
  return { ...endpointJson(endpoint!), signing_secret: signingSecret || null };
}

async function updateEndpoint({ services, params, body: { fields } }: ApiCall) {
  fields.only("url", "enabled_events", "name", "description", "state");
  const state = fields.word("state", ["enabled", "disabled"]);
  const request = {
    endpointId: params.webhook_endpoint_id!,
    enabledEvents: [...(fields.texts("enabled_events") ?? [])],
    ...(fields.has("url") && { url: fields.requiredText("url") }),
    ...(fields.has("name") && { name: fields.text("name") ?? "" }),
    ...(fields.has("description") && { description: fields.text("description") ?? "" }),
    ...(state && { state: STATES[state] }),
  };
  return endpointJson((await services.call(method.updateWebhookEndpoint, request)).endpoint!);
}

async function regenerateSecret({ services, params, body: { fields } }: ApiCall) {
  fields.only("overlap_seconds");
  const overlap = fields.integer("overlap_seconds");
  const { endpoint, signingSecret } = await services.call(method.rotateWebhookSecret, {
    endpointId: params.webhook_endpoint_id!,
    ...(overlap !== undefined && { overlapSeconds: BigInt(overlap) }),
  });
  return { ...endpointJson(endpoint!), signing_secret: signingSecret };
}

function endpointJson(endpoint: WebhookEndpoint) {
  return {
    type: "webhook_endpoint",
    id: endpoint.id,
    url: endpoint.url,
    name: endpoint.name,
    description: endpoint.description,
    enabled_events: endpoint.enabledEvents,
    state: endpoint.state === WebhookState.ENABLED ? "enabled" : "disabled",
    disabled_reason: endpoint.disabledReason,
    failing_since: timeJson(endpoint.failingSince),
    dropped_deliveries: Number(endpoint.droppedDeliveries),
    last_dropped_at: timeJson(endpoint.lastDroppedAt),
    old_secret_until: timeJson(endpoint.oldSecretUntil),
    created_at: timeJson(endpoint.createdAt),
    updated_at: timeJson(endpoint.updatedAt),
  };
}

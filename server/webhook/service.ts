/** WebhookService. */
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { contentHash } from "../../kit/canonical-json.ts";
import { invalidField, isTendonError, notFound } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { refuseNul, refuseNulIn } from "../../kit/nul.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import {
  type CreateWebhookEndpointRequest,
  CreateWebhookEndpointRequestSchema,
  type DeleteWebhookEndpointRequest,
  type GetWebhookEndpointRequest,
  type ListWebhookDeliveriesRequest,
  type ListWebhookEndpointsRequest,
  type ReplayWebhookDeliveriesRequest,
  type RotateWebhookSecretRequest,
  type UpdateWebhookEndpointRequest,
  type WebhookEndpoint,
  type WebhookService,
  WebhookState,
} from "../../proto/gen/tendon/v1/webhook_service_pb.js";
import { actorOf, principalOf, scopeOf, workspaceOf } from "../ports/principal.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import { madeOnce } from "../ports/repeated-creation.ts";
import type { AuditInput, AuditStore } from "../store/audit.ts";
import type { Cursor } from "../store/page.ts";
import { type RequestIdStore, SCOPES } from "../store/request-ids.ts";
import type { WebhookEndpointStore, WebhookOutboxStore } from "../store/webhooks.ts";
import { checkedEvents, checkUrl } from "./rules.ts";
import { newSigningSecret, sealSigningSecret } from "./signing-secret.ts";

export interface WebhookServiceDeps {
  readonly webhookEndpoints: WebhookEndpointStore;
  readonly requestIds: Pick<RequestIdStore, "madeBy">;
  readonly webhookOutbox: Pick<WebhookOutboxStore, "list" | "replayOne" | "replaySince">;
  readonly audit: Pick<AuditStore, "record">;
  readonly proxies: Pick<ProxyDirectory, "currentSealingKey" | "isAnyConnected" | "ask">;
  readonly defaultWorkspaceId: string;
}

const DEFAULT_PAGE = 20;
/** Proxies answer at once; those of an older build do not. */
const CHECK_WITHIN_MS = 3_000;
const DEFAULT_OVERLAP_SECONDS = 86_400n;

export class WebhookServiceHandler implements ServiceImplementation<typeof WebhookService> {
  private readonly deps: WebhookServiceDeps;

  constructor(deps: WebhookServiceDeps) {
    this.deps = deps;
  }

  async createWebhookEndpoint(request: CreateWebhookEndpointRequest, context: RpcContext) {
    const { requestId, url, name, description } = request;
    refuseNulIn({ requestId, name, description });
    const enabledEvents = checkedEvents(request.enabledEvents);
    const id = newId("webhookEndpoint");
    const workspaceId = workspaceOf(principalOf(context), this.deps.defaultWorkspaceId);
    const made = {
      requestId,
      contentHash: contentHash(CreateWebhookEndpointRequestSchema, { ...request, requestId: "" }),
    };
    const secret = newSigningSecret();
    const { webhookEndpoints, proxies, requestIds } = this.deps;
    const make = async () => {
      await this.checkUrl(url, workspaceId);
      return webhookEndpoints.create({
        ...{ id, workspaceId, url, name, description, enabledEvents },
        secret: await sealSigningSecret(proxies, { workspaceId, endpointId: id }, secret),
        request: made,
        audit: audit(context, "webhook_endpoint.create", id),
      });
    };
    const claim = { ...made, workspaceId, scope: SCOPES.webhookEndpoint };
    const { endpoint, isNew } = await madeOnce(requestIds, claim, make, async (first) => {
      const there = await webhookEndpoints.find(first, workspaceId);
      return there && { endpoint: there, isNew: false };
    });
    return { endpoint, signingSecret: isNew ? secret : "" };
  }

  async getWebhookEndpoint({ endpointId }: GetWebhookEndpointRequest, context: RpcContext) {
    return { endpoint: await this.find(endpointId, context) };
  }

  async listWebhookEndpoints({ pageSize, pageToken }: ListWebhookEndpointsRequest, context: RpcContext) {
    const workspaceId = scopeOf(principalOf(context));
    const query: PageQuery = ["webhook_endpoints", workspaceId];
    const after = decodePageToken(query, pageToken, 2) as Cursor | undefined;
    const page = { size: pageSize || DEFAULT_PAGE, after };
    const { items, next } = await this.deps.webhookEndpoints.list(workspaceId, page);
    return { endpoints: items, nextPageToken: encodePageToken(query, next) };
  }

  async updateWebhookEndpoint(request: UpdateWebhookEndpointRequest, context: RpcContext) {
    const { endpointId, url, name, description, enabledEvents, state } = request;
    refuseNulIn({ endpointId, name: name ?? "", description: description ?? "" });
    if (url !== undefined) await this.checkUrl(url, (await this.find(endpointId, context)).workspaceId);
    const endpoint = await this.deps.webhookEndpoints.update({
      ...{ endpointId, url, name, description },
      workspaceId: scopeOf(principalOf(context)),
      enabledEvents: enabledEvents.length === 0 ? undefined : checkedEvents(enabledEvents),
      state: state === WebhookState.UNSPECIFIED ? undefined : state,
      audit: audit(context, "webhook_endpoint.update", endpointId),
    });
    return { endpoint: found(endpoint, endpointId) };
  }

  async deleteWebhookEndpoint({ endpointId }: DeleteWebhookEndpointRequest, context: RpcContext) {
    refuseNul(endpointId, "endpoint_id");
    const entry = audit(context, "webhook_endpoint.delete", endpointId);
    const scope = scopeOf(principalOf(context));
    if (!(await this.deps.webhookEndpoints.delete(endpointId, scope, entry)))
      throw notFound("webhook endpoint", endpointId);
    return {};
  }

  async rotateWebhookSecret(request: RotateWebhookSecretRequest, context: RpcContext) {
    const { endpointId, overlapSeconds = DEFAULT_OVERLAP_SECONDS } = request;
    const { workspaceId } = await this.find(endpointId, context);
    const secret = newSigningSecret();
    const added = await this.deps.webhookEndpoints.addSecret({
      ...{ endpointId, workspaceId },
      secret: await sealSigningSecret(this.deps.proxies, { workspaceId, endpointId }, secret),
      overlapMs: Number(overlapSeconds) * 1_000,
      audit: audit(context, "webhook_endpoint.rotate_secret", endpointId),
    });
    if (!added) throw notFound("webhook endpoint", endpointId);
    return { endpoint: await this.find(endpointId, context), signingSecret: secret };
  }

  async listWebhookDeliveries(request: ListWebhookDeliveriesRequest, context: RpcContext) {
    const { endpointId, states, pageSize, pageToken } = request;
    await this.find(endpointId, context);
    const query: PageQuery = ["webhook_deliveries", endpointId, ...[...states].sort()];
    const after = decodePageToken(query, pageToken, 2) as Cursor | undefined;
    const page = { size: pageSize || DEFAULT_PAGE, after };
    const { items, next } = await this.deps.webhookOutbox.list({ endpointId, states, page });
    return { deliveries: items, nextPageToken: encodePageToken(query, next) };
  }

  async replayWebhookDeliveries(request: ReplayWebhookDeliveriesRequest, context: RpcContext) {
    const { endpointId, which, states } = request;
    const { workspaceId } = await this.find(endpointId, context);
    const replayed =
      which.case === "since"
        ? await this.deps.webhookOutbox.replaySince(endpointId, timestampDate(which.value), states)
        : await this.replayOne(endpointId, which.value ?? "");
    const entry = audit(context, "webhook_endpoint.replay", endpointId);
    await this.deps.audit.record({ ...entry, workspaceId, detail: { replayed } });
    return { replayed };
  }

  /**
   * Where proxies may send, they say themselves, by the rules of deliveries. While none says anything, deliveries will: an
   * endpoint that leads where it may not is disabled then.
   */
  private async checkUrl(url: string, workspaceId: string): Promise<void> {
    checkUrl(url);
    const { proxies } = this.deps;
    if (!proxies.isAnyConnected()) return;
    const options = { timeoutMs: CHECK_WITHIN_MS };
    const value = { workspaceId, url };
    const answer = await proxies.ask({ case: "checkWebhookUrl", value }, options).catch(unsaid);
    if (answer?.webhookAttempt?.refused) throw invalidField("url", answer.webhookAttempt.detail);
  }

  private async replayOne(endpointId: string, deliveryId: string): Promise<number> {
    refuseNul(deliveryId, "delivery_id");
    const replayed = await this.deps.webhookOutbox.replayOne(endpointId, deliveryId);
    if (replayed === undefined) throw notFound("webhook delivery", deliveryId);
    return replayed;
  }

  private async find(endpointId: string, context: RpcContext): Promise<WebhookEndpoint> {
    refuseNul(endpointId, "endpoint_id");
    const scope = scopeOf(principalOf(context));
    return found(await this.deps.webhookEndpoints.find(endpointId, scope), endpointId);
  }
}

function unsaid(error: unknown): undefined {
  if (!isTendonError(error)) throw error;
}

function found(endpoint: WebhookEndpoint | undefined, endpointId: string): WebhookEndpoint {
  if (endpoint !== undefined) return endpoint;
  throw notFound("webhook endpoint", endpointId);
}

function audit(context: RpcContext, action: string, subject: string): AuditInput {
  return { actor: actorOf(principalOf(context)), action, subject };
}

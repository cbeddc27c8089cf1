/** Puts the parts that tell programs elsewhere what happened together. */
import { bindService } from "../../kit/rpc/service.ts";
import { WebhookService } from "../../proto/gen/tendon/v1/webhook_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { WebhookOutboxStore } from "../store/webhooks.ts";
import { createForgetting, type ForgettingDeps } from "./forgetting.ts";
import { createSecretResealing, type SecretResealingDeps } from "./resealing.ts";
import { type SenderDeps, WebhookSender } from "./sender.ts";
import { type WebhookServiceDeps, WebhookServiceHandler } from "./service.ts";

export interface WebhookAreaDeps
  extends Omit<WebhookServiceDeps, "proxies">,
    Omit<SecretResealingDeps, "proxies" | "webhookEndpoints">,
    Omit<SenderDeps, "proxies" | "outbox">,
    Omit<ForgettingDeps, "outbox"> {
  readonly webhookOutbox: WebhookOutboxStore;
  readonly proxies: ProxyDirectory;
}

export interface WebhookArea extends Area {
  /** Before the proxies are told to go: waits for what is on its way. */
  rest(withinMs: number): Promise<void>;
}

export function createWebhookArea(deps: WebhookAreaDeps): WebhookArea {
  const { webhookOutbox: outbox } = deps;
  const sender = new WebhookSender({ ...deps, outbox });
  return {
    name: "webhook",
    services: [bindService(WebhookService, new WebhookServiceHandler(deps))],
    parts: [sender, createSecretResealing(deps), ...createForgetting({ ...deps, outbox })],
    rest: (withinMs) => sender.rest(withinMs),
  };
}

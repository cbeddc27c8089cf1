/** Puts the parts that tell programs elsewhere what happened together. */
import { Rounds } from "../../kit/rounds.ts";
import { bindService } from "../../kit/rpc/service.ts";
import { WebhookService } from "../../proto/gen/tendon/v1/webhook_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { WebhookOutboxStore } from "../store/webhooks.ts";
import { createSecretResealing, type SecretResealingDeps } from "./resealing.ts";
import { type SenderDeps, WebhookSender } from "./sender.ts";
import { type WebhookServiceDeps, WebhookServiceHandler } from "./service.ts";

export interface WebhookAreaDeps
  extends Omit<WebhookServiceDeps, "proxies">,
    Omit<SecretResealingDeps, "proxies" | "webhookEndpoints">,
    Omit<SenderDeps, "proxies" | "outbox"> {
  readonly webhookOutbox: WebhookOutboxStore;
  readonly proxies: ProxyDirectory;
}

export interface WebhookArea extends Area {
  /** Before the proxies are told to go: waits for what is on its way. */
  rest(withinMs: number): Promise<void>;
}

const PRUNE_EVERY_MS = 10 * 60_000;
/** Bounds what one round erases. */
const MAX_PRUNES = 20;
const KEPT_MS = 7 * 86_400_000;
const KEPT_PER_ENDPOINT = 100_000;

export function createWebhookArea(deps: WebhookAreaDeps): WebhookArea {
  const { webhookOutbox: outbox, clock, log } = deps;
  const sender = new WebhookSender({ ...deps, outbox });
  return {
    name: "webhook",
    services: [bindService(WebhookService, new WebhookServiceHandler(deps))],
    parts: [
      sender,
      createSecretResealing(deps),
      new Rounds({
        name: "webhook pruning",
        everyMs: PRUNE_EVERY_MS,
        round: () => prune(outbox),
        failed: "old webhook deliveries could not be forgotten",
        clock,
        log,
      }),
    ],
    rest: (withinMs) => sender.rest(withinMs),
  };
}

/** Any replica does it; doing it twice does no harm. */
async function prune(outbox: Pick<WebhookOutboxStore, "prune">): Promise<void> {
  const bounds = { olderThanMs: KEPT_MS, perEndpoint: KEPT_PER_ENDPOINT };
  for (let times = 0; times < MAX_PRUNES; times += 1) if (!(await outbox.prune(bounds))) return;
}

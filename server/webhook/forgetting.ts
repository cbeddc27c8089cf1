/** Bounds of what is kept of events and deliveries: their age, and their number. Any replica does it; twice does no harm. */
import type { Clock } from "../../kit/clock.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import { Rounds } from "../../kit/rounds.ts";
import type { Metrics } from "../ports/metrics.ts";
import type { Forgotten, WebhookOutboxStore } from "../store/webhooks.ts";

export interface ForgettingDeps {
  readonly outbox: Pick<WebhookOutboxStore, "prune" | "trim">;
  /** Events of a workspace. */
  readonly eventsKept: number;
  readonly metrics: Pick<Metrics, "counter">;
  readonly clock: Clock;
  readonly log: Logger;
}

const PRUNE_EVERY_MS = 10 * 60_000;
const TRIM_EVERY_MS = 60_000;
/** Batches of one round. */
const MAX_BATCHES = 20;
const BOUNDS = { olderThanMs: 7 * 86_400_000, perEndpoint: 100_000 };

export function createForgetting(deps: ForgettingDeps): Service[] {
  const { outbox, eventsKept, metrics, clock, log } = deps;
  const count = metrics.counter(
    "tendon_webhook_dropped_deliveries_total",
    "Deliveries of webhooks that still waited when they were forgotten.",
  );
  const all = async (some: () => Promise<Forgotten>) => {
    for (let batches = 0, isMore = true; isMore && batches < MAX_BATCHES; batches += 1) {
      const { dropped, mayBeMore } = await some();
      isMore = mayBeMore;
      if (dropped === 0) continue;
      count(dropped);
      log.warn({ dropped }, "webhooks that still waited were forgotten");
    }
  };
  return [
    new Rounds({
      name: "webhook pruning",
      everyMs: PRUNE_EVERY_MS,
      round: () => all(() => outbox.prune(BOUNDS)),
      failed: "old webhook deliveries could not be forgotten",
      clock,
      log,
    }),
    new Rounds({
      name: "webhook trimming",
      everyMs: TRIM_EVERY_MS,
      round: () => all(() => outbox.trim(eventsKept)),
      failed: "webhook events beyond their number could not be forgotten",
      clock,
      log,
    }),
  ];
}

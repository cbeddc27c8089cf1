/**
 * Sends what waits: claims lanes, has a proxy make the requests, and writes down how each ended.
 *
 * W1 Of a lane one delivery at a time is sent, the oldest: what fails holds up what came later in its lane, and nothing else.
 * W2 A lane is one replica's while its claim lasts. Whoever dies loses its claims by time, so a delivery may arrive twice then,
 *    under the same id; it is written down before it is sent, so it is never lost.
 * W3 Places are shared between workspaces, by those that have work: none has more than half, and whoever comes finds one.
 * W4 A server that stops in good order claims nothing more and waits for what is on its way.
 */
import { type Clock, within } from "../../kit/clock.ts";
import { messageOf, TendonError } from "../../kit/errors.ts";
import { failpoint } from "../../kit/failpoint.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import type { ProxyAnswer } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { AttemptVerdict, ClaimedLane, WaitingDelivery, WebhookOutboxStore } from "../store/webhooks.ts";
import { payloadOf } from "./payload.ts";
import { retryDelayMs, verdictOn } from "./rules.ts";

export interface SenderDeps {
  readonly outbox: Pick<WebhookOutboxStore, "route" | "claim" | "oldest" | "record" | "release">;
  readonly proxies: Pick<ProxyDirectory, "ask" | "isAnyConnected">;
  readonly installationId: string;
  readonly clock: Clock;
  readonly log: Logger;
  /** How long a claim lasts: more than a question to a proxy. */
  readonly leaseMs?: number;
}

const LOOK_EVERY_MS = 500;
/** Events that become deliveries in one transaction. */
const ROUTE_BATCH = 500;
/** Lanes of this replica. */
const MAX_AT_ONCE = 128;
/** Lanes of one endpoint, of all replicas. */
const MAX_PER_ENDPOINT = 8;
/** Deliveries of a lane in a row; then others have their turn. */
const MAX_IN_A_ROW = 50;
/** A proxy gives up after 15 s by itself. */
const ASK_WITHIN_MS = 25_000;
const LEASE_MS = 60_000;
/** Until a proxy may be there. */
const WAIT_FOR_PROXY_MS = 2_000;

/** What of a proxy's says that nothing was sent. */
const NOT_SENT = new Set(["NOT_CONFIGURED", "LIMIT_EXCEEDED", "DRAINING"]);

export class WebhookSender implements Service {
  readonly name = "webhook sender";
  private readonly deps: SenderDeps;
  /** Under way, each with its workspace. */
  private readonly lanes = new Map<Promise<void>, string>();
  private stopLooking: (() => void) | undefined;
  private looking: Promise<void> | undefined;
  private looksAgain = false;
  private stopping = false;

  constructor(deps: SenderDeps) {
    this.deps = deps;
  }

  async start(): Promise<void> {
    this.stopLooking = this.deps.clock.every(LOOK_EVERY_MS, () => this.look());
  }

  async stop(): Promise<void> {
    this.stopping = true;
    this.stopLooking?.();
    await this.looking;
    await Promise.all(this.lanes.keys());
  }

  /** As `stop`, and resolves at the latest after that time. */
  async rest(withinMs: number): Promise<void> {
    await within(this.deps.clock, withinMs, this.stop(), () => new Error("it is still sending")).catch(
      () => {},
    );
  }

  private look(): void {
    this.looksAgain = true;
    this.looking ??= this.lookAgain().finally(() => {
      this.looking = undefined;
    });
  }

  private async lookAgain(): Promise<void> {
    while (this.looksAgain && !this.stopping) {
      this.looksAgain = false;
      try {
        const routed = await this.deps.outbox.route(ROUTE_BATCH);
        const claimed = await this.claim();
        for (const lane of claimed) this.begin(lane);
        if (routed === ROUTE_BATCH || claimed.length > 0) this.looksAgain = true;
      } catch (error) {
        this.deps.log.warn({ error: messageOf(error) }, "waiting webhooks could not be looked for");
      }
    }
  }

  private async claim(): Promise<ClaimedLane[]> {
    const { outbox, proxies, leaseMs = LEASE_MS } = this.deps;
    const free = MAX_AT_ONCE - this.lanes.size;
    if (free <= 0 || !proxies.isAnyConnected()) return [];
    return outbox.claim({ free, taken: this.taken(), perEndpoint: MAX_PER_ENDPOINT, leaseMs });
  }

  private taken(): Map<string, number> {
    const taken = new Map<string, number>();
    for (const workspaceId of this.lanes.values()) taken.set(workspaceId, (taken.get(workspaceId) ?? 0) + 1);
    return taken;
  }

  private begin(lane: ClaimedLane): void {
    const running = this.run(lane)
      .catch(async (error: unknown) => {
        this.deps.log.warn({ error: messageOf(error) }, "a webhook's delivery could not be written down");
        // Where that fails too, the claim ends by itself.
        await this.deps.outbox.release(lane, WAIT_FOR_PROXY_MS).catch(() => {});
      })
      .finally(() => {
        this.lanes.delete(running);
        if (!this.stopping) this.look();
      });
    this.lanes.set(running, lane.workspaceId);
  }

  private async run(lane: ClaimedLane): Promise<void> {
    const { outbox, leaseMs = LEASE_MS } = this.deps;
    for (let sent = 0; sent < MAX_IN_A_ROW && !this.stopping; sent += 1) {
      const waiting = await outbox.oldest(lane);
      if (waiting === undefined) break;
      failpoint("server.webhook_claimed");
      const verdict = await this.send(lane, waiting);
      failpoint("server.webhook_answered");
      if (verdict === undefined) return outbox.release(lane, WAIT_FOR_PROXY_MS);
      this.tell(lane, waiting, verdict);
      const { deliveryId } = waiting;
      if (!(await outbox.record({ lane, deliveryId, verdict, leaseMs }))) return;
    }
    await outbox.release(lane, 0);
  }

  /** Undefined when nothing was sent because no proxy takes it now. */
  private async send(lane: ClaimedLane, waiting: WaitingDelivery): Promise<AttemptVerdict | undefined> {
    const { workspaceId, url, eventId } = waiting;
    const { endpointId } = lane;
    const body = payloadOf(waiting, this.deps.installationId);
    const value = { workspaceId, endpointId, url, eventId, body, sealedSecrets: [...waiting.sealedSecrets] };
    try {
      const options = { timeoutMs: ASK_WITHIN_MS };
      return this.judge(await this.deps.proxies.ask({ case: "deliverWebhook", value }, options), waiting);
    } catch (error) {
      if (!(error instanceof TendonError)) throw error;
      if (NOT_SENT.has(error.reason)) return undefined;
      return unclear(waiting, `whether it arrived is not known: ${error.message}`);
    }
  }

  private judge(
    { reason, message, webhookAttempt }: ProxyAnswer,
    waiting: WaitingDelivery,
  ): AttemptVerdict | undefined {
    if (NOT_SENT.has(reason)) return undefined;
    if (webhookAttempt === undefined) return unclear(waiting, message || "the proxy gave no answer");
    return verdictOn(webhookAttempt, waiting, Math.random());
  }

  /** Only what ends something: a receiver that is down for a while is told by the deliveries themselves. */
  private tell({ endpointId }: ClaimedLane, { eventId }: WaitingDelivery, verdict: AttemptVerdict): void {
    const { log } = this.deps;
    if (verdict.kind === "delivered") return;
    const { status, disable } = verdict;
    if (disable) log.warn({ endpointId, reason: disable, status }, "a webhook endpoint was disabled");
    if (verdict.kind === "dead")
      log.warn({ endpointId, eventId, status }, "a webhook was given up after a day");
  }
}

/** The platform's own fault: the endpoint's standing stays as it is. */
function unclear({ tries }: WaitingDelivery, error: string): AttemptVerdict {
  const retryAfterMs = retryDelayMs(tries + 1, Math.random());
  return { kind: "failed", status: 0, error, retryAfterMs, isOurs: true };
}

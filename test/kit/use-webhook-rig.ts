/** For all tests of a file: a server, a proxy that sends its webhooks anywhere, and receivers that verify what they take. */
import { afterAll, beforeAll } from "vitest";
import type { SealingKeys } from "../../mcp-proxy/sealing-key.ts";
import { StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { WebhookDeliveryState, WebhookService } from "../../proto/gen/tendon/v1/webhook_service_pb.js";
import { eventually } from "./eventually.ts";
import { newSealingKeys, startProxy, type TestProxy } from "./proxy-rig.ts";
import { TreeRig } from "./tree-rig.ts";
import { startWebhookReceiver, type WebhookReceiver } from "./webhook-receiver.ts";

/** What a turn of a session tells. */
export const RUNS = ["session.status_run_started", "session.status_idled"];

export class WebhookRig {
  tree!: TreeRig;
  /** Secrets are sealed to the second at first. */
  sealingKeys!: SealingKeys;
  proxy!: TestProxy;
  private readonly receivers: WebhookReceiver[] = [];
  private talkers = 0;

  async start(): Promise<void> {
    this.tree = await TreeRig.start({}, true);
    this.sealingKeys = await newSealingKeys(2);
    this.proxy = await this.proxyWith(this.sealingKeys[1]!);
  }

  async stop(): Promise<void> {
    for (const receiver of this.receivers) await receiver.close().catch(() => {});
    await this.proxy?.stop();
    await this.tree?.stop();
  }

  async proxyWith(...keys: [SealingKeys[number], ...SealingKeys[number][]]): Promise<TestProxy> {
    const { server } = this.tree;
    return startProxy({ url: server.url, key: await server.localKey("proxy"), keys, webhooksTo: "anywhere" });
  }

  webhooks(key?: string) {
    const { server } = this.tree;
    return key === undefined ? server.client(WebhookService) : server.client(WebhookService, key);
  }

  /** Closed with the rig. */
  keep(receiver: WebhookReceiver): WebhookReceiver {
    this.receivers.push(receiver);
    return receiver;
  }

  /** An endpoint with a receiver of its own. */
  async subscribed(enabledEvents: string[], key?: string) {
    const receiver = this.keep(await startWebhookReceiver());
    const request = { url: receiver.url, enabledEvents };
    const { endpoint, signingSecret } = await this.webhooks(key).createWebhookEndpoint(request);
    return { receiver, endpointId: endpoint!.id, secret: signingSecret };
  }

  gone({ endpointId }: { endpointId: string }) {
    return this.webhooks().deleteWebhookEndpoint({ endpointId });
  }

  async deliveries(endpointId: string, ...states: WebhookDeliveryState[]) {
    const request = { endpointId, states, pageSize: 1000 };
    return (await this.webhooks().listWebhookDeliveries(request)).deliveries;
  }

  /** What was taken is written down. */
  settled(endpointId: string) {
    return eventually(
      async () => (await this.deliveries(endpointId, WebhookDeliveryState.PENDING)).length === 0,
    );
  }

  /** A session that has had so many turns, and says nothing more. */
  async talked(turns = 1): Promise<string> {
    const { tree } = this;
    this.talkers += 1;
    const sessionId = await tree.talk(await tree.agent(`talker-${this.talkers}`, () => ({ say: "Done." })));
    for (let turn = 1; turn < turns; turn += 1) {
      await tree.rested(sessionId, StopReason.END_TURN);
      await tree.say(sessionId, "again");
    }
    await tree.rested(sessionId, StopReason.END_TURN);
    return sessionId;
  }
}

export function useWebhookRig(): WebhookRig {
  const rig = new WebhookRig();
  beforeAll(() => rig.start());
  afterAll(() => rig.stop());
  return rig;
}

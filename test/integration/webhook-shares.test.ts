/** What webhooks of one workspace may take of what all have: places for deliveries, rows of events; and where they may lead. */
import Anthropic from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type Clock, systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { MemoryService } from "../../proto/gen/tendon/v1/memory_service_pb.js";
import { VaultService } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { WebhookDeliveryState, WebhookService } from "../../proto/gen/tendon/v1/webhook_service_pb.js";
import { createWebhookOutboxStore } from "../../server/store/postgres/webhook-outbox.ts";
import { createForgetting } from "../../server/webhook/forgetting.ts";
import { eventually } from "../kit/eventually.ts";
import { failure } from "../kit/failure.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { newSealingKeys, startProxy, type TestProxy } from "../kit/proxy-rig.ts";
import { startServer, type TestServer } from "../kit/server.ts";
import { startWebhookReceiver, type WebhookReceiver } from "../kit/webhook-receiver.ts";

/** What hangs in this file hangs until it is let go, however long that takes here. */
const patient: Clock = {
  ...systemClock,
  after: (delayMs, run) => systemClock.after(delayMs < 15_000 ? delayMs : Math.max(delayMs, 600_000), run),
};

let database: TestDatabase;
let server: TestServer;
let proxy: TestProxy;
const receivers: WebhookReceiver[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url, clock: patient });
  proxy = await newProxy({ webhooksTo: "anywhere" });
});
afterAll(async () => {
  for (const receiver of receivers) await receiver.close().catch(() => {});
  await proxy?.stop();
  await server?.stop();
  await database?.drop();
});

async function newProxy(options: { webhooksTo: "public" | "anywhere"; deny?: string[] }): Promise<TestProxy> {
  const key = await server.localKey("proxy");
  return startProxy({
    url: server.url,
    key,
    keys: proxy?.keys ?? (await newSealingKeys()),
    clock: patient,
    ...options,
  });
}

async function newReceiver(): Promise<WebhookReceiver> {
  const receiver = await startWebhookReceiver();
  receivers.push(receiver);
  return receiver;
}

/** The server knows that it is gone, and asks it nothing more. */
async function stopProxy(): Promise<void> {
  await proxy.stop();
  await eventually(async () => (await server.client(AdminService).getStatus({})).proxies.length === 0);
}

/** A workspace with a key of its own. */
async function newWorkspace(name: string) {
  const admin = server.client(AdminService);
  const { workspace } = await admin.createWorkspace({ name });
  const made = await admin.createApiKey({ name, role: Role.CLIENT, workspaceId: workspace!.id });
  const webhooks = server.client(WebhookService, made.secret);
  const vaults = server.client(VaultService, made.secret);
  return {
    id: workspace!.id,
    key: made.secret,
    webhooks,
    /** Tells of something that is an order of its own. */
    happens: () => vaults.createVault({ displayName: "v" }),
    subscribe: async (url: string, ...enabledEvents: string[]) =>
      (await webhooks.createWebhookEndpoint({ url, enabledEvents })).endpoint!.id,
  };
}

const claimed = async () => {
  const { rows } = await database.pool().query<{ endpoint_id: string; lanes: number }>(
    `select endpoint_id, count(*)::integer as lanes from webhook_lanes where claim_id is not null
       and due_at > clock_timestamp() group by 1`,
  );
  return rows.map(({ lanes }) => lanes);
};

describe("places for deliveries", () => {
  it("are shared: hundreds that hang for one workspace's endpoints do not delay another's", async () => {
    const [greedy, modest] = [await newWorkspace("greedy"), await newWorkspace("modest")];
    const hanging = await newReceiver();
    let letGo = () => {};
    const gate = new Promise<number>((resolve) => {
      letGo = () => resolve(200);
    });
    hanging.answer = () => gate;
    const urls = Array.from({ length: 32 }, (_, at) => `${hanging.url}&endpoint=${at}`);
    await Promise.all(urls.map((url) => greedy.subscribe(url, "*")));
    for (let events = 0; events < 5; events += 1) await greedy.happens();
    await eventually(() => hanging.seen.length >= 64);
    // They hang longer than a delivery can; their claims do not end meanwhile.
    await database
      .pool()
      .query("update webhook_lanes set due_at = due_at + interval '1 hour' where claim_id is not null");
    // Half of the places of a server, and of these each endpoint the same.
    expect(await claimed()).toEqual(urls.map(() => 2));
    const quick = await newReceiver();
    await modest.subscribe(quick.url, "*");
    for (let events = 0; events < 5; events += 1) await modest.happens();
    await eventually(() => quick.taken.length === 5);
    expect(hanging.taken).toEqual([]);
    const tried =
      "select 1 from webhook_deliveries where attempts > 0 and endpoint_id in (select endpoint_id from webhook_endpoints where workspace_id = $1)";
    expect((await database.pool().query(tried, [greedy.id])).rows).toEqual([]);
    letGo();
    await eventually(() => hanging.taken.length >= 160);
    await eventually(async () => {
      const { rows } = await database.pool().query("select 1 from webhook_lanes limit 1");
      return rows.length === 0;
    });
    expect(hanging.taken).toHaveLength(160);
  });

  it("are claimed in rounds of the workspaces, who has few first, and so that a place stays for who comes next", async () => {
    const other = await createTestDatabase();
    const pool = other.pool();
    await pool.query("insert into workspaces (workspace_id, name) values ('many', 'many'), ('few', 'few')");
    await pool.query(
      `insert into webhook_endpoints (endpoint_id, workspace_id, url, enabled_events)
       values ('one', 'many', '', '{*}'), ('two', 'many', '', '{*}'), ('three', 'few', '', '{*}')`,
    );
    await pool.query(
      `insert into webhook_lanes (endpoint_id, lane) select 'one', n::text from generate_series(1, 6) n
         union all select 'two', n::text from generate_series(1, 6) n union all values ('three', '1'), ('three', '2')`,
    );
    const outbox = createWebhookOutboxStore(pool);
    const claim = async (free: number, taken: [string, number][] = []) => {
      const lanes = await outbox.claim({ free, taken: new Map(taken), perEndpoint: 8, leaseMs: 60_000 });
      await pool.query("update webhook_lanes set claim_id = null, due_at = clock_timestamp()");
      return lanes;
    };
    const shares = async (...asked: Parameters<typeof claim>) => {
      const lanes = await claim(...asked);
      return ["many", "few"].map((id) => lanes.filter(({ workspaceId }) => workspaceId === id).length);
    };
    const sum = (numbers: number[]) => numbers.reduce((total, number) => total + number, 0);
    expect(sum(await shares(1))).toBe(1);
    expect(await shares(1, [["many", 1]])).toEqual([0, 1]);
    expect(sum(await shares(4))).toBe(3);
    expect(await shares(8)).toEqual([3, 2]);
    expect(await shares(8, [["few", 4]])).toEqual([4, 0]);
    expect(await shares(100)).toEqual([12, 2]);
    // Within a workspace, in rounds of its endpoints.
    const endpoints = (await claim(5)).filter(({ workspaceId }) => workspaceId === "many");
    expect(new Set(endpoints.map(({ endpointId }) => endpointId)).size).toBe(endpoints.length);
    await other.drop();
  });
});

describe("events of a workspace", () => {
  it("have a number beyond which the oldest go, those first that are told; what was dropped unsent is counted where people look", async () => {
    const pool = database.pool();
    const home = await newWorkspace("full");
    const stores = server.client(MemoryService, home.key);
    const [well, down] = [await newReceiver(), await newReceiver()];
    await down.close();
    const downId = await home.subscribe(down.url, "memory_store.created");
    const wellId = await home.subscribe(well.url, "vault.created");
    for (const name of ["first", "second"]) await stores.createMemoryStore({ name });
    for (let vaults = 0; vaults < 2; vaults += 1) await home.happens();
    const deliveries = async (endpointId: string, ...states: WebhookDeliveryState[]) =>
      (await home.webhooks.listWebhookDeliveries({ endpointId, states })).deliveries;
    await eventually(async () => (await deliveries(wellId, WebhookDeliveryState.DELIVERED)).length === 2);
    await eventually(async () => (await deliveries(downId)).length === 2);
    const counts: [string, number][] = [];
    const forgetting = (eventsKept: number) =>
      createForgetting({
        outbox: createWebhookOutboxStore(pool),
        eventsKept,
        metrics: {
          counter:
            (name) =>
            (by = 1) =>
              void counts.push([name, by]),
        },
        clock: { ...systemClock, every: (_, run) => systemClock.every(50, run) },
        log: createLogger("test", "silent"),
      });
    const kept = async (eventsKept: number, counted: readonly number[]) => {
      const parts = forgetting(eventsKept);
      await Promise.all(parts.map((part) => part.start()));
      await eventually(async () => {
        const found = await Promise.all([wellId, downId].map(async (id) => (await deliveries(id)).length));
        return found.join() === counted.join();
      });
      await Promise.all(parts.map((part) => part.stop()));
    };
    await kept(3, [1, 2]);
    expect(counts).toEqual([]);
    await kept(1, [0, 1]);
    expect(counts).toEqual([["tendon_webhook_dropped_deliveries_total", 1]]);
    const { endpoint } = await home.webhooks.getWebhookEndpoint({ endpointId: downId });
    expect(endpoint).toMatchObject({ droppedDeliveries: 1n, lastDroppedAt: expect.anything() });
    const client = new Anthropic({ baseURL: server.url, apiKey: home.key, maxRetries: 0 });
    const { data } = (await client.get("/v1/webhook_endpoints")) as { data: Record<string, unknown>[] };
    expect(data.map(({ id, dropped_deliveries }) => [id, dropped_deliveries])).toEqual([
      [wellId, 0],
      [downId, 1],
    ]);
    expect(await (await fetch(`${server.url}/metrics`)).text()).toContain(
      "tendon_webhook_dropped_deliveries_total",
    );
    for (const endpointId of [wellId, downId]) await home.webhooks.deleteWebhookEndpoint({ endpointId });
  });
});

describe("an endpoint's URL that says itself where it leads", () => {
  it("is refused when the endpoint is made or changed, by the rules of the proxies that would send", async () => {
    await stopProxy();
    proxy = await newProxy({ webhooksTo: "public", deny: ["*.denied.example", "198.51.100.0/24"] });
    const { webhooks } = await newWorkspace("led");
    const enabledEvents = ["*"];
    const { endpoint } = await webhooks.createWebhookEndpoint({
      url: "https://hooks.example/",
      enabledEvents,
    });
    for (const [url, says] of [
      ["https://10.0.0.1/hook", /private address.*TENDON_PROXY_WEBHOOKS_TO/],
      ["https://0x7f.1/hook", /private address/],
      ["https://[::1]/hook", /private address/],
      ["https://[::ffff:192.168.1.1]/hook", /private address/],
      ["https://localhost/hook", /private address/],
      ["https://169.254.169.254/latest", /nothing is ever sent to/],
      ["http://93.184.216.34/hook", /https:\/\/ alone/],
      ["https://a.denied.example/hook", /denied by this installation/],
      ["https://198.51.100.7/hook", /denied by this installation/],
    ] as const)
      for (const call of [
        () => webhooks.createWebhookEndpoint({ url, enabledEvents }),
        () => webhooks.updateWebhookEndpoint({ endpointId: endpoint!.id, url }),
      ])
        expect(await failure(call())).toMatchObject({
          reason: "INVALID_FIELD",
          message: expect.stringMatching(says),
          metadata: { field: "url" },
        });
    const client = new Anthropic({ baseURL: server.url, apiKey: server.adminKey, maxRetries: 0 });
    const body = { url: "https://127.0.0.1:8443/", enabled_events: ["*"] };
    await expect(client.post("/v1/webhook_endpoints", { body })).rejects.toMatchObject({ status: 400 });
    await webhooks.updateWebhookEndpoint({ endpointId: endpoint!.id, url: "https://93.184.216.34/hook" });
    // An operator has allowed them; and while no proxy is there nobody can say.
    await stopProxy();
    await webhooks.updateWebhookEndpoint({ endpointId: endpoint!.id, url: "https://10.0.0.2/hook" });
    proxy = await newProxy({ webhooksTo: "anywhere" });
    await webhooks.updateWebhookEndpoint({ endpointId: endpoint!.id, url: "http://10.0.0.1/hook" });
    await webhooks.deleteWebhookEndpoint({ endpointId: endpoint!.id });
  });
});

/** Webhooks whose proxy or server is killed: nothing is lost, and what arrives twice has the same id. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Connection, dial } from "../../kit/dial/dial.ts";
import type { FailpointName } from "../../kit/failpoint.ts";
import { VaultService } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { WebhookService } from "../../proto/gen/tendon/v1/webhook_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { isWholeRun } from "../kit/fault-trials.ts";
import { freePort } from "../kit/free-port.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { type RunningProgram, startProgram } from "../kit/program.ts";
import { startWebhookReceiver, unwrap, type WebhookReceiver } from "../kit/webhook-receiver.ts";

const UNARMED = "";

let database: TestDatabase;
let receiver: WebhookReceiver;
let dataDir = "";
let port = 0;
let connection: Connection;
let server: RunningProgram;
let proxy: RunningProgram;
let secret = "";

const arm = (failpoints: string) => (failpoints === UNARMED ? {} : { TENDON_FAILPOINTS: failpoints });

async function startServer(failpoints: string): Promise<void> {
  server = startProgram("server", {
    TENDON_PORT: String(port),
    TENDON_DATA_DIR: dataDir,
    TENDON_DATABASE_URL: database.url,
    ...arm(failpoints),
  });
  await eventually(async () => (await fetch(`http://127.0.0.1:${port}/readyz`)).ok);
}

function startProxy(failpoints: string): void {
  proxy = startProgram("mcp-proxy", {
    TENDON_URL: `http://127.0.0.1:${port}`,
    TENDON_PROXY_KEY_FILE: join(dataDir, "proxy.key"),
    TENDON_PROXY_SEALING_KEY_FILE: join(dataDir, "proxy-sealing.key"),
    TENDON_PROXY_PORT: "0",
    TENDON_PROXY_WEBHOOKS_TO: "anywhere",
    ...arm(failpoints),
  });
}

beforeAll(async () => {
  database = await createTestDatabase();
  receiver = await startWebhookReceiver();
  dataDir = await mkdtemp(join(tmpdir(), "tendon-webhooks-"));
  port = await freePort();
  await startServer(UNARMED);
  const key = (await readFile(join(dataDir, "admin.key"), "utf8")).trim();
  connection = dial({ url: `http://127.0.0.1:${port}`, token: () => key, proxy: {} });
  startProxy(UNARMED);
  const service = connection.client(WebhookService);
  const request = { url: receiver.url, enabledEvents: ["vault.created", "vault.archived"] };
  const made = await eventually(() => service.createWebhookEndpoint(request).catch(() => undefined));
  secret = made.signingSecret;
});
afterAll(async () => {
  connection?.close();
  await proxy?.end("SIGTERM");
  await server?.end("SIGTERM");
  await receiver?.close();
  await rm(dataDir, { recursive: true, force: true });
  await database?.drop();
});

/** One lane with two deliveries. */
async function twoEvents(): Promise<string> {
  const vaults = connection.client(VaultService);
  const vaultId = (await vaults.createVault({ displayName: "v" })).vault!.id;
  await vaults.archiveVault({ vaultId });
  return vaultId;
}

/** How often each of the two came in the end; both are verified. */
async function arrivals(vaultId: string): Promise<number[]> {
  const of = (type: string) => receiver.seen.filter((hook) => hook.data.id === vaultId && hook.type === type);
  await eventually(() => of("vault.archived").length > 0);
  const all = [of("vault.created"), of("vault.archived")];
  for (const hooks of all) {
    expect(new Set(hooks.map(({ id }) => id)).size).toBe(1);
    for (const hook of hooks) unwrap(hook, secret);
  }
  const types = receiver.seen.filter(({ data }) => data.id === vaultId).map(({ type }) => type);
  expect(types).toEqual([...types].sort().reverse());
  return all.map(({ length }) => length);
}

const REST = isWholeRun ? (["proxy.webhook_signed", "server.webhook_claimed"] as const) : [];

describe("a webhook", () => {
  test.for<FailpointName>(["proxy.webhook_answered", ...REST.filter((point) => point.startsWith("proxy"))])(
    "whose proxy is killed at %s arrives, twice only if it had arrived before",
    async (point) => {
      await proxy.end("SIGTERM");
      startProxy(`${point}=kill`);
      const vaultId = await twoEvents();
      expect(await proxy.ended).toBe("SIGKILL");
      startProxy(UNARMED);
      expect(await arrivals(vaultId)).toEqual([point === "proxy.webhook_answered" ? 2 : 1, 1]);
    },
  );

  test.for<FailpointName>(["server.webhook_answered", ...REST.filter((point) => point.startsWith("server"))])(
    "whose server is killed at %s arrives, twice only if it had arrived before",
    async (point) => {
      // While no proxy is there nothing is sent, so the server lives until both have happened.
      await proxy.end("SIGTERM");
      await server.end("SIGTERM");
      await startServer(`${point}=kill`);
      const vaultId = await twoEvents();
      startProxy(UNARMED);
      expect(await server.ended).toBe("SIGKILL");
      // The time that the claim of the dead would have held up others.
      await database.pool().query("update webhook_lanes set due_at = clock_timestamp()");
      await startServer(UNARMED);
      expect(await arrivals(vaultId)).toEqual([point === "server.webhook_answered" ? 2 : 1, 1]);
    },
  );
});

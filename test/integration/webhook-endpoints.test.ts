/** Endpoints of webhooks: their secrets, whose they are, what is refused, and the commands for them. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { isTendonError } from "../../kit/errors.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { Installation } from "../kit/start-process.ts";
import { RUNS, useWebhookRig } from "../kit/use-webhook-rig.ts";
import { startWebhookReceiver, unwrap } from "../kit/webhook-receiver.ts";

const rig = useWebhookRig();

describe("the signing secret", () => {
  it("is changed with an overlap in which both sign, and is nowhere in the clear", async () => {
    const hooks = await rig.subscribed(RUNS);
    const { receiver, endpointId, secret } = hooks;
    const rotated = await rig.webhooks().rotateWebhookSecret({ endpointId, overlapSeconds: 3_600n });
    expect(rotated.endpoint!.oldSecretUntil).toBeDefined();
    await rig.talked();
    await eventually(() => receiver.taken.length === 2);
    for (const hook of receiver.taken) {
      expect(hook.headers["webhook-signature"]!.split(" ")).toHaveLength(2);
      for (const key of [secret, rotated.signingSecret]) unwrap(hook, key);
    }
    const last = await rig.webhooks().rotateWebhookSecret({ endpointId, overlapSeconds: 0n });
    expect(last.endpoint!.oldSecretUntil).toBeUndefined();
    await rig.talked();
    await eventually(() => receiver.taken.length === 4);
    unwrap(receiver.taken.at(-1)!, last.signingSecret);
    for (const key of [secret, rotated.signingSecret])
      expect(() => unwrap(receiver.taken.at(-1)!, key)).toThrow();
    const pool = rig.tree.database.pool();
    const { rows: tables } = await pool.query<{ name: string }>(
      "select tablename as name from pg_tables where schemaname = 'public'",
    );
    for (const { name } of tables) {
      const { rows } = await pool.query<{ text: string }>(`select t::text as text from "${name}" t`);
      const all = rows.map(({ text }) => text).join("\n");
      for (const key of [secret, rotated.signingSecret, last.signingSecret])
        expect([name, all.includes(key.slice(6, 46))]).toEqual([name, false]);
    }
    await rig.gone(hooks);
  });

  it("is moved to a new sealing key, so that the old one can go", async () => {
    const hooks = await rig.subscribed(RUNS);
    await rig.proxy.stop();
    rig.proxy = await rig.proxyWith(rig.sealingKeys[0], rig.sealingKeys[1]!);
    await eventually(async () => {
      const { rows } = await rig.tree.database
        .pool()
        .query("select 1 from webhook_secrets where sealing_key_id <> $1", [rig.sealingKeys[0].keyId]);
      return rows.length === 0;
    });
    await rig.proxy.stop();
    rig.proxy = await rig.proxyWith(rig.sealingKeys[0]);
    await rig.talked();
    await eventually(() => hooks.receiver.taken.length === 2);
    unwrap(hooks.receiver.taken[0]!, hooks.secret);
    await rig.gone(hooks);
  });

  it("is shown once: a repeat of the request gets the same endpoint without it", async () => {
    const request = { requestId: "once", url: "https://hooks.example/", enabledEvents: ["vault.deleted"] };
    const first = await rig.webhooks().createWebhookEndpoint(request);
    const again = await rig.webhooks().createWebhookEndpoint(request);
    expect(first.signingSecret).toMatch(/^whsec_/);
    expect(again).toMatchObject({ signingSecret: "", endpoint: { id: first.endpoint!.id } });
    await rig.gone({ endpointId: first.endpoint!.id });
  });
});

describe("another workspace", () => {
  it("is told nothing of this one, and finds none of its endpoints", async () => {
    const admin = rig.tree.server.client(AdminService);
    const { workspace } = await admin.createWorkspace({ name: "neighbour" });
    const made = await admin.createApiKey({ name: "n", role: Role.CLIENT, workspaceId: workspace!.id });
    const theirs = await rig.subscribed(["*"], made.secret);
    const ours = await rig.subscribed(["*"]);
    await rig.talked();
    await eventually(() => ours.receiver.taken.length >= 3);
    const neighbour = rig.webhooks(made.secret);
    expect((await neighbour.listWebhookEndpoints({})).endpoints.map(({ id }) => id)).toEqual([
      theirs.endpointId,
    ]);
    const { endpointId } = ours;
    const [delivery] = await rig.deliveries(endpointId);
    for (const call of [
      () => neighbour.getWebhookEndpoint({ endpointId }),
      () => neighbour.updateWebhookEndpoint({ endpointId, name: "mine" }),
      () => neighbour.rotateWebhookSecret({ endpointId }),
      () => neighbour.listWebhookDeliveries({ endpointId }),
      () =>
        neighbour.replayWebhookDeliveries({ endpointId, which: { case: "deliveryId", value: delivery!.id } }),
      () =>
        neighbour.replayWebhookDeliveries({
          endpointId: theirs.endpointId,
          which: { case: "deliveryId", value: delivery!.id },
        }),
      () => neighbour.deleteWebhookEndpoint({ endpointId }),
    ])
      await expect(call()).rejects.toSatisfy((error) => isTendonError(error, "NOT_FOUND"));
    expect(theirs.receiver.seen).toEqual([]);
    await rig.gone(ours);
    await rig.gone(theirs);
  });
});

it("a bad endpoint is refused with the field that is wrong", async () => {
  const good = { url: "https://hooks.example/", enabledEvents: ["*"] };
  for (const [request, field] of [
    [{ ...good, url: "hand-agent://pool/host" }, "url"],
    [{ ...good, enabledEvents: ["session.idled"] }, "enabled_events[0]"],
    [{ ...good, enabledEvents: [] }, "enabled_events"],
  ] as const)
    await expect(rig.webhooks().createWebhookEndpoint(request as typeof good)).rejects.toMatchObject({
      reason: "INVALID_FIELD",
      metadata: { field },
    });
});

describe("tendon webhook", () => {
  it("makes endpoints, puts secrets into files, and shows and replays deliveries", async () => {
    const installation = new Installation();
    const folder = await mkdtemp(join(tmpdir(), "tendon-webhooks-"));
    const receiver = await startWebhookReceiver();
    rig.keep(receiver);
    const tendon = async (...args: string[]) => {
      const env = { TENDON_URL: rig.tree.server.url, TENDON_API_KEY: rig.tree.server.adminKey };
      const { code, stdout, stderr } = await installation.tendon(["webhook", ...args, "--json"], { env });
      expect({ args, code, stderr }).toMatchObject({ code: 0 });
      return JSON.parse(stdout) as Record<string, unknown>;
    };
    try {
      const out = join(folder, "secret");
      const made = await tendon("create", receiver.url, "--events", RUNS.join(","), "--out", out);
      const { id } = made.endpoint as { id: string };
      const secret = (await readFile(out, "utf8")).trim();
      expect(made.signing_secret).toBe("");
      await rig.talked();
      await eventually(() => receiver.taken.length === 2);
      await rig.settled(id);
      unwrap(receiver.taken[0]!, secret);
      const list = await tendon("deliveries", id, "--state", "delivered", "--limit", "1");
      const [delivery] = list.deliveries as { id: string; event_type: string }[];
      expect(delivery!.event_type).toBe(RUNS[1]);
      expect(await tendon("replay", id, delivery!.id)).toEqual({ replayed: 1 });
      await eventually(() => receiver.taken.length === 3);
      await rig.gone({ endpointId: id });
    } finally {
      await installation.dispose();
      await rm(folder, { recursive: true, force: true });
    }
  });
});

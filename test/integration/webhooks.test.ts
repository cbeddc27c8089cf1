/** Webhooks from what happens to a real receiver, which verifies them as existing clients do. */
import Anthropic from "@anthropic-ai/sdk";
import { describe, expect, it } from "vitest";
import { newId } from "../../kit/ids.ts";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { MemoryService } from "../../proto/gen/tendon/v1/memory_service_pb.js";
import { StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { VaultService } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { WebhookDeliveryState, WebhookState } from "../../proto/gen/tendon/v1/webhook_service_pb.js";
import { appendWithin } from "../../server/store/postgres/append-within.ts";
import { inTransaction } from "../../server/store/postgres/transaction.ts";
import { createWebhookOutboxStore } from "../../server/store/postgres/webhook-outbox.ts";
import { eventually } from "../kit/eventually.ts";
import { startProxy } from "../kit/proxy-rig.ts";
import { startServer } from "../kit/server.ts";
import { RUNS, useWebhookRig } from "../kit/use-webhook-rig.ts";
import { startWebhookReceiver, unwrap, type WebhookReceiver } from "../kit/webhook-receiver.ts";

const rig = useWebhookRig();

const get = async (endpointId: string) => (await rig.webhooks().getWebhookEndpoint({ endpointId })).endpoint!;

/** So that nobody has to wait for the time of an attempt. */
const makeDue = (endpointId: string) =>
  rig.tree.database
    .pool()
    .query(
      "update webhook_lanes set due_at = clock_timestamp() where endpoint_id = $1 and claim_id is null",
      [endpointId],
    );

const typesAbout = ({ taken }: WebhookReceiver, id: string) =>
  taken.filter(({ data }) => data.id === id).map(({ type }) => type);

describe("what arrives", () => {
  it("is verified by existing clients, holds ids alone, and follows a session's life in order", async () => {
    const http = new Anthropic({
      baseURL: rig.tree.server.url,
      apiKey: rig.tree.server.adminKey,
      maxRetries: 0,
    });
    const receiver = await startWebhookReceiver();
    rig.keep(receiver);
    const body = { url: receiver.url, enabled_events: ["*"], name: "all", description: "of it" };
    const made = await http.post<Record<string, string>>("/v1/webhook_endpoints", { body });
    const { signing_secret: secret = "", ...shown } = made;
    expect(shown).toMatchObject({ type: "webhook_endpoint", ...body, state: "enabled", disabled_reason: "" });
    expect(secret).toMatch(/^whsec_[A-Za-z0-9+/]{43}=$/);
    const path = `/v1/webhook_endpoints/${made.id}`;
    expect(await http.get(path)).toEqual(shown);
    expect(await http.get("/v1/webhook_endpoints")).toMatchObject({ data: [shown], next_page: null });

    const sessionId = await rig.talked(2);
    await rig.tree.sessions.updateSession({ sessionId, title: "new" });
    await rig.tree.sessions.updateSession({ sessionId, title: "new" });
    await rig.tree.sessions.archiveSession({ sessionId });
    await rig.tree.sessions.deleteSession({ sessionId });
    const life = ["session.created", ...RUNS, ...RUNS, "session.updated", "session.status_terminated"];
    const whole = [...life, "session.archived", "session.deleted"];
    await eventually(() => typesAbout(receiver, sessionId).length >= whole.length);
    expect(typesAbout(receiver, sessionId)).toEqual(whole);
    const hook = receiver.taken.find(({ data }) => data.id === sessionId)!;
    const event = unwrap(hook, secret);
    expect(event).toEqual({
      type: "event",
      id: hook.headers["webhook-id"],
      created_at: expect.stringMatching(/^\d{4}-.*Z$/),
      data: {
        type: "session.created",
        id: sessionId,
        organization_id: expect.stringMatching(/^inst_/),
        workspace_id: made.workspace_id ?? expect.stringMatching(/^wrkspc_/),
      },
    });
    expect(hook.headers["content-type"]).toBe("application/json");
    expect(() => unwrap(hook, `whsec_${Buffer.alloc(32, 7).toString("base64")}`)).toThrow();
    expect(() => unwrap({ ...hook, body: hook.body.replace("created", "deleted") }, secret)).toThrow();
    await rig.settled(made.id!);
    const listed = await http.get<{ data: object[] }>(`${path}/deliveries?limit=3&states[]=delivered`);
    expect(listed.data[0]).toMatchObject({ type: "webhook_delivery", state: "delivered", last_status: 200 });
    expect(listed.data).toHaveLength(3);
    expect(await http.delete(path)).toEqual({ id: made.id, type: "webhook_endpoint_deleted" });
  });

  it("tells of agents, environments, stores, vaults and credentials, and of nothing that changes nothing", async () => {
    const hooks = await rig.subscribed(["*"]);
    const agents = rig.tree.server.client(AgentService);
    const { agent } = await agents.createAgent({ spec: { name: "a" } });
    const agentId = agent!.id;
    await agents.updateAgent({ agentId, spec: { name: "a" } });
    await agents.updateAgent({ agentId, spec: { name: "b" } });
    await agents.archiveAgent({ agentId });
    const environments = rig.tree.server.client(EnvironmentService);
    const { environment } = await environments.createEnvironment({ spec: { name: "hooked" } });
    const environmentId = environment!.id;
    await environments.updateEnvironment({ environmentId, spec: { name: "hooked" } });
    await environments.updateEnvironment({ environmentId, spec: { name: "hooked 2" } });
    await environments.archiveEnvironment({ environmentId });
    await environments.archiveEnvironment({ environmentId });
    await environments.deleteEnvironment({ environmentId });
    const memory = rig.tree.server.client(MemoryService);
    const { memoryStore } = await memory.createMemoryStore({ name: "m" });
    const memoryStoreId = memoryStore!.id;
    await memory.archiveMemoryStore({ memoryStoreId });
    await memory.deleteMemoryStore({ memoryStoreId });
    const vaults = rig.tree.server.client(VaultService);
    const vaultId = (await vaults.createVault({ displayName: "v" })).vault!.id;
    const value = { serverUrl: "https://mcp.example.com/" };
    const use = { kind: { case: "staticBearer" as const, value } };
    const secret = { form: { case: "plain" as const, value: { value: "t" } } };
    const { credential } = await vaults.createCredential({ vaultId, use, secret });
    await rig.tree.database
      .pool()
      .query("update credentials set refresh_broken = true where credential_id = $1", [credential!.id]);
    await vaults.archiveVault({ vaultId });
    await vaults.deleteVault({ vaultId });
    const wanted: [string, string[]][] = [
      [agentId, ["agent.created", "agent.updated", "agent.archived"]],
      [environmentId, ["created", "updated", "archived", "deleted"].map((word) => `environment.${word}`)],
      [memoryStoreId, ["created", "archived", "deleted"].map((word) => `memory_store.${word}`)],
      [vaultId, ["vault.created", "vault.archived", "vault.deleted"]],
      [
        credential!.id,
        ["created", "refresh_failed", "archived", "deleted"].map((word) => `vault_credential.${word}`),
      ],
    ];
    const expected = wanted.flatMap(([, types]) => types).length;
    await eventually(() => hooks.receiver.taken.length >= expected);
    for (const [id, types] of wanted) expect(typesAbout(hooks.receiver, id)).toEqual(types);
    expect(hooks.receiver.taken).toHaveLength(expected);
    const about = hooks.receiver.taken.filter(({ data }) => data.id === credential!.id);
    expect(about.map(({ data }) => data.vault_id)).toEqual(Array(4).fill(vaultId));
    await rig.gone(hooks);
  });

  it("tells of threads by their session, and of a budget once for each that is set", async () => {
    const hooks = await rig.subscribed(["*"]);
    const child = await rig.tree.agent("hooked-child", () => ({ say: "ok" }));
    const make = { name: "thread_create", input: { agent: "hooked-child", message: "go" } };
    const lead = await rig.tree.agent(
      "hooked-lead",
      (request) => {
        if (request === 1) return { calls: [make] };
        return request === 2 ? { calls: [{ name: "thread_wait" }] } : { say: "All done." };
      },
      { members: [child] },
    );
    const sessionId = await rig.tree.talk(lead);
    await rig.tree.rested(sessionId, StopReason.END_TURN);
    const [thread] = await rig.tree.threadsOf(sessionId);
    await eventually(() => typesAbout(hooks.receiver, sessionId).includes("session.status_idled"));
    const told = hooks.receiver.taken.filter(({ data }) => data.id === sessionId);
    // It waited for the thread meanwhile, which clients see as running.
    expect(told.map(({ type }) => type).filter((type) => RUNS.includes(type))).toEqual(RUNS);
    const ofThread = told.filter(({ data }) => data.session_thread_id !== undefined);
    expect(ofThread.map(({ type }) => type)).toEqual(["session.thread_created", "session.thread_idled"]);
    expect(new Set(ofThread.map(({ data }) => data.session_thread_id))).toEqual(new Set([thread!.id]));

    const spender = await rig.tree.agent("spender", () => ({ say: "Spent." }));
    const budgeted = await rig.tree.talk(spender, "go", { budget: { maxTurns: 1n } });
    await rig.tree.rested(budgeted, StopReason.END_TURN);
    const spend = async () => {
      await rig.tree.say(budgeted, "more");
      await rig.tree.rested(budgeted, StopReason.BUDGET_REACHED);
    };
    const reached = () =>
      typesAbout(hooks.receiver, budgeted).filter((type) => type.endsWith("budget_reached"));
    await spend();
    await eventually(() => reached().length === 1);
    await rig.tree.say(budgeted, "and more");
    await rig.tree.sessions.updateSession({ sessionId: budgeted, budget: { maxTurns: 2n } });
    await rig.tree.rested(budgeted, StopReason.END_TURN);
    await spend();
    await eventually(() => reached().length === 2);
    expect(hooks.receiver.taken.every((hook) => unwrap(hook, hooks.secret).type === "event")).toBe(true);
    await rig.gone(hooks);
  });
  it("tells that a session requires action when it is its thread that asks, and that it goes on", async () => {
    const hooks = await rig.subscribed([...RUNS, "session.requires_action"]);
    const custom = { name: "ask_user", description: "asks", inputSchema: `{"type":"object"}` };
    const child = await rig.tree.agent(
      "hooked-asker",
      (request) => (request === 1 ? { calls: [{ name: "ask_user" }] } : { say: "ok" }),
      { tools: [{ kind: { case: "custom", value: custom } }] },
    );
    const make = { name: "thread_create", input: { agent: "hooked-asker", message: "go" } };
    const lead = await rig.tree.agent(
      "hooked-asked",
      (request) =>
        request > 2 ? { say: "Done." } : { calls: [request === 1 ? make : { name: "thread_wait" }] },
      { members: [child] },
    );
    const sessionId = await rig.tree.talk(lead);
    const told = () => typesAbout(hooks.receiver, sessionId);
    await eventually(() => told().includes("session.requires_action"));
    const call = (await rig.tree.log(sessionId)).find(({ type }) => type === "agent.custom_tool_use");
    const payload = JSON.stringify({ custom_tool_use_id: call!.id, content: [{ type: "text", text: "so" }] });
    const answer = { type: "user.custom_tool_result", payload };
    await rig.tree.sessions.emitEvents({ sessionId, events: [answer] });
    await rig.tree.rested(sessionId, StopReason.END_TURN);
    const [starts, rests] = ["session.status_run_started", "session.status_idled"];
    await eventually(() => told().length >= 5);
    expect(told()).toEqual([starts, rests, "session.requires_action", starts, rests]);
    await rig.gone(hooks);
  });
  it("tells of each evaluation of an outcome once, also when its end is appended again", async () => {
    const type = "session.outcome_evaluation_ended";
    const hooks = await rig.subscribed([type]);
    const sessionId = await rig.talked();
    const append = (ids: string[]) =>
      inTransaction(rig.tree.database.pool(), (transaction) =>
        appendWithin(transaction, {
          sessionId,
          authority: "server",
          events: ids.map((id) => ({
            ...{ id, type: "span.outcome_evaluation_end", threadId: "", internal: undefined },
            payload: '{"result":"satisfied"}',
          })),
        }),
      );
    const [one, two, three] = [newId("event"), newId("event"), newId("event")];
    await append([one]);
    await append([one]);
    await append([two, three]);
    await eventually(() => hooks.receiver.taken.length >= 3);
    await rig.settled(hooks.endpointId);
    expect(typesAbout(hooks.receiver, sessionId)).toEqual([type, type, type]);
    expect(hooks.receiver.seen).toHaveLength(3);
    await rig.gone(hooks);
  });
});

describe("a receiver that fails", () => {
  it("holds up what came later in the same session, and nothing else; each attempt has its own time and signature", async () => {
    const hooks = await rig.subscribed(RUNS);
    const { receiver } = hooks;
    const held = await rig.tree.agent("held", () => ({ say: "Done." }));
    let fails = true;
    let failing = "";
    receiver.answer = ({ data, type }) => {
      const isFirst = type === RUNS[0] && (failing === "" || failing === data.id);
      if (fails && isFirst) failing = data.id!;
      return fails && isFirst ? 503 : 204;
    };
    const stuck = await rig.tree.talk(held);
    await eventually(() => failing === stuck);
    await rig.tree.rested(stuck, StopReason.END_TURN);
    const free = await rig.talked(2);
    await eventually(() => typesAbout(receiver, free).length === 4);
    expect(typesAbout(receiver, free)).toEqual([...RUNS, ...RUNS]);
    expect(typesAbout(receiver, stuck)).toEqual([]);
    // The receiver has seen the first attempt; that it failed is written down after that.
    const waiting = await eventually(async () => {
      const all = await rig.deliveries(hooks.endpointId, WebhookDeliveryState.PENDING);
      const found = all.filter(({ subjectId }) => subjectId === stuck);
      return found.some(({ attempts }) => attempts > 0) ? found : undefined;
    });
    expect(waiting.map(({ eventType, attempts }) => [eventType, attempts > 0])).toEqual([
      [RUNS[1], false],
      [RUNS[0], true],
    ]);
    expect(waiting[1]).toMatchObject({ lastStatus: 503, lastError: "the receiver answered with 503" });
    expect(waiting[0]!.nextAttemptAt).toBeUndefined();
    // By itself, without being told; attempts are at least a second apart.
    await eventually(() => receiver.seen.filter(({ data }) => data.id === stuck).length >= 2);
    fails = false;
    await makeDue(hooks.endpointId);
    await eventually(() => typesAbout(receiver, stuck).length === 2);
    expect(typesAbout(receiver, stuck)).toEqual(RUNS);
    const attempts = receiver.seen.filter(({ data, type }) => data.id === stuck && type === RUNS[0]);
    expect(new Set(attempts.map(({ id }) => id)).size).toBe(1);
    expect(new Set(attempts.map(({ body }) => body)).size).toBe(1);
    expect(new Set(attempts.map(({ headers }) => headers["webhook-timestamp"])).size).toBeGreaterThan(1);
    for (const hook of attempts) unwrap(hook, hooks.secret);
    await rig.gone(hooks);
  });

  it("that is down is told everything once it is up, and what failed for a day is dead, with a record", async () => {
    const hooks = await rig.subscribed(RUNS);
    const { receiver, endpointId } = hooks;
    await receiver.close();
    const sessionId = await rig.talked(2);
    const first = await eventually(async () =>
      (await rig.deliveries(endpointId)).find(({ attempts, lastError }) => attempts > 0 && lastError !== ""),
    );
    expect(first).toMatchObject({ lastStatus: 0, lastError: expect.stringContaining("ECONNREFUSED") });
    expect(first.lastError).not.toContain("canary");
    expect((await get(endpointId)).failingSince).toBeDefined();
    await rig.tree.database
      .pool()
      .query(
        "update webhook_deliveries set first_try_at = first_try_at - interval '25 hours' where delivery_id = $1",
        [first.id],
      );
    await makeDue(endpointId);
    const [dead] = await eventually(async () => {
      const found = await rig.deliveries(endpointId, WebhookDeliveryState.DEAD);
      return found.length > 0 ? found : undefined;
    });
    expect(dead).toMatchObject({ id: first.id, eventType: RUNS[0] });
    await receiver.open();
    await makeDue(endpointId);
    await eventually(() => receiver.taken.length === 3);
    expect(typesAbout(receiver, sessionId)).toEqual([RUNS[1], ...RUNS]);
    await eventually(async () => (await get(endpointId)).failingSince === undefined);

    await rig.settled(endpointId);
    // One, then all that there is: the same ids, and what is older goes first.
    const { replayed } = await rig.webhooks().replayWebhookDeliveries({
      endpointId,
      which: { case: "deliveryId", value: dead!.id },
    });
    expect(replayed).toBe(1);
    await eventually(() => receiver.taken.length === 4);
    await rig.settled(endpointId);
    expect(receiver.taken.at(-1)!.id).toBe(dead!.eventId);
    const all = await rig.webhooks().replayWebhookDeliveries({
      endpointId,
      which: { case: "since", value: dead!.createdAt! },
    });
    expect(all.replayed).toBe(4);
    await eventually(() => receiver.taken.length === 8);
    expect(receiver.taken.slice(4).map(({ type }) => type)).toEqual([...RUNS, ...RUNS]);
    expect(new Set(receiver.taken.map(({ id }) => id)).size).toBe(4);
    await rig.gone(hooks);
  });

  it("with a redirect or 410 disables its endpoint: nothing is noted then, and what waits is sent once it is enabled", async () => {
    const hooks = await rig.subscribed(RUNS);
    const { receiver, endpointId } = hooks;
    const other = await startWebhookReceiver();
    rig.keep(other);
    let letGo = () => {};
    const gate = new Promise<void>((resolve) => {
      letGo = resolve;
    });
    receiver.answer = () => gate.then(() => ({ status: 307, headers: { location: other.url } }));
    const sessionId = await rig.talked();
    letGo();
    const disabled = await eventually(async () => {
      const endpoint = await get(endpointId);
      return endpoint.state === WebhookState.DISABLED ? endpoint : undefined;
    });
    expect(disabled.disabledReason).toBe("redirected");
    expect(other.seen).toEqual([]);
    await rig.talked();
    receiver.answer = () => 200;
    await rig.webhooks().updateWebhookEndpoint({ endpointId, state: WebhookState.ENABLED });
    await eventually(() => receiver.taken.length === 2);
    expect(typesAbout(receiver, sessionId)).toEqual(RUNS);
    await rig.settled(endpointId);
    expect(await rig.deliveries(endpointId)).toHaveLength(2);
    receiver.answer = () => 410;
    await rig.talked();
    await eventually(async () => (await get(endpointId)).disabledReason === "gone");
    await rig.gone(hooks);
  });
});

describe("what is kept", () => {
  it("has bounds: a backlog disables its endpoint, and what is old or too much is forgotten", async () => {
    const hooks = await rig.subscribed(RUNS);
    const { receiver, endpointId } = hooks;
    await receiver.close();
    await rig.talked(2);
    const outbox = createWebhookOutboxStore(rig.tree.database.pool());
    const long = 86_400_000;
    await eventually(async () => (await rig.deliveries(endpointId)).length === 4);
    await outbox.prune({ olderThanMs: long, perEndpoint: 3 });
    expect((await get(endpointId)).disabledReason).toBe("backlog_full");
    expect(await rig.deliveries(endpointId, WebhookDeliveryState.PENDING)).toHaveLength(4);
    await receiver.open();
    await rig.webhooks().updateWebhookEndpoint({ endpointId, state: WebhookState.ENABLED });
    await eventually(() => receiver.taken.length === 4);
    await rig.settled(endpointId);
    await outbox.prune({ olderThanMs: long, perEndpoint: 1 });
    expect((await rig.deliveries(endpointId)).map(({ eventType }) => eventType)).toEqual([RUNS[1]]);
    await outbox.prune({ olderThanMs: 0, perEndpoint: 1 });
    const pool = rig.tree.database.pool();
    expect((await pool.query("select 1 from webhook_events")).rowCount).toBe(0);
    expect(
      (await pool.query("select 1 from webhook_lanes where endpoint_id = $1", [endpointId])).rowCount,
    ).toBe(0);
    expect(await rig.deliveries(endpointId)).toEqual([]);
    await rig.gone(hooks);
  });
});

describe("two servers with two proxies", () => {
  it("send everything once, in order for each session, and go on when one of each has stopped", async () => {
    const hooks = await rig.subscribed(RUNS);
    const { receiver, endpointId } = hooks;
    const second = await startServer({ databaseUrl: rig.tree.database.url, peers: true });
    const key = await second.localKey("proxy");
    const other = await startProxy({ url: second.url, key, keys: rig.proxy.keys, webhooksTo: "anywhere" });
    const sessions = await Promise.all(Array.from({ length: 8 }, () => rig.talked(2)));
    await eventually(() => receiver.taken.length >= 32);
    // Whoever stops now leaves nothing behind of which it is not known whether it has arrived.
    await rig.settled(endpointId);
    await other.stop();
    await second.stop();
    const later = await rig.talked(2);
    await eventually(() => typesAbout(receiver, later).length === 4);
    for (const id of [...sessions, later]) expect(typesAbout(receiver, id)).toEqual([...RUNS, ...RUNS]);
    await rig.settled(endpointId);
    expect(receiver.seen).toHaveLength(36);
    expect(await rig.deliveries(endpointId, WebhookDeliveryState.DELIVERED)).toHaveLength(36);
    await rig.gone(hooks);
  });
});

/** What models used, as sessions, their copies and workspaces show it, with real brains and a model whose price is known. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { listCostOf } from "../../harness/list-price.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { type Brains, SCRIPTED, startBrains } from "../kit/brains.ts";
import { eventually } from "../kit/eventually.ts";
import { type FakeMessagesApi, startFakeMessagesApi, turn } from "../kit/fake-messages-api.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startServer, type TestServer } from "../kit/server.ts";

const USED = { inputTokens: 1_000, outputTokens: 200, cacheReadTokens: 3_000 };
const COST = listCostOf("claude-opus-5-5", {
  inputTokens: 1_000,
  outputTokens: 200,
  cacheReadInputTokens: 3_000,
  cacheCreationInputTokens: 0,
})!.nanoUsd;

let database: TestDatabase;
let server: TestServer;
let api: FakeMessagesApi;
let brains: Brains;
let key = "";
let workspaceId = "";

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  api = await startFakeMessagesApi({ script: () => turn(["ok"], { usage: USED }) });
  const admin = server.client(AdminService);
  const { workspace } = await admin.createWorkspace({ name: "counted" });
  workspaceId = workspace?.id ?? "";
  key = (await admin.createApiKey({ name: "k", role: Role.ADMIN, workspaceId })).secret;
  await server.client(EnvironmentService, key).createEnvironment({ spec: { name: "d" }, makeDefault: true });
  const model = { url: api.url, apiKey: api.apiKey };
  brains = await startBrains({ url: server.url, key: await server.localKey("harness"), model });
});
afterAll(async () => {
  await brains?.stop();
  await server?.stop();
  await api?.stop();
  await database?.drop();
});

const message = { type: "user.message", payload: '{"content":[{"type":"text","text":"go"}]}' };
const sessions = () => server.client(SessionService, key);

async function rested(sessionId: string, modelRequests: bigint) {
  return eventually(
    async () => {
      const { session } = await sessions().getSession({ sessionId });
      const rests = session?.status === SessionStatus.IDLE && !session.hasWork;
      return rests && session.usage?.modelRequests === modelRequests ? session : undefined;
    },
    { withinMs: 60_000 },
  );
}

async function talk(spec: object): Promise<string> {
  const { agent } = await server.client(AgentService, key).createAgent({ spec: { name: "t", ...spec } });
  const request = { agentId: agent?.id ?? "", initialEvents: [message] };
  return (await sessions().createSession(request)).session?.id ?? "";
}

const usage = () => server.client(AdminService, key).getWorkspaceUsage({});

describe("what models used", () => {
  test("is summed by session and workspace, with list prices, and stays when a session is erased", async () => {
    const priced = await talk({ model: { id: "claude-opus-5-5" } });
    await rested(priced, 1n);
    await sessions().emitEvents({ sessionId: priced, events: [message] });
    const session = await rested(priced, 2n);
    expect(session.usage).toMatchObject({
      inputTokens: 2_000n,
      outputTokens: 400n,
      cacheReadInputTokens: 6_000n,
      listCostNanoUsd: BigInt(2 * COST),
      unpricedRequests: 0n,
    });
    expect(session.usage!.activeMs).toBeGreaterThan(0n);
    const { events } = await sessions().getEvents({
      sessionId: priced,
      types: ["session.usage", "span.model_request_end"],
    });
    expect(JSON.parse(events.at(-1)!.payload).usage.list_cost).toEqual({
      amount: "2",
      currency: "USD",
      nano_usd: 2 * COST,
      unpriced_requests: 0,
    });
    expect(JSON.parse(events[0]!.payload).list_cost).toMatchObject({ nano_usd: COST });

    // Who has no price is not free: it is said.
    const unpriced = await talk({ model: { id: "somebody-elses-model" } });
    expect((await rested(unpriced, 1n)).usage).toMatchObject({ listCostNanoUsd: 0n, unpricedRequests: 1n });
    const noModel = await talk(SCRIPTED);
    expect((await rested(noModel, 1n)).usage).toMatchObject({ listCostNanoUsd: 0n, unpricedRequests: 1n });

    const before = await usage();
    expect(before).toMatchObject({
      sessions: 3n,
      usage: {
        inputTokens: 3_000n,
        cacheReadInputTokens: 9_000n,
        modelRequests: 4n,
        listCostNanoUsd: BigInt(2 * COST),
        unpricedRequests: 2n,
      },
    });
    await sessions().archiveSession({ sessionId: priced });
    await sessions().deleteSession({ sessionId: priced });
    const after = await usage();
    expect(after.sessions).toBe(2n);
    expect({ ...after.usage, activeMs: 0n }).toEqual({ ...before.usage, activeMs: 0n });
  });

  test("of an origin is not its fork's", async () => {
    const origin = await talk({ model: { id: "claude-opus-5-5" } });
    const { head } = await rested(origin, 1n);
    const { session: fork } = await sessions().forkSession({ sessionId: origin, position: head });
    expect(fork?.usage).toMatchObject({ modelRequests: 0n, listCostNanoUsd: 0n });
  });

  test("is shown to admins of the workspace, and of no other", async () => {
    const admin = server.client(AdminService);
    const { workspace } = await admin.createWorkspace({ name: "other" });
    const other = (
      await admin.createApiKey({ name: "k", role: Role.ADMIN, workspaceId: workspace?.id ?? "" })
    ).secret;
    const asked = server.client(AdminService, other).getWorkspaceUsage({ workspaceId });
    await expect(asked).rejects.toMatchObject({ reason: "NOT_FOUND" });
    expect(await admin.getWorkspaceUsage({ workspaceId: workspace?.id ?? "" })).toMatchObject({
      sessions: 0n,
    });
    const client = (await admin.createApiKey({ name: "k", role: Role.CLIENT, workspaceId })).secret;
    await expect(server.client(AdminService, client).getWorkspaceUsage({})).rejects.toMatchObject({
      reason: "ROLE_NOT_ALLOWED",
    });
  });
});

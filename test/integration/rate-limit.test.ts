/** How many requests a key may make, on all wires: what is refused, how callers learn when to come back, and what is never refused. */
import Anthropic from "@anthropic-ai/sdk";
import { fromBinary } from "@bufbuild/protobuf";
import { anyUnpack, durationMs } from "@bufbuild/protobuf/wkt";
import { credentials, Client as GrpcClient, Metadata, type ServiceError, status } from "@grpc/grpc-js";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { RetryInfoSchema } from "../../proto/gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "../../proto/gen/google/rpc/status_pb.js";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { failure } from "../kit/failure.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startServer, type TestServer } from "../kit/server.ts";

const BURST = 4;
const PER_MINUTE = 1;

let database: TestDatabase;
/** Without a limit, as it is unless somebody sets one. */
let free: TestServer;
/** Where a key that has used its requests up gets the next one after a minute. */
let slow: TestServer;
/** Where it gets one every tenth of a second. */
let quick: TestServer;
let workspaceId: string;

beforeAll(async () => {
  database = await createTestDatabase();
  free = await startServer({ databaseUrl: database.url });
  const limited = (perMinute: number, burst: number) =>
    startServer({
      databaseUrl: database.url,
      settings: {
        TENDON_RATE_LIMIT_PER_MINUTE: String(perMinute),
        TENDON_RATE_LIMIT_BURST: String(burst),
      },
    });
  slow = await limited(PER_MINUTE, BURST);
  quick = await limited(600, 1);
  const { workspace } = await free.client(AdminService).createWorkspace({ name: "limited" });
  workspaceId = workspace!.id;
});

afterAll(async () => {
  for (const server of [slow, quick, free]) await server?.stop();
  await database?.drop();
});

async function newKey(): Promise<string> {
  const request = { name: "app", role: Role.CLIENT, workspaceId };
  return (await free.client(AdminService).createApiKey(request)).secret;
}

const at = (server: TestServer, authToken: string, more: object = {}) =>
  new Anthropic({ baseURL: server.url, authToken, apiKey: null, maxRetries: 0, ...more });

/** A key that has no request left at the slow server. */
async function spentKey(): Promise<string> {
  const key = await newKey();
  for (let n = 0; n < BURST; n += 1) await at(slow, key).beta.agents.list();
  return key;
}

const LIST_AGENTS = "/tendon.v1.AgentService/ListAgents";

/** What a gRPC client that knows nothing of ours reads in the trailers. */
function retryDelayMs(error: ServiceError): number | undefined {
  const [bytes] = error.metadata.get("grpc-status-details-bin");
  const details = fromBinary(StatusSchema, bytes as Buffer).details.map((any) =>
    anyUnpack(any, RetryInfoSchema),
  );
  const delay = details.find((info) => info !== undefined)?.retryDelay;
  return delay && durationMs(delay);
}

function rawCall(server: TestServer, key: string): Promise<ServiceError | undefined> {
  const client = new GrpcClient(`127.0.0.1:${server.port}`, credentials.createInsecure());
  const metadata = new Metadata();
  metadata.set("authorization", `Bearer ${key}`);
  const same = (bytes: Buffer) => bytes;
  return new Promise((resolve) => {
    client.makeUnaryRequest(LIST_AGENTS, same, same, Buffer.alloc(0), metadata, {}, (error) => {
      client.close();
      resolve(error ?? undefined);
    });
  });
}

describe("a key that has used up its requests", () => {
  it("gets 429 with the envelope and the time to wait, while other keys and other replicas do not notice", async () => {
    const key = await spentKey();
    const refused = await at(slow, key)
      .beta.agents.list()
      .then(
        () => undefined,
        (error: InstanceType<typeof Anthropic.APIError>) => error,
      );
    expect(refused).toBeInstanceOf(Anthropic.RateLimitError);
    expect(refused).toMatchObject({
      status: 429,
      error: {
        type: "error",
        error: {
          type: "rate_limit_error",
          message: expect.stringMatching(
            /^the key's limit of 1 requests a minute is reached; try again in \d+ ms$/,
          ),
          details: { reason: "RATE_LIMITED", limit: "requests_per_minute", per_minute: "1" },
        },
        request_id: expect.stringMatching(/./),
      },
    });
    const headers = refused!.headers!;
    const [seconds, ms] = [Number(headers.get("retry-after")), Number(headers.get("retry-after-ms"))];
    expect([seconds > 0, seconds <= 60, Math.ceil(ms / 1_000)]).toEqual([true, true, seconds]);
    expect(headers.get("x-should-retry")).toBeNull();
    await at(slow, await newKey()).beta.agents.list();
    await at(free, key).beta.agents.list();
    await at(quick, key, { maxRetries: 9 }).beta.agents.list();
  });

  it("is refused on every wire, and over gRPC told when to come back", async () => {
    const key = await spentKey();
    const error = await failure(slow.client(AgentService, key).listAgents({}));
    expect([error.reason, error.code]).toEqual(["RATE_LIMITED", status.RESOURCE_EXHAUSTED]);
    const raw = (await rawCall(slow, key))!;
    expect(raw.code).toBe(status.RESOURCE_EXHAUSTED);
    expect(retryDelayMs(raw)).toBeGreaterThan(0);
    const connect = await slow.fetch(LIST_AGENTS, {
      method: "POST",
      headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
      body: "{}",
    });
    const { code, details } = (await connect.json()) as { code: string; details: { type: string }[] };
    expect([connect.status, code]).toEqual([429, "resource_exhausted"]);
    expect(details.map(({ type }) => type)).toEqual(["google.rpc.ErrorInfo", "google.rpc.RetryInfo"]);
  });

  it("has spent one for each request over HTTP, however much a request asks of the server", async () => {
    const client = at(slow, await newKey());
    const agent = await client.beta.agents.create({ name: "a", model: "m" });
    const environment = await client.beta.environments.create({ name: `e ${agent.id}` });
    // Reads the agent and makes a session.
    const session = await client.beta.sessions.create({
      agent: { type: "agent_with_overrides", id: agent.id, system: "Only here." },
      environment_id: environment.id,
    });
    // Appends and reads what stands in the log.
    const content = [{ type: "text" as const, text: "hello" }];
    const events = [{ type: "user.message" as const, content }];
    await client.beta.sessions.events.send(session.id, { events });
    await expect(client.beta.sessions.retrieve(session.id)).rejects.toMatchObject({ status: 429 });
  });

  it("is not refused what answers a call, interrupts, or ends something", async () => {
    const key = await newKey();
    const { beta } = at(free, key);
    const agent = await beta.agents.create({ name: "a", model: "m" });
    const environment = await beta.environments.create({ name: `e ${agent.id}` });
    const session = await beta.sessions.create({ agent: agent.id, environment_id: environment.id });
    for (let n = 0; n < BURST; n += 1) await at(slow, key).beta.agents.list();
    const send = (event: object) =>
      at(slow, key)
        .beta.sessions.events.send(session.id, { events: [event as never] })
        .then(
          () => 200,
          (error: { status: number }) => error.status,
        );
    const content = [{ type: "text", text: "x" }];
    const unknown = { tool_use_id: "sevt_nobody", content };
    expect(await send({ type: "user.message", content })).toBe(429);
    expect(await send({ type: "user.custom_tool_result", custom_tool_use_id: "sevt_no", content })).toBe(400);
    expect(await send({ type: "user.tool_result", ...unknown })).toBe(400);
    expect(await send({ type: "user.tool_confirmation", tool_use_id: "sevt_no", result: "allow" })).toBe(400);
    expect(await send({ type: "user.interrupt" })).toBe(200);
    await slow.client(AdminService, key).stopSessions({});
    await expect(at(slow, key).beta.sessions.archive(session.id)).rejects.toMatchObject({ status: 429 });
  });
});

describe("who has no limit", () => {
  it("are workers of self-hosted environments: their polls and heartbeats are never refused", async () => {
    const client = at(free, await newKey());
    const environment = await client.beta.environments.create({
      name: "self-hosted",
      config: { type: "self_hosted" },
    });
    const { key } = await client.post<{ key: string }>(`/v1/environments/${environment.id}/keys`, {
      body: {},
    });
    const { work } = at(slow, key).beta.environments;
    const beat = { environment_id: environment.id, expected_last_heartbeat: "NO_HEARTBEAT" };
    for (let n = 0; n < BURST + 2; n += 1) {
      expect(await work.poll(environment.id)).toBeNull();
      await expect(work.heartbeat("work_nobody", beat)).rejects.toMatchObject({ status: 404 });
    }
  });

  it("is everybody, unless the operator sets a limit", async () => {
    const client = at(free, await newKey());
    for (let n = 0; n < 30; n += 1) await client.beta.agents.list({ limit: 1 });
  });
});

describe("the official client", () => {
  it("waits as long as it is told, and asks again by itself", async () => {
    const refusals: string[] = [];
    const watching: typeof fetch = async (url, init) => {
      const response = await fetch(url, init);
      if (response.status === 429) refusals.push(response.headers.get("retry-after-ms")!);
      return response;
    };
    const client = at(quick, await newKey(), { maxRetries: 5, fetch: watching });
    // Two at once: on a slow machine one after the other finds its next one there.
    while (refusals.length < 2) await Promise.all([client.beta.agents.list(), client.beta.agents.list()]);
    expect(refusals.every((ms) => Number(ms) > 0 && Number(ms) <= 100)).toBe(true);
  });
});

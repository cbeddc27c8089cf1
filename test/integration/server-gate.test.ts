import { randomBytes } from "node:crypto";
import { join } from "node:path";
import type { DescMethod } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { afterAll, beforeAll, expect, test } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { isTendonError, type Reason } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { loadOrCreateKeyFile, type SigningKey } from "../../kit/sign/key-file.ts";
import { hashSecret } from "../../kit/sign/secrets.ts";
import { SESSION_TOKEN_AUDIENCE, signToken } from "../../kit/sign/token.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { ProxyService } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { PrincipalKind } from "../../server/ports/principal.ts";
import { CONTRACT_SERVICES, callersOf, PRINCIPAL_KINDS } from "../../server/rpc/policy.ts";
import { createSessionTokens } from "../../server/rpc/session-tokens.ts";
import { createPostgresStore } from "../../server/store/postgres/store.ts";
import { failure } from "../kit/failure.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { promised } from "../kit/promised.ts";
import { startServer, type TestServer } from "../kit/server.ts";

let database: TestDatabase;
let server: TestServer;
let second: TestServer;
let workspaceId: string;
/** How far the time of day of the second server is ahead. */
let aheadMs = 0;

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url, recheckEveryMs: 100 });
  const clock = { ...systemClock, nowMs: () => systemClock.nowMs() + aheadMs };
  second = await startServer({ databaseUrl: database.url, recheckEveryMs: 100, clock });
  const { workspace } = await server.client(AdminService).getWorkspace({});
  workspaceId = workspace!.id;
});
afterAll(async () => {
  await Promise.allSettled([server?.stop(), second?.stop()]);
  await database?.drop();
});

async function makeKey(role: Role, name = "a test's key"): Promise<{ id: string; secret: string }> {
  const bound = role === Role.CLIENT ? { workspaceId } : {};
  const { apiKey, secret } = await server.client(AdminService).createApiKey({ name, role, ...bound });
  return { id: apiKey!.id, secret };
}

async function enrolHandAgent(): Promise<{ id: string; key: SigningKey }> {
  const key = await loadOrCreateKeyFile(join(server.dataDir, `agent-${randomBytes(4).toString("hex")}.key`));
  const id = newId("handAgent");
  await database
    .pool()
    .query(
      "insert into hand_agents (hand_agent_id, workspace_id, pool, public_key, join_token_id) values ($1, $2, 'build', $3, 'jointok_x')",
      [id, workspaceId, Buffer.from(key.publicKey.x, "base64url")],
    );
  return { id, key };
}

const agentToken = (agent: { id: string; key: SigningKey }, ttlMs = 60_000, audience = "tendon") =>
  signToken(agent.key, { audience, subject: agent.id }, ttlMs, systemClock);

async function sessionTokens(of: TestServer) {
  const key = await loadOrCreateKeyFile(join(of.dataDir, "session-token.key"));
  const { replicas } = createPostgresStore(database.pool());
  return createSessionTokens({ key, replicas, clock: systemClock });
}

async function sessionToken(of: TestServer): Promise<string> {
  const claims = { sessionId: newId("session"), workspaceId, epoch: 7n };
  return (await (await sessionTokens(of)).issue(claims)).token;
}

/** A credential for each column of the policy that has one in this build. */
async function credentials(): Promise<Partial<Record<PrincipalKind, string>>> {
  return {
    admin: server.adminKey,
    client: (await makeKey(Role.CLIENT)).secret,
    harness: await server.localKey("harness"),
    proxy: await server.localKey("proxy"),
    peer: (await makeKey(Role.PEER)).secret,
    hand_agent: await agentToken(await enrolHandAgent()),
    session: await sessionToken(server),
    anonymous: "",
  };
}

/** Calls the method with an empty request and says why it failed, if it did. */
async function reasonOf(method: DescMethod, credential: string): Promise<Reason | undefined> {
  const client = server.client(method.parent, credential) as Record<string, (...args: unknown[]) => unknown>;
  const call = client[method.localName]!;
  const options = { deadlineMs: 60_000 };
  try {
    if (method.methodKind === "unary") await call({}, options);
    else if (method.methodKind === "server_streaming") await drain(call({}, options));
    else if (method.methodKind === "client_streaming")
      await (call(options) as { end(): Promise<unknown> }).end();
    else {
      const bidi = call(options) as { end(): void; responses: AsyncIterable<unknown> };
      bidi.end();
      await drain(bidi.responses);
    }
    return undefined;
  } catch (error) {
    if (isTendonError(error)) return error.reason;
    throw error;
  }
}

async function drain(items: unknown): Promise<void> {
  for await (const _ of items as AsyncIterable<unknown>);
}

test("every method lets through exactly the principals of its row, over the wire", async () => {
  const held = await credentials();
  const wrong: string[] = [];
  for (const method of CONTRACT_SERVICES.flatMap(({ methods }) => methods)) {
    for (const kind of PRINCIPAL_KINDS) {
      const credential = held[kind];
      if (credential === undefined) continue;
      const reason = await reasonOf(method, credential);
      const refused = reason === "ROLE_NOT_ALLOWED" || reason === "UNAUTHENTICATED";
      const allowed = callersOf(method)!.includes(kind);
      const expected = kind === "anonymous" ? "UNAUTHENTICATED" : "ROLE_NOT_ALLOWED";
      if (allowed ? refused : reason !== expected) wrong.push(`${method.name} as ${kind}: ${reason}`);
    }
  }
  expect(wrong).toEqual([]);
});

test("a missing, malformed, unknown or oversized credential is UNAUTHENTICATED on the gRPC wire", async () => {
  const call = (key: string) => failure(server.client(AgentService, key).listAgents({}));
  expect((await call("")).message).toContain("Authorization: Bearer");
  expect((await call("tk_client_nobody-has-this-key")).reason).toBe("UNAUTHENTICATED");
  expect((await call("a.b.c")).reason).toBe("UNAUTHENTICATED");
  expect((await call("x".repeat(8_193))).reason).toBe("UNAUTHENTICATED");
});

test("plain HTTP callers may send the key as bearer token or as X-Api-Key", async () => {
  const list = async (headers: Record<string, string>) => {
    const init = { method: "POST", headers: { "content-type": "application/json", ...headers }, body: "{}" };
    const response = await server.fetch("/tendon.v1.AgentService/ListAgents", init);
    return { status: response.status, body: await response.text(), id: response.headers.get("request-id") };
  };
  expect((await list({ "x-api-key": server.adminKey })).status).toBe(200);
  const good = await list({ authorization: `bearer ${server.adminKey}` });
  expect(good).toMatchObject({ status: 200, id: expect.stringMatching(/^req_/) });
  expect(await list({})).toMatchObject({ status: 401 });
  const basic = await list({ authorization: "Basic dXNlcjpwYXNz" });
  expect(basic.status).toBe(401);
  expect(basic.body).not.toContain("dXNlcjpwYXNz");
});

test("an expired key says KEY_EXPIRED", async () => {
  const secret = "tk_client_expired-long-ago-and-for-good";
  await database
    .pool()
    .query(
      "insert into api_keys (api_key_id, workspace_id, name, role, hint, secret_hash, expires_at) values ($1, $2, 'old', 'client', '', $3, now() - interval '1 second')",
      [newId("apiKey"), workspaceId, Buffer.from(hashSecret(secret), "hex")],
    );
  expect((await failure(server.client(AgentService, secret).listAgents({}))).reason).toBe("KEY_EXPIRED");
});

test("a key that expires while it is remembered stops working when its time comes", async () => {
  const expiresAt = timestampFromMs(Date.now() + 3_600_000);
  const request = { name: "short", role: Role.CLIENT, workspaceId, expiresAt };
  const { secret } = await server.client(AdminService).createApiKey(request);
  const agents = second.client(AgentService, secret);
  await agents.listAgents({});
  aheadMs = 3_600_000;
  expect((await failure(agents.listAgents({}))).reason).toBe("KEY_EXPIRED");
  aheadMs = 0;
});

test("a revoked key is refused at once by its replica, and within 10 s by another that had just used it", async () => {
  const { id, secret } = await makeKey(Role.CLIENT);
  const elsewhere = second.client(AgentService, secret);
  await server.client(AgentService, secret).listAgents({});
  await elsewhere.listAgents({});
  await server.client(AdminService).revokeApiKey({ apiKeyId: id });
  expect((await failure(server.client(AgentService, secret).listAgents({}))).reason).toBe("UNAUTHENTICATED");
  await expect
    .poll(
      async () =>
        (
          await elsewhere.listAgents({}).then(
            () => undefined,
            (error) => error,
          )
        )?.reason,
      {
        timeout: promised(11_000),
      },
    )
    .toBe("UNAUTHENTICATED");
});

test("a key's last use is noted to the minute", async () => {
  const { id, secret } = await makeKey(Role.CLIENT, "used");
  await server.client(AgentService, secret).listAgents({});
  await expect
    .poll(async () => {
      const { apiKeys } = await server.client(AdminService).listApiKeys({ pageSize: 100 });
      const used = apiKeys.find((key) => key.id === id)?.lastUsedAt;
      return used === undefined ? undefined : Number(used.seconds) % 60;
    })
    .toBe(0);
});

test("an open stream ends with UNAUTHENTICATED once its key is revoked, whatever either side is doing", async () => {
  const { id, secret } = await makeKey(Role.PROXY);
  const call = server.client(ProxyService, secret).connect();
  await call.send(proxyHello());
  const responses = call.responses[Symbol.asyncIterator]();
  expect((await responses.next()).value.kind.case).toBe("welcome");
  await server.client(AdminService).revokeApiKey({ apiKeyId: id });
  const ended = (async () => {
    for (;;) if ((await responses.next()).done) return;
  })();
  expect(await failure(ended)).toMatchObject({
    reason: "UNAUTHENTICATED",
    message: "the API key was revoked",
  });
  await expect.poll(async () => (await server.client(AdminService).getStatus({})).proxies.length).toBe(0);
});

test("an open stream on the Connect wire ends with the same error", async () => {
  const { agent } = await server.client(AgentService).createAgent({ spec: { name: "watched" } });
  const environment = { spec: { name: "watched" }, makeDefault: true };
  await server.client(EnvironmentService).createEnvironment(environment);
  const { session } = await server.client(SessionService).createSession({ agentId: agent!.id });
  const { id, secret } = await makeKey(Role.CLIENT);
  const message = Buffer.from(JSON.stringify({ sessionId: session!.id }));
  const head = Buffer.alloc(5);
  head.writeUInt32BE(message.length, 1);
  const response = await server.fetch("/tendon.v1.SessionService/WatchEvents", {
    method: "POST",
    headers: { "content-type": "application/connect+json", "x-api-key": secret },
    body: Buffer.concat([head, message]),
  });
  expect(response.status).toBe(200);
  await server.client(AdminService).revokeApiKey({ apiKeyId: id });
  expect(await response.text()).toMatch(/"code":"unauthenticated","message":"the API key was revoked"/);
});

function proxyHello() {
  // RFC 8037's example key and its thumbprint.
  const jwk = { kty: "OKP", crv: "Ed25519", x: "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" };
  const keyId = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k";
  const value = {
    instanceId: newId("proxy"),
    protocolVersion: 1,
    build: "test",
    url: "http://127.0.0.1:7401",
    sealingKeys: [{ keyId, publicJwk: JSON.stringify(jwk) }],
  };
  return { kind: { case: "hello" as const, value } };
}

test("a hand agent is known by the key it enrolled with, for tokens of at most 5 minutes meant for Tendon", async () => {
  const agent = await enrolHandAgent();
  const method = CONTRACT_SERVICES.flatMap(({ methods }) => methods).find(
    ({ name, parent }) => parent.name === "HandAgentService" && name === "StreamTransfer",
  )!;
  const passes = async (token: string) => {
    const reason = await reasonOf(method, token);
    return reason !== "UNAUTHENTICATED" && reason !== "KEY_EXPIRED" && reason !== "ROLE_NOT_ALLOWED";
  };
  expect(await passes(await agentToken(agent, 300_000))).toBe(true);
  expect(await passes(await agentToken(agent, 600_000))).toBe(false);
  expect(await passes(await agentToken(agent, 60_000, "elsewhere"))).toBe(false);
  const stranger = await enrolHandAgent();
  expect(await passes(await agentToken({ id: agent.id, key: stranger.key }))).toBe(false);
  expect(await passes(await agentToken({ id: newId("handAgent"), key: agent.key }))).toBe(false);

  await server.client(AdminService).revokeHandAgent({ handAgentId: agent.id });
  expect(await reasonOf(method, await agentToken(agent))).toBe("HAND_AGENT_REVOKED");
});

test("a session token of one replica is good on another, and a forged one nowhere", async () => {
  const tokens = await sessionTokens(second);
  const claims = { sessionId: newId("session"), workspaceId, epoch: 41n };
  const { token } = await (await sessionTokens(server)).issue(claims);
  expect(await tokens.verify(token)).toEqual(claims);

  const outsider = await loadOrCreateKeyFile(join(server.dataDir, "outsider.key"));
  const named = { audience: SESSION_TOKEN_AUDIENCE, subject: claims.sessionId };
  const forged = await signToken(
    outsider,
    { ...named, claims: { workspace: workspaceId, epoch: "41" } },
    60_000,
    systemClock,
  );
  expect((await failure(tokens.verify(forged))).reason).toBe("UNAUTHENTICATED");
});

test("the health service and reflection answer without a credential, and also to a stale one", async () => {
  const body = {
    method: "POST",
    headers: { "content-type": "application/json", "x-api-key": "tk_stale" },
    body: "{}",
  };
  const response = await server.fetch("/grpc.health.v1.Health/Check", body);
  expect(await response.json()).toEqual({ status: "SERVING" });
});

test("a text with U+0000 is the caller's mistake, not ours", async () => {
  const request = { name: "a\0b", role: Role.ADMIN };
  expect((await failure(server.client(AdminService).createApiKey(request))).reason).toBe("INVALID_FIELD");
  expect((await failure(server.client(AgentService).getAgent({ agentId: "agent_\0" }))).reason).toBe(
    "INVALID_FIELD",
  );
});

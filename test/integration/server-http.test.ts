import { randomBytes } from "node:crypto";
import http from "node:http";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { dial } from "../../kit/dial/dial.ts";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { loadOrCreateKeyFile } from "../../kit/sign/key-file.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import {
  ProxyService,
  type ProxyServiceConnectResponse,
} from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import { createPostgresStore } from "../../server/store/postgres/store.ts";
import { failure } from "../kit/failure.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { promised } from "../kit/promised.ts";
import { startServer, type TestServer } from "../kit/server.ts";
import { createCertificates } from "../kit/test-certificates.ts";

let database: TestDatabase;
let server: TestServer;

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
});
afterAll(async () => {
  await server?.stop();
  await database?.drop();
});

test("an unknown path is a 404 with the error envelope, a wrong method a 405, both with a request id", async () => {
  const unknown = await server.fetch("/v2/nothing?x=1", { method: "POST", body: "{}" });
  const body = await unknown.json();
  expect(unknown.status).toBe(404);
  expect(body).toEqual({
    type: "error",
    error: { type: "not_found_error", message: "nothing here answers POST /v2/nothing" },
    request_id: unknown.headers.get("request-id"),
  });
  const wrong = await server.fetch("/healthz", { method: "DELETE" });
  expect(wrong.status).toBe(405);
  expect(wrong.headers.get("allow")).toBe("GET, HEAD");
  expect((await server.fetch("/readyz", { method: "HEAD" })).status).toBe(200);
});

test("a page of events that JSON makes twice as long is read by a client that speaks JSON", async () => {
  const post = async (method: string, body: object) => {
    const service =
      method.includes("Event") || method.includes("Session") ? "SessionService" : "AgentService";
    const kind = method === "CreateEnvironment" ? "EnvironmentService" : service;
    const response = await server.fetch(`/tendon.v1.${kind}/${method}`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${server.adminKey}` },
      body: JSON.stringify(body),
    });
    const answer = (await response.json()) as {
      agent: { id: string };
      session: { id: string };
      events: { payload: string }[];
    };
    return { status: response.status, ...answer };
  };
  await post("CreateEnvironment", { spec: { name: "json" }, makeDefault: true });
  const agent = await post("CreateAgent", { spec: { name: "json" } });
  const created = await post("CreateSession", { agentId: agent.agent.id });
  const sessionId = created.session.id;
  const payload = JSON.stringify({ a: '"'.repeat(520_000) });
  for (let n = 0; n < 2; n += 1) {
    const appended = await post("EmitEvents", { sessionId, events: [{ type: "acme.noted", payload }] });
    expect(appended.status).toBe(200);
  }
  const page = await post("GetEvents", { sessionId });
  expect(page.status).toBe(200);
  expect(page.events.map((event) => event.payload)).toEqual([payload, payload]);
});

test("a path that is no path is refused, and the server lives on", async () => {
  const status = await new Promise<number | undefined>((resolve, reject) => {
    const request = http.request({ port: server.port, host: "127.0.0.1", path: "//[", agent: false });
    request.on("response", (response) => {
      response.resume();
      resolve(response.statusCode);
    });
    request.on("error", reject).end();
  });
  expect([400, 404]).toContain(status);
  expect((await server.fetch("/readyz")).status).toBe(200);
});

test("healthz is 200 only with a harness and a hand agent, and names what is missing", async () => {
  const missing = async () => {
    const response = await server.fetch("/healthz");
    const body = (await response.json()) as { missing: string[] };
    return { status: response.status, missing: body.missing.join("; ") };
  };
  expect(await missing()).toEqual({
    status: 503,
    missing: expect.stringMatching(/no harness .*no hand agent/),
  });
  const { replicas } = createPostgresStore(database.pool());
  const { replicaId } = server.server;
  const harness = { instanceId: newId("harness"), replicaId, build: "t", loops: ["claude"] };
  await replicas.harnessConnected({ ...harness, capacity: 1, modelSource: "demo" });
  expect(await missing()).toEqual({ status: 503, missing: expect.stringMatching(/^no hand agent/) });
  const handAgentId = newId("handAgent");
  await database.pool().query(
    `insert into hand_agents (hand_agent_id, workspace_id, public_key, join_token_id, replica_id, last_seen_at, drivers)
     select $1, workspace_id, $2, 'jointok_x', $3, now(), $4 from workspaces where is_default`,
    [handAgentId, randomBytes(32), replicaId, '[{"name":"process","available":true,"detail":"bubblewrap"}]'],
  );
  expect(await missing()).toEqual({ status: 200, missing: "" });
  const status = await server.client(AdminService).getStatus({});
  expect(status).toMatchObject({
    ready: true,
    problems: [],
    handAgentsOnline: 1,
    isolation: ["process: bubblewrap"],
  });
  expect(status.harnesses[0]).toMatchObject({ loops: ["claude"], modelSource: "demo" });

  // What hangs on a replica that died is gone with it.
  await database
    .pool()
    .query("update hand_agents set replica_id = 'rplc_dead' where hand_agent_id = $1", [handAgentId]);
  await replicas.harnessConnected({
    ...harness,
    replicaId: await deadReplica(),
    capacity: 1,
    modelSource: "demo",
  });
  expect(await missing()).toMatchObject({ status: 503 });
  await replicas.harnessGone(harness.instanceId, replicaId);
  await database.pool().query("delete from hand_agents where hand_agent_id = $1", [handAgentId]);
});

async function deadReplica(): Promise<string> {
  const replicaId = newId("replica");
  await createPostgresStore(database.pool()).replicas.announce({
    replicaId,
    build: "t",
    peerUrl: "",
    publicKeys: '{"keys":[]}',
  });
  await database
    .pool()
    .query("update replicas set seen_at = now() - interval '31 seconds' where replica_id = $1", [replicaId]);
  return replicaId;
}

test("metrics count calls by method and code, and show pool and process", async () => {
  await server.client(AdminService).getStatus({});
  await failure(server.client(AdminService).revokeApiKey({ apiKeyId: "apikey_nobody" }));
  const text = await (await server.fetch("/metrics")).text();
  expect(text).toMatch(
    /tendon_rpc_seconds_count\{method="\/tendon.v1.AdminService\/GetStatus",code="OK"\} [1-9]/,
  );
  expect(text).toMatch(
    /tendon_rpc_seconds_count\{method="\/tendon.v1.AdminService\/RevokeApiKey",code="NOT_FOUND"\} 1/,
  );
  expect(text).toMatch(/tendon_database_connections\{state="total"\} [1-9]/);
  expect(text).toContain("process_resident_memory_bytes");
  expect(text).not.toContain("tk_");
});

// RFC 8037's example key and its thumbprint.
const SEALING_KEY = {
  keyId: "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k",
  publicJwk: '{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}',
};

function hello(change: object = {}) {
  const value = {
    instanceId: newId("proxy"),
    protocolVersion: 1,
    build: "test",
    url: "http://127.0.0.1:7401",
    sealingKeys: [SEALING_KEY],
    ...change,
  };
  return { kind: { case: "hello" as const, value } };
}

type ProxyCall = ReturnType<Client<typeof ProxyService>["connect"]>;

/** What the proxy is told next beside heartbeats, which it answers as proxies do: another server may take its time to start. */
async function nextWelcome(call: ProxyCall, responses: AsyncIterator<ProxyServiceConnectResponse>) {
  for (;;) {
    const { kind } = (await responses.next()).value;
    if (kind.case === "welcome") return kind.value;
    expect(kind.case).toBe("heartbeat");
    await call.send({ kind: { case: "heartbeat", value: {} } });
  }
}

test("a proxy is welcomed with the keys of session tokens, shows in the status, and is gone when it leaves", async () => {
  const call = server.client(ProxyService, await server.localKey("proxy")).connect();
  await call.send(hello());
  const responses = call.responses[Symbol.asyncIterator]();
  const welcome = (await responses.next()).value.kind.value;
  const { kid } = await loadOrCreateKeyFile(join(server.dataDir, "session-token.key"));
  expect(JSON.parse(welcome.sessionTokenKeys).keys).toEqual([expect.objectContaining({ kid, alg: "EdDSA" })]);
  expect(JSON.stringify(JSON.parse(welcome.sessionTokenKeys))).not.toContain('"d"');
  const proxies = async () => (await server.client(AdminService).getStatus({})).proxies;
  expect(await proxies()).toEqual([
    expect.objectContaining({ url: "http://127.0.0.1:7401", sealingKeyIds: [SEALING_KEY.keyId] }),
  ]);

  const second = await startServer({ databaseUrl: database.url });
  const again = await nextWelcome(call, responses);
  expect(JSON.parse(again.sessionTokenKeys).keys).toHaveLength(2);
  await second.stop();

  call.cancel();
  await expect.poll(proxies).toEqual([]);
  const { rows } = await database.pool().query("select key_id from sealing_keys");
  expect(rows).toEqual([{ key_id: SEALING_KEY.keyId }]);
});

test("a newer connection of the same proxy replaces the older one, whose end changes nothing", async () => {
  const proxy = server.client(ProxyService, await server.localKey("proxy"));
  const request = hello();
  const older = proxy.connect();
  await older.send(request);
  const olderResponses = older.responses[Symbol.asyncIterator]();
  await olderResponses.next();
  const newer = proxy.connect();
  await newer.send(request);
  const newerResponses = newer.responses[Symbol.asyncIterator]();
  await newerResponses.next();
  // Heartbeats may come before its end.
  for (let next = await olderResponses.next(); !next.done; ) next = await olderResponses.next();
  const status = await server.client(AdminService).getStatus({});
  expect(status.proxies.map(({ instanceId }) => instanceId)).toEqual([request.kind.value.instanceId]);
  newer.cancel();
});

test("a proxy that says the wrong thing first, or sends a secret key, is refused with the field", async () => {
  const proxy = server.client(ProxyService, await server.localKey("proxy"));
  const first = async (request: Parameters<ReturnType<typeof proxy.connect>["send"]>[0]) => {
    const call = proxy.connect();
    await call.send(request);
    return failure(call.responses[Symbol.asyncIterator]().next());
  };
  const beat = await first({ kind: { case: "heartbeat", value: {} } });
  expect(beat).toMatchObject({ reason: "INVALID_FIELD", metadata: { field: "kind" } });
  expect((await first(hello({ protocolVersion: 2 }))).reason).toBe("PROTOCOL_VERSION_UNSUPPORTED");
  expect((await first(hello({ url: "ftp://127.0.0.1" }))).metadata.field).toBe("hello.url");
  const secret = JSON.stringify({ ...JSON.parse(SEALING_KEY.publicJwk), d: "c2VjcmV0LWhhbGY" });
  const refused = await first(hello({ sealingKeys: [{ ...SEALING_KEY, publicJwk: secret }] }));
  expect(refused.metadata.field).toBe("hello.sealing_keys[0].public_jwk");
  expect(refused.message).not.toContain("c2VjcmV0");
  const other = { ...SEALING_KEY, keyId: "A".repeat(43) };
  expect((await first(hello({ sealingKeys: [other] }))).metadata.field).toBe("hello.sealing_keys[0].key_id");
});

test("a tunnel that nobody asked for is refused, as is a stream that names none", async () => {
  const proxies = server.client(ProxyService, await server.localKey("proxy"));
  const reasonOf = async (call: ReturnType<typeof proxies.openTunnel>) =>
    (await failure(call.responses[Symbol.asyncIterator]().next())).reason;
  const unasked = proxies.openTunnel();
  await unasked.send({ kind: { case: "open", value: { tunnelId: "req_nobody_asked" } } });
  expect(await reasonOf(unasked)).toBe("NOT_FOUND");
  const nameless = proxies.openTunnel();
  nameless.end();
  expect(await reasonOf(nameless)).toBe("INVALID_FIELD");
});

test("a stopping server tells its proxies to connect elsewhere and then closes", async () => {
  const stopping = await startServer({ databaseUrl: database.url });
  const connection = dial({ url: stopping.url, token: () => "", proxy: {} });
  const call = stopping.client(ProxyService, await stopping.localKey("proxy")).connect();
  await call.send(hello());
  const responses = call.responses[Symbol.asyncIterator]();
  await responses.next();
  const startedMs = systemClock.monotonicMs();
  const stopped = stopping.server.stop();
  let last: string | undefined;
  for (let next = await responses.next(); !next.done; next = await responses.next())
    last = next.value.kind.case;
  expect(last).toBe("draining");
  await stopped;
  expect(systemClock.monotonicMs() - startedMs).toBeLessThan(promised(9_000));
  connection.close();
  await stopping.stop();
});

test("with TLS the same port answers gRPC and HTTP, and clear text is turned away", async () => {
  const certificates = await createCertificates();
  const { certFile, keyFile } = await certificates.issue("server");
  const secure = await startServer({
    databaseUrl: database.url,
    caFile: certificates.caFile,
    settings: {
      TENDON_TLS_CERT: certFile,
      TENDON_TLS_KEY: keyFile,
      TENDON_ADMIN_KEY: `operators-own-${"k".repeat(32)}`,
    },
  });
  try {
    const status = await secure.client(AdminService).getStatus({});
    expect(status.replicas).toBe(2);
    const clear = dial({ url: `http://127.0.0.1:${secure.port}`, token: () => secure.adminKey, proxy: {} });
    const refused = await failure(clear.client(AdminService).getStatus({}, { deadlineMs: 5_000 }));
    expect(["UNAVAILABLE", "DEADLINE_EXCEEDED"]).toContain(refused.reason);
    clear.close();
  } finally {
    await secure.stop();
    await certificates.remove();
  }
});

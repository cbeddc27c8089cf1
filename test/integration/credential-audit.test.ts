/** What proxies did reaches the audit log once, also when the server was away (S5); and a replica without a proxy asks another's. */
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { afterAll, beforeAll, expect, test } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { dial } from "../../kit/dial/dial.ts";
import { newId } from "../../kit/ids.ts";
import { createLogger } from "../../kit/log.ts";
import { CredentialRefusal } from "../../mcp-proxy/credentials/refusal.ts";
import { UseJournal } from "../../mcp-proxy/credentials/use-journal.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { CredentialService } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { CredentialValidity, VaultService } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { failure } from "../kit/failure.ts";
import { freePort } from "../kit/free-port.ts";
import { startOauthSide } from "../kit/oauth-side.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { newSealingKeys, startProxy } from "../kit/proxy-rig.ts";
import { startServer, type TestServer } from "../kit/server.ts";
import { bearer } from "../kit/vault-rig.ts";

let database: TestDatabase;
let server: TestServer;
let proxyKey: string;

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url, peers: true });
  const admin = server.client(AdminService);
  proxyKey = (await admin.createApiKey({ name: "a proxy", role: Role.PROXY })).secret;
});
afterAll(async () => {
  await server?.stop();
  await database?.drop();
});

const count = async (action: string) => {
  const sql =
    "select count(*)::integer as entries, coalesce(sum(coalesce((detail::json->>'count')::integer, 1)), 0)::integer as things from audit_entries where action = $1";
  const { rows } = await database.pool().query<{ entries: number; things: number }>(sql, [action]);
  return rows[0]!;
};

test("uses that could not be written wait, hold further use up when they are too many, and are written once", async () => {
  const port = await freePort();
  const connection = dial({ url: `http://127.0.0.1:${port}`, token: () => proxyKey, proxy: {} });
  const credentials = connection.client(CredentialService);
  const journal = new UseJournal({ credentials, clock: systemClock, log: createLogger("test", "silent") });
  let late: TestServer | undefined;
  try {
    await journal.start();
    const record = (host: string) =>
      journal.record({
        credentialId: newId("credential"),
        sessionId: "",
        action: "inject",
        host,
        result: "200",
      });
    for (let i = 0; i < 4_999; i++) record("a.example.com");
    journal.requireRoom();
    record("a.example.com");
    expect(() => journal.requireRoom()).toThrow(CredentialRefusal);
    late = await startServer({ databaseUrl: database.url, settings: { TENDON_PORT: String(port) } });
    await eventually(async () => (await count("credential.inject")).entries === 5_000, { withinMs: 60_000 });
    await eventually(() => journal.requireRoom() === undefined && true);
  } finally {
    await journal.stop();
    connection.close();
    await late?.stop();
  }
  expect(await count("credential.inject")).toEqual({ entries: 5_000, things: 5_000 });
});

test("the same record twice is one entry, and one about a workspace that the proxy may not see is none", async () => {
  const admin = server.client(AdminService);
  const workspaceId = (await admin.createWorkspace({ name: "bound" })).workspace!.id;
  const { secret: bound } = await admin.createApiKey({ name: "b", role: Role.PROXY, workspaceId });
  const record = {
    id: newId("audit"),
    credentialId: newId("credential"),
    action: "refuse",
    host: "a.example.com",
    result: "key_unknown",
    count: 3,
  };
  const all = server.client(CredentialService, proxyKey);
  await all.recordUses({ records: [record] });
  await all.recordUses({ records: [record] });
  await server.client(CredentialService, bound).recordUses({ records: [{ ...record, id: newId("audit") }] });
  expect(await count("credential.refuse")).toEqual({ entries: 1, things: 3 });
});

test("a replica without a proxy asks one of another replica, and seals to its key", async () => {
  const other = await startServer({ databaseUrl: database.url, peers: true });
  const keys = await newSealingKeys();
  const proxy = await startProxy({ url: other.url, key: proxyKey, keys });
  try {
    const vaults = server.client(VaultService);
    await eventually(async () => (await vaults.getSealingKey({})).key!.keyId === keys[0].keyId);
    const vaultId = (await vaults.createVault({ displayName: "v" })).vault!.id;
    const secret = { form: { case: "plain" as const, value: { value: "some-secret" } } };
    const request = { vaultId, use: bearer("http://127.0.0.1:3/mcp"), secret };
    const credentialId = (await vaults.createCredential(request)).credential!.id;
    const tried = await eventually(() => vaults.validateCredential({ credentialId }));
    expect(tried.detail).toMatch(/was not reached: ECONNREFUSED/);
    const connect = { serverUrl: "http://127.0.0.1:3/more", redirectUri: "http://127.0.0.1:4/callback" };
    expect(await failure(vaults.startConnect({ vaultId, ...connect }))).toMatchObject({
      reason: "CONNECT_FAILED",
      metadata: { step: "discovery", problem: "unreachable" },
    });
    const moved = bearer("https://moved.example.com");
    const { credential } = await vaults.updateCredential({ credentialId, use: moved });
    expect(credential!.use!.kind.value).toMatchObject({ serverUrl: "https://moved.example.com" });
  } finally {
    await proxy.stop();
    await other.stop();
  }
});

test("a token that comes while the server is away is stored when it is back, and nobody asks for another (R20)", async () => {
  const far = await startOauthSide();
  const port = await freePort();
  const start = () => startServer({ databaseUrl: database.url, settings: { TENDON_PORT: String(port) } });
  let restarting = await start();
  const proxy = await startProxy({ url: restarting.url, key: proxyKey, keys: await newSealingKeys() });
  try {
    const admin = server.client(AdminService);
    const workspaceId = (await admin.createWorkspace({ name: "restarted" })).workspace!.id;
    const { secret: key } = await admin.createApiKey({ name: "c", role: Role.CLIENT, workspaceId });
    const vaults = restarting.client(VaultService, key);
    const vaultId = (await vaults.createVault({ displayName: "v" })).vault!.id;
    const { accessToken, refreshToken } = far.newGrant();
    const value = { value: accessToken, refreshToken, expiresAt: timestampFromMs(Date.now() - 1_000) };
    const oauth = { serverUrl: far.mcpUrl, tokenEndpoint: far.tokenUrl, clientId: "c" };
    const use = { kind: { case: "oauth" as const, value: oauth } };
    const made = await vaults.createCredential({ vaultId, use, secret: { form: { case: "plain", value } } });
    const credentialId = made.credential!.id;
    far.delayMs = 1_000;
    const first = vaults.validateCredential({ credentialId }).catch((error: unknown) => error);
    await eventually(() => far.asked === 1);
    await restarting.stop();
    await first;
    await eventually(() => far.refreshes.length === 1);
    restarting = await start();
    const again = restarting.client(VaultService, key);
    const tried = await eventually(() => again.validateCredential({ credentialId }), { withinMs: 60_000 });
    expect(tried).toMatchObject({ validity: CredentialValidity.VALID, httpStatus: 200 });
    expect(far.refreshes.map(({ outcome }) => outcome)).toEqual(["granted"]);
  } finally {
    await proxy.stop();
    await restarting.stop();
    await far.close();
  }
});

/** VaultService over the wire: what people do with vaults and credentials, and what they never see again. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { sealContent } from "../../kit/vault/sealed-content.ts";
import { Opener } from "../../mcp-proxy/credentials/opener.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import {
  type CredentialUseSchema,
  SealedContentSchema,
  VaultService,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { failure } from "../kit/failure.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { newSealingKeys, startProxy, type TestProxy } from "../kit/proxy-rig.ts";
import { startServer, type TestServer } from "../kit/server.ts";

type Vaults = Client<typeof VaultService>;

let database: TestDatabase;
let server: TestServer;
let proxy: TestProxy;
let home: { workspaceId: string; key: string };
let elsewhere: { workspaceId: string; key: string };
let vaults: Vaults;
let strangers: Vaults;

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  home = await tenant("home");
  elsewhere = await tenant("elsewhere");
  vaults = server.client(VaultService, home.key);
  strangers = server.client(VaultService, elsewhere.key);
});
afterAll(async () => {
  await proxy?.stop();
  await server?.stop();
  await database?.drop();
});

async function tenant(name: string) {
  const admin = server.client(AdminService);
  const { workspace } = await admin.createWorkspace({ name });
  const workspaceId = workspace!.id;
  return { workspaceId, key: (await admin.createApiKey({ name, role: Role.CLIENT, workspaceId })).secret };
}

const CANARY = "canary-5e1f77aa02";
const bearer = (serverUrl: string) => ({ kind: { case: "staticBearer" as const, value: { serverUrl } } });
const plain = (value: string) => ({ form: { case: "plain" as const, value: { value } } });
const newVault = async (of = vaults) => (await of.createVault({ displayName: "a vault" })).vault!.id;

test("while no proxy has published a key, no secret is taken", async () => {
  const vaultId = await newVault();
  const request = { vaultId, use: bearer("https://one.example.com/mcp"), secret: plain(CANARY) };
  expect((await failure(vaults.createCredential(request))).reason).toBe("NOT_CONFIGURED");
  expect((await failure(vaults.getSealingKey({}))).reason).toBe("NOT_CONFIGURED");
  const key = await server.localKey("proxy");
  proxy = await startProxy({ url: server.url, key, keys: await newSealingKeys(2) });
  expect((await vaults.getSealingKey({})).key!.keyId).toBe(proxy.keys[0].keyId);
});

describe("vaults", () => {
  test("are made, read, changed, listed, archived and deleted", async () => {
    const request = { requestId: newId("request"), displayName: "mine", metadata: { team: "core", a: "b" } };
    const { vault } = await vaults.createVault(request);
    expect(vault).toMatchObject({ workspaceId: home.workspaceId, displayName: "mine" });
    expect((await vaults.createVault(request)).vault!.id).toBe(vault!.id);
    const other = { ...request, displayName: "other" };
    expect((await failure(vaults.createVault(other))).reason).toBe("REQUEST_ID_REUSED");
    const changed = await vaults.updateVault({
      vaultId: vault!.id,
      displayName: "ours",
      metadata: { a: "", c: "d" },
    });
    expect(changed.vault).toMatchObject({ displayName: "ours", metadata: { team: "core", c: "d" } });
    expect((await vaults.listVaults({ pageSize: 1 })).vaults[0]!.id).toBe(vault!.id);
    const once = await vaults.archiveVault({ vaultId: vault!.id });
    const twice = await vaults.archiveVault({ vaultId: vault!.id });
    expect(twice.vault!.archivedAt).toEqual(once.vault!.archivedAt);
    expect((await failure(vaults.updateVault({ vaultId: vault!.id, displayName: "x" }))).reason).toBe(
      "VAULT_ARCHIVED",
    );
    expect((await vaults.listVaults({ pageSize: 100 })).vaults.map(({ id }) => id)).not.toContain(vault!.id);
    await vaults.deleteVault({ vaultId: vault!.id });
    expect((await failure(vaults.getVault({ vaultId: vault!.id }))).reason).toBe("NOT_FOUND");
  });

  test("of another workspace are not there, whatever is asked of them", async () => {
    const vaultId = await newVault();
    const { credential } = await vaults.createCredential({
      vaultId,
      use: bearer("https://neighbour.example.com/mcp"),
      secret: plain(CANARY),
    });
    const credentialId = credential!.id;
    const attempts = [
      () => strangers.getVault({ vaultId }),
      () => strangers.updateVault({ vaultId, displayName: "x" }),
      () => strangers.archiveVault({ vaultId }),
      () => strangers.deleteVault({ vaultId }),
      () => strangers.listCredentials({ vaultId }),
      () =>
        strangers.createCredential({
          vaultId,
          use: bearer("https://x.example.com"),
          secret: plain("another-secret"),
        }),
      () => strangers.getCredential({ credentialId }),
      () => strangers.updateCredential({ credentialId, secret: plain("another-secret") }),
      () => strangers.archiveCredential({ credentialId }),
      () => strangers.deleteCredential({ credentialId }),
      () => strangers.validateCredential({ credentialId }),
    ];
    for (const attempt of attempts) expect((await failure(attempt())).reason).toBe("NOT_FOUND");
    expect((await vaults.getCredential({ credentialId })).credential).toEqual(credential);
  });
});

describe("credentials", () => {
  test("of all kinds come back as they were described, without what was secret (S1)", async () => {
    const vaultId = await newVault();
    const serverUrl = "https://Kinds.example.com/mcp/";
    const oauth = {
      serverUrl: "https://oauth.example.com/mcp",
      tokenEndpoint: "https://auth.example.com/token",
      clientId: "client",
      clientAuth: "client_secret_basic",
      scope: "a b",
      resource: "https://oauth.example.com/mcp",
    };
    const variable = {
      name: "API_TOKEN",
      allowedHosts: ["API.example.com", "*.example.org"],
      inHeaders: true,
    };
    const wanted: [MessageInitShape<typeof CredentialUseSchema>, object][] = [
      [bearer(serverUrl), { value: `${CANARY}-1` }],
      [
        {
          kind: {
            case: "header" as const,
            value: { serverUrl: "https://h.example.com", headerName: "X-Api-Key" },
          },
        },
        { value: `${CANARY}-2` },
      ],
      [
        { kind: { case: "oauth" as const, value: oauth } },
        { value: `${CANARY}-3`, refreshToken: `${CANARY}-4`, clientSecret: `${CANARY}-5` },
      ],
      [{ kind: { case: "environmentVariable" as const, value: variable } }, { value: `${CANARY}-6` }],
      [
        {
          kind: {
            case: "git" as const,
            value: { url: "https://git.example.com/owner/repo.git", pushBranches: ["main"] },
          },
        },
        { value: `${CANARY}-7`, userName: "bot" },
      ],
    ];
    for (const [use, value] of wanted) {
      const { credential } = await vaults.createCredential({
        vaultId,
        use,
        secret: { form: { case: "plain", value } },
      });
      expect(credential).toMatchObject({ vaultId, sealingKeyId: proxy.keys[0].keyId });
      expect(credential!.use!.kind.case).toBe(use.kind!.case);
    }
    const { credentials } = await vaults.listCredentials({ vaultId });
    expect(credentials).toHaveLength(5);
    expect(
      JSON.stringify(credentials, (_, value) => (typeof value === "bigint" ? String(value) : value)),
    ).not.toContain(CANARY);
    const { rows } = await database
      .pool()
      .query<{ all: string }>("select coalesce(string_agg(c::text, ' '), '') as all from credentials c");
    expect(rows[0]!.all).not.toContain(CANARY);
    const opener = new Opener(proxy.keys);
    const { rows: sealed } = await database
      .pool()
      .query<{ credential_id: string; sealed: string }>(
        "select credential_id, sealed from credentials where vault_id = $1 order by created_at",
        [vaultId],
      );
    const names = (credentialId: string) => ({ workspaceId: home.workspaceId, vaultId, credentialId });
    const opened = await Promise.all(sealed.map((row) => opener.open(row.sealed, names(row.credential_id))));
    expect(opened.map(({ secret }) => secret)).toMatchObject(wanted.map(([, value]) => value));
    expect(opened[3]!.use.kind.value).toMatchObject({ allowedHosts: ["api.example.com", "*.example.org"] });
  });

  test("a second one for the same destination is refused until the first is archived, however the URL is written", async () => {
    const vaultId = await newVault();
    const request = {
      vaultId,
      use: bearer("https://same.example.com:443/mcp"),
      secret: plain("first-secret"),
    };
    const { credential } = await vaults.createCredential(request);
    const same = { ...request, use: bearer("HTTPS://SAME.example.com/mcp/") };
    expect((await failure(vaults.createCredential(same))).reason).toBe("ALREADY_EXISTS");
    for (const other of [
      "https://same.example.com/mcp2",
      "https://same.example.com:8443/mcp",
      "https://x.same.example.com/mcp",
    ]) {
      await vaults.createCredential({ ...request, use: bearer(other) });
    }
    await vaults.archiveCredential({ credentialId: credential!.id });
    await vaults.createCredential(same);
  });

  test("a vault takes 20 of them", async () => {
    const vaultId = await newVault();
    const make = (i: number) =>
      vaults.createCredential({
        vaultId,
        use: bearer(`https://n${i}.example.com`),
        secret: plain("some-secret"),
      });
    const outcomes = await Promise.allSettled(Array.from({ length: 22 }, (_, i) => make(i)));
    const refused = outcomes.flatMap((outcome) =>
      outcome.status === "rejected" ? [outcome.reason.reason] : [],
    );
    expect(refused).toEqual(["LIMIT_EXCEEDED", "LIMIT_EXCEEDED"]);
  });

  test("a repeat returns the first one, and what is kept of the request lets nobody guess the secret", async () => {
    const vaultId = await newVault();
    const requestId = newId("request");
    const request = {
      requestId,
      vaultId,
      use: bearer("https://repeat.example.com"),
      secret: plain("guessable"),
    };
    const { credential } = await vaults.createCredential(request);
    expect((await vaults.createCredential(request)).credential!.id).toBe(credential!.id);
    const read = async (id: string) => {
      const { rows } = await database
        .pool()
        .query<{ content_hash: Buffer }>("select content_hash from request_ids where request_id = $1", [id]);
      return rows[0]!.content_hash.toString("hex");
    };
    // The same request but for its secret leaves the same trace: the secret is not in it.
    await vaults.archiveCredential({ credentialId: credential!.id });
    const second = newId("request");
    await vaults.createCredential({ ...request, requestId: second, secret: plain("another-guess") });
    expect(await read(second)).toBe(await read(requestId));
    const other = { ...request, displayName: "other" };
    expect((await failure(vaults.createCredential(other))).reason).toBe("REQUEST_ID_REUSED");
  });

  test("archiving erases the secret and keeps the record, deleting leaves entries of the audit log alone", async () => {
    const vaultId = await newVault();
    const make = async (url: string) =>
      (await vaults.createCredential({ vaultId, use: bearer(url), secret: plain("some-secret") })).credential!
        .id;
    const [one, two] = [await make("https://one.example.com"), await make("https://two.example.com")];
    const sealedOf = async (id: string) => {
      const { rows } = await database
        .pool()
        .query<{ sealed: string | null }>("select sealed from credentials where credential_id = $1", [id]);
      return rows.map(({ sealed }) => sealed);
    };
    expect(await sealedOf(one)).toEqual([expect.any(String)]);
    await vaults.archiveCredential({ credentialId: one });
    expect(await sealedOf(one)).toEqual([null]);
    expect(
      (await failure(vaults.updateCredential({ credentialId: one, secret: plain("other-secret") }))).reason,
    ).toBe("CREDENTIAL_ARCHIVED");
    await vaults.archiveVault({ vaultId });
    expect(await sealedOf(two)).toEqual([null]);
    await vaults.deleteVault({ vaultId });
    expect(await sealedOf(two)).toEqual([]);
    const { entries } = await server.client(AdminService).listAuditEntries({ subject: one });
    expect(entries.map(({ action }) => action)).toEqual(["credential.archive", "credential.create"]);
    expect(entries[0]!.workspaceId).toBe(home.workspaceId);
  });
});

describe("a secret that is wrong in some way is repeated nowhere (S2)", () => {
  const cases: [string, object][] = [
    ["too long", { value: CANARY.repeat(1_000) }],
    ["with a line break", { value: `${CANARY}\n` }],
    ["with letters that no header holds", { value: `${CANARY}é` }],
    ["with a field that its use does not have", { value: CANARY, refreshToken: CANARY }],
    ["with a user where there is none", { value: CANARY, userName: CANARY }],
    ["empty", { value: "" }],
  ];
  test.each(cases)("%s", async (_, value) => {
    const vaultId = await newVault();
    const use = bearer("https://wrong.example.com");
    const error = await failure(
      vaults.createCredential({ vaultId, use, secret: { form: { case: "plain", value } } }),
    );
    expect(error.reason).toBe("INVALID_FIELD");
    expect(error.message).toMatch(/^secret\./);
    expect(JSON.stringify([error.message, error.metadata, error.stack])).not.toContain(CANARY);
  });

  test("nor is JSON that breaks off in it, or has it in the wrong place", async () => {
    const url = `${server.url}/tendon.v1.VaultService/CreateCredential`;
    const headers = { "content-type": "application/json", authorization: `Bearer ${home.key}` };
    for (const body of [
      `{"vault_id":"vlt_1","secret":{"plain":{"value":"${CANARY}`,
      `{"vault_id":"vlt_1","secret":"${CANARY}"}`,
      `{"vault_id":"vlt_1","secret":{"plain":{"value":["${CANARY}"]}}}`,
      `{"vault_id":"vlt_1","secret":{"sealed":"${CANARY}"},"use":{"static_bearer":{"server_url":"https://a.example.com"}},"credential_id":"vcrd_a"}`,
    ]) {
      const response = await fetch(url, { method: "POST", headers, body });
      expect(response.status).toBeGreaterThanOrEqual(400);
      expect((await response.text()) + JSON.stringify([...response.headers])).not.toContain(CANARY);
    }
  });
});

describe("uses that are refused", () => {
  const git = (url: string) => ({ kind: { case: "git" as const, value: { url } } });
  const header = (headerName: string) => ({
    kind: { case: "header" as const, value: { serverUrl: "https://a.example.com", headerName } },
  });
  const variable = (allowedHosts: string[], inHeaders = true) => ({
    kind: { case: "environmentVariable" as const, value: { name: "A", allowedHosts, inHeaders } },
  });
  const oauth = (value: object) => ({
    kind: { case: "oauth" as const, value: { serverUrl: "https://a.example.com", ...value } },
  });
  test.each([
    ["a URL with a password", bearer("https://user:password@a.example.com"), "use.static_bearer.server_url"],
    ["a URL with a fragment", bearer("https://a.example.com/#x"), "use.static_bearer.server_url"],
    ["another scheme", bearer("ftp://a.example.com/"), "use.static_bearer.server_url"],
    ["a header of the connection's own", header("Content-Length"), "use.header.header_name"],
    ["a host with a path", variable(["a.example.com/x"]), "use.environment_variable.allowed_hosts[0]"],
    [
      "a variable that goes nowhere",
      variable(["a.example.com"], false),
      "use.environment_variable.in_headers",
    ],
    ["git without TLS", git("http://git.example.com"), "use.git.url"],
    ["git with a query", git("https://git.example.com/a?b"), "use.git.url"],
    ["a client without a token endpoint", oauth({ clientId: "c" }), "use.oauth.token_endpoint"],
    [
      "an unknown way of the client's",
      oauth({ tokenEndpoint: "https://a.example.com/t", clientId: "c", clientAuth: "private_key_jwt" }),
      "use.oauth.client_auth",
    ],
  ])("%s", async (_, use, field) => {
    const request = { vaultId: await newVault(), use, secret: plain("some-secret") };
    expect((await failure(vaults.createCredential(request))).metadata.field).toMatch(
      new RegExp(`^${field.replace(/[.[\]]/g, "\\$&")}`),
    );
  });
});

describe("a secret that its caller has sealed (S1)", () => {
  test("is stored as it came, and one that is no such text, or sealed to a foreign key, is refused", async () => {
    const vaultId = await newVault();
    const { key } = await vaults.getSealingKey({});
    const credentialId = newId("credential");
    const use = bearer("https://sealed.example.com");
    const content = create(SealedContentSchema, {
      version: 1,
      workspaceId: home.workspaceId,
      vaultId,
      credentialId,
      use,
      secret: { value: CANARY },
    });
    const sealed = await sealContent(key!, content);
    const secret = (text: string) => ({ form: { case: "sealed" as const, value: text } });
    expect(
      (await failure(vaults.createCredential({ vaultId, use, secret: secret(sealed) }))).metadata.field,
    ).toBe("credential_id");
    const [foreign] = await newSealingKeys();
    const toForeign = await sealContent(foreign, content);
    const [head = "", ...rest] = sealed.split(".");
    const header = JSON.parse(Buffer.from(head, "base64url").toString()) as object;
    const withHeader = (more: object) =>
      [Buffer.from(JSON.stringify({ ...header, ...more })).toString("base64url"), ...rest].join(".");
    for (const wrong of [
      "x",
      sealed.slice(0, -8),
      toForeign,
      withHeader({ enc: "A128GCM" }),
      withHeader({ zip: "DEF" }),
      withHeader({ alg: "dir" }),
    ]) {
      const error = await failure(
        vaults.createCredential({ vaultId, credentialId, use, secret: secret(wrong) }),
      );
      expect(error.metadata.field).toBe("secret.sealed");
    }
    const { credential } = await vaults.createCredential({
      vaultId,
      credentialId,
      use,
      secret: secret(sealed),
    });
    expect(credential).toMatchObject({ id: credentialId, sealingKeyId: key!.keyId });
    const again = vaults.createCredential({
      vaultId,
      credentialId,
      use: bearer("https://b.example.com"),
      secret: secret(sealed),
    });
    expect((await failure(again)).reason).toBe("ALREADY_EXISTS");
  });
});

describe("sessions", () => {
  test("are given vaults of their own workspace that are not archived, and no other", async () => {
    const sessions = server.client(SessionService, home.key);
    const { agent } = await server.client(AgentService, home.key).createAgent({ spec: { name: "a" } });
    await server
      .client(EnvironmentService, home.key)
      .createEnvironment({ spec: { name: "e" }, makeDefault: true });
    const [own, foreign, archived] = [await newVault(), await newVault(strangers), await newVault()];
    await vaults.archiveVault({ vaultId: archived });
    const agentId = agent!.id;
    const { session } = await sessions.createSession({ agentId, vaultIds: [own] });
    expect(session!.vaultIds).toEqual([own]);
    expect((await failure(sessions.createSession({ agentId, vaultIds: [own, foreign] }))).reason).toBe(
      "NOT_FOUND",
    );
    expect((await failure(sessions.createSession({ agentId, vaultIds: [archived] }))).reason).toBe(
      "VAULT_ARCHIVED",
    );
    const sessionId = session!.id;
    expect((await failure(sessions.forkSession({ sessionId, vaultIds: [foreign] }))).reason).toBe(
      "NOT_FOUND",
    );
    expect((await sessions.forkSession({ sessionId })).session!.vaultIds).toEqual([]);
  });
});

describe("re-sealing", () => {
  test("moves all credentials to the newest key once every proxy has it, and not before", async () => {
    const vaultId = await newVault();
    const make = async (i: number) =>
      (
        await vaults.createCredential({
          vaultId,
          use: bearer(`https://r${i}.example.com`),
          secret: plain(`secret-${i}`),
        })
      ).credential!;
    const before = await Promise.all([1, 2, 3].map(make));
    const key = await server.localKey("proxy");
    const [added] = await newSealingKeys();
    const newer = await startProxy({ url: server.url, key, keys: [added, ...proxy.keys] });
    try {
      // The old proxy could not open what is sealed to the new key: neither the server nor any of the proxies uses it yet.
      for (let i = 0; i < 4; i++) {
        const { credential } = await vaults.updateCredential({
          credentialId: before[0]!.id,
          use: bearer(`https://moved${i}.example.com`),
        });
        expect(credential!.sealingKeyId).toBe(proxy.keys[0].keyId);
      }
      expect((await vaults.getSealingKey({})).key!.keyId).toBe(proxy.keys[0].keyId);
      await proxy.stop();
      await eventually(async () => (await vaults.getSealingKey({})).key!.keyId === added.keyId);
      const moved = await eventually(
        async () => {
          const { credentials } = await vaults.listCredentials({ vaultId });
          return credentials.every(({ sealingKeyId }) => sealingKeyId === added.keyId) && credentials;
        },
        { withinMs: 15_000 },
      );
      expect(moved).toHaveLength(3);
      const { entries } = await server
        .client(AdminService)
        .listAuditEntries({ subject: before[0]!.id, action: "credential.reseal" });
      expect(JSON.parse(entries[0]!.detail)).toEqual({ from: proxy.keys[0].keyId, to: added.keyId });
    } finally {
      proxy = newer;
    }
  }, 30_000);
});

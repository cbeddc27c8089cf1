/** VaultService over the wire: the secrets that it takes, in the clear and sealed, those that it refuses, and the keys that it seals them to. */
import { create } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import { sealContent } from "../../kit/vault/sealed-content.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { SealedContentSchema } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { failure } from "../kit/failure.ts";
import { newSealingKeys, startProxy, type TestProxy } from "../kit/proxy-rig.ts";
import { bearer, plain, startVaultRig, type Tenant, type VaultRig } from "../kit/vault-rig.ts";

let rig: VaultRig;
let proxy: TestProxy;
let vaults: Tenant["vaults"];

beforeAll(async () => {
  rig = await startVaultRig();
  vaults = rig.home.vaults;
});
afterAll(async () => {
  await proxy?.stop();
  await rig?.stop();
});

const CANARY = "canary-5e1f77aa02";
const newVault = () => rig.home.newVault();

test("while no proxy has published a key, no secret is taken", async () => {
  const vaultId = await newVault();
  const request = { vaultId, use: bearer("https://one.example.com/mcp"), secret: plain(CANARY) };
  expect((await failure(vaults.createCredential(request))).reason).toBe("NOT_CONFIGURED");
  expect((await failure(vaults.getSealingKey({}))).reason).toBe("NOT_CONFIGURED");
  const key = await rig.server.localKey("proxy");
  proxy = await startProxy({ url: rig.server.url, key, keys: await newSealingKeys(2) });
  expect((await vaults.getSealingKey({})).key!.keyId).toBe(proxy.keys[0].keyId);
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
    const url = `${rig.server.url}/tendon.v1.VaultService/CreateCredential`;
    const headers = { "content-type": "application/json", authorization: `Bearer ${rig.home.key}` };
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
    ["a host with a port", variable(["a.example.com:443"]), "use.environment_variable.allowed_hosts[0]"],
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
      workspaceId: rig.home.workspaceId,
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
    const key = await rig.server.localKey("proxy");
    const [added] = await newSealingKeys();
    const newer = await startProxy({ url: rig.server.url, key, keys: [added, ...proxy.keys] });
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
        { withinMs: 60_000 },
      );
      expect(moved).toHaveLength(3);
      const { entries } = await rig.server
        .client(AdminService)
        .listAuditEntries({ subject: before[0]!.id, action: "credential.reseal" });
      expect(JSON.parse(entries[0]!.detail)).toEqual({ from: proxy.keys[0].keyId, to: added.keyId });
    } finally {
      proxy = newer;
    }
  });
});

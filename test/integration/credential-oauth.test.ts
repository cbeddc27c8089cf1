/** Refreshing OAuth tokens over several proxies, against an endpoint that ends a grant when a token is shown twice (S4, R20). */
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { CredentialRefusal } from "../../mcp-proxy/credentials/refusal.ts";
import { CredentialValidity } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { type OauthSide, startOauthSide } from "../kit/oauth-side.ts";
import { newSealingKeys, startProxy, type TestProxy } from "../kit/proxy-rig.ts";
import { needOf, startVaultRig, type VaultRig } from "../kit/vault-rig.ts";

let rig: VaultRig;
let far: OauthSide;
let proxies: TestProxy[];

beforeAll(async () => {
  rig = await startVaultRig();
  far = await startOauthSide();
  const keys = await newSealingKeys();
  const options = { url: rig.server.url, key: rig.proxyKey, keys };
  proxies = await Promise.all([startProxy(options), startProxy(options), startProxy(options)]);
});
afterAll(async () => {
  await Promise.all((proxies ?? []).map((proxy) => proxy.stop()));
  await far?.close();
  await rig?.stop();
});
beforeEach(() => {
  far.asked = 0;
  far.refreshes.length = 0;
  far.calls.length = 0;
  far.failWith = undefined;
  far.delayMs = 0;
});

const MINUTE_MS = 60_000;

/** A credential with a grant of the far side, and a session that may use it. */
async function grantOf({ endsInMs, clientAuth = "none" }: { endsInMs: number; clientAuth?: string }) {
  const { home } = rig;
  const grant = far.newGrant();
  const vaultId = await home.newVault();
  const value = {
    serverUrl: far.mcpUrl,
    tokenEndpoint: far.tokenUrl,
    clientId: "a client",
    clientAuth,
    scope: "read",
    resource: far.mcpUrl,
  };
  const credentialId = await home.addCredential(
    vaultId,
    { kind: { case: "oauth", value } },
    {
      value: grant.accessToken,
      refreshToken: grant.refreshToken,
      clientSecret: clientAuth === "none" ? "" : "canary client:secret",
      expiresAt: timestampFromMs(Date.now() + endsInMs),
    },
  );
  const sessionId = await home.newSession([vaultId]);
  return { ...grant, credentialId, sessionId, need: needOf(home, sessionId, far.mcpUrl) };
}

/** One call of a session through one of the proxies, in turns; once more with a newer token after a 401. */
async function call(i: number, need: Parameters<TestProxy["credentials"]["grant"]>[0]): Promise<number> {
  const { credentials, fetch } = proxies[i % proxies.length]!;
  let grant = await credentials.grant(need);
  for (let attempt = 1; ; attempt++) {
    const response = await fetch(far.mcpUrl, { method: "POST", headers: grant!.headers, body: "{}" });
    await response.body?.cancel();
    grant!.used(String(response.status));
    const newer = response.status === 401 && attempt === 1 ? await grant!.renewed() : undefined;
    if (newer === undefined) return response.status;
    grant = newer;
  }
}

const calls = (count: number, need: Parameters<typeof call>[1]) =>
  Promise.all(Array.from({ length: count }, (_, i) => call(i, need)));
const outcomes = () => far.refreshes.map(({ outcome }) => outcome);
const passTime = (credentialId: string, set: string) =>
  rig.database.pool().query(`update credentials set ${set} where credential_id = $1`, [credentialId]);

describe("R20: one refresh for each expiry", () => {
  test("50 calls over 3 proxies on a token that is over: one refresh, and all succeed", async () => {
    const { need, credentialId } = await grantOf({ endsInMs: -1_000 });
    far.delayMs = 100;
    const statuses = await calls(50, need);
    expect(new Set(statuses)).toEqual(new Set([200]));
    expect(outcomes()).toEqual(["granted"]);
    // What was used is what is stored: the next calls need no other.
    expect(new Set(await calls(6, need))).toEqual(new Set([200]));
    expect(outcomes()).toEqual(["granted"]);
    const { credential } = await rig.home.vaults.getCredential({ credentialId });
    expect(credential!.refreshedAt).toBeDefined();
    expect(credential!.refreshProblem).toBe("");
  });

  test("also when it is the server that refuses a token whose time is not over", async () => {
    const { need, accessToken } = await grantOf({ endsInMs: 60 * MINUTE_MS });
    far.expire(accessToken);
    expect(new Set(await calls(50, need))).toEqual(new Set([200]));
    expect(outcomes()).toEqual(["granted"]);
  });

  test("a 401 that arrives after another call has refreshed uses what that one got", async () => {
    const { need, accessToken } = await grantOf({ endsInMs: 60 * MINUTE_MS });
    const late = await proxies[0]!.credentials.grant(need);
    far.expire(accessToken);
    expect(await call(1, need)).toBe(200);
    expect(await call(2, need)).toBe(200);
    const renewed = await late!.renewed();
    expect(renewed!.headers.authorization).not.toBe(late!.headers.authorization);
    expect(far.refreshes).toHaveLength(1);
    // A server that refuses the new one too is not helped by another.
    expect(await renewed!.renewed()).toBeUndefined();
    expect(outcomes()).toEqual(["granted"]);
  });

  test("a token is refreshed before it is over, and a running session gets the new one", async () => {
    const { need, accessToken } = await grantOf({ endsInMs: 30_000 });
    const grant = await proxies[0]!.credentials.grant(need);
    expect(grant!.headers.authorization).not.toBe(`Bearer ${accessToken}`);
    expect(outcomes()).toEqual(["granted"]);
  });

  test("tokens that live for seconds are refreshed when they are over, not at every call", async () => {
    far.expiresInS = 20;
    try {
      const { need } = await grantOf({ endsInMs: -1_000 });
      expect(new Set(await calls(9, need))).toEqual(new Set([200]));
      expect(await call(0, need)).toBe(200);
      expect(outcomes()).toEqual(["granted"]);
    } finally {
      far.expiresInS = 3600;
    }
  });
});

test("a secret that is entered while a refresh goes on counts, and no call fails for it", async () => {
  const { need, credentialId } = await grantOf({ endsInMs: -1_000 });
  far.delayMs = 400;
  const waiting = calls(6, need);
  await eventually(() => far.asked === 1);
  const entered = far.newGrant();
  const value = { value: entered.accessToken, refreshToken: entered.refreshToken };
  await rig.home.vaults.updateCredential({ credentialId, secret: { form: { case: "plain", value } } });
  expect(new Set(await waiting)).toEqual(new Set([200]));
  const grant = await proxies[0]!.credentials.grant(need);
  expect(grant!.headers.authorization).toBe(`Bearer ${entered.accessToken}`);
  expect(outcomes()).toEqual(["granted"]);
});

describe("what the token endpoint is sent", () => {
  test.each([
    ["none", { client_id: "a client" }, ""],
    ["client_secret_post", { client_id: "a client", client_secret: "canary client:secret" }, ""],
    ["client_secret_basic", {}, "a+client:canary+client%3Asecret"],
  ])("by a client that proves itself with %s", async (clientAuth, more, basic) => {
    const { need, refreshToken } = await grantOf({ endsInMs: -1_000, clientAuth });
    await call(0, need);
    const { form, authorization } = far.refreshes[0]!;
    const common = {
      grant_type: "refresh_token",
      refresh_token: refreshToken,
      scope: "read",
      resource: far.mcpUrl,
    };
    expect(Object.fromEntries(form)).toEqual({ ...common, ...more });
    expect(Buffer.from(authorization.replace("Basic ", ""), "base64").toString()).toBe(basic);
  });
});

describe("a refresh that fails", () => {
  test("is not hammered, and a token that still is good goes on being used", async () => {
    const { need, credentialId, accessToken } = await grantOf({ endsInMs: 30_000 });
    far.failWith = { status: 503, body: `canary ${accessToken}` };
    expect(new Set(await calls(30, need))).toEqual(new Set([200]));
    expect(await call(0, need)).toBe(200);
    expect(far.refreshes).toHaveLength(1);
    await passTime(credentialId, "refresh_retry_at = clock_timestamp()");
    far.failWith = undefined;
    expect(await call(0, need)).toBe(200);
    expect(outcomes()).toEqual(["broken", "granted"]);
  });

  test("for good flags the credential, asks no more until there is a new secret, and says why without a token", async () => {
    const { home } = rig;
    const { need, credentialId } = await grantOf({ endsInMs: -1_000 });
    far.failWith = {
      status: 400,
      body: '{"error":"invalid_grant","error_description":"canary-access-x is gone"}',
    };
    const failures = await Promise.all(
      [0, 1, 2, 3].map((i) => proxies[i % 3]!.credentials.grant(need).catch((error: unknown) => error)),
    );
    for (const failure of failures) {
      expect(failure).toBeInstanceOf(CredentialRefusal);
      expect(failure).toMatchObject({ reason: "TOKEN_EXPIRED", problem: "invalid_grant" });
      expect(String(failure)).not.toContain("canary");
    }
    expect(far.refreshes).toHaveLength(1);
    expect((await home.vaults.getCredential({ credentialId })).credential!.refreshProblem).toBe(
      "invalid_grant",
    );
    const tried = await home.vaults.validateCredential({ credentialId });
    expect(tried).toMatchObject({
      validity: CredentialValidity.INVALID,
      detail: expect.stringContaining("invalid_grant"),
    });
    expect(far.refreshes).toHaveLength(1);
    far.failWith = undefined;
    const again = far.newGrant();
    const value = { value: again.accessToken, refreshToken: again.refreshToken };
    await home.vaults.updateCredential({ credentialId, secret: { form: { case: "plain", value } } });
    expect(await call(0, need)).toBe(200);
    expect((await home.vaults.getCredential({ credentialId })).credential!.refreshProblem).toBe("");
  });

  test("leaves open whether a refused credential is good, unless the grant is gone", async () => {
    const { home } = rig;
    for (const [failWith, validity] of [
      [{ status: 503, body: "" }, CredentialValidity.UNKNOWN],
      [{ status: 400, body: '{"error":"invalid_grant"}' }, CredentialValidity.INVALID],
    ] as const) {
      const { credentialId, accessToken } = await grantOf({ endsInMs: 10 * MINUTE_MS });
      far.expire(accessToken);
      far.failWith = failWith;
      expect(await home.vaults.validateCredential({ credentialId })).toMatchObject({
        validity,
        refreshStatus: "failed",
        httpStatus: 401,
      });
    }
  });

  test("does not follow a redirect with the refresh token, and takes no tokens that are none", async () => {
    const { need, credentialId } = await grantOf({ endsInMs: -1_000 });
    for (const [status, body] of [
      [302, ""],
      [200, '{"access_token":"two words","token_type":"Bearer"}'],
      [200, "no json"],
    ] as const) {
      far.failWith = { status, body };
      await passTime(credentialId, "refresh_retry_at = null, refresh_unfinished = false");
      const failure = await proxies[0]!.credentials.grant(need).catch((error: unknown) => error);
      expect(failure).toMatchObject({
        reason: "TOKEN_EXPIRED",
        problem: status === 302 ? "redirect_refused" : "invalid_response",
      });
    }
  });
});

describe("a proxy that dies in between", () => {
  test("before it has asked: the next one refreshes", async () => {
    const { need, credentialId } = await grantOf({ endsInMs: -1_000 });
    await passTime(
      credentialId,
      "refresh_claim_id = 'of the dead', refresh_claimed_until = clock_timestamp() + interval '1 second'",
    );
    expect(new Set(await calls(9, need))).toEqual(new Set([200]));
    expect(outcomes()).toEqual(["granted"]);
  });

  test("after it has asked: a token that is good is used and nobody asks; when it is over the next one tries, and the loss is told", async () => {
    const { need, credentialId, refreshToken } = await grantOf({ endsInMs: 30_000 });
    // The dead one's request arrived: the refresh token is spent.
    await fetch(far.tokenUrl, { method: "POST", body: new URLSearchParams({ refresh_token: refreshToken }) });
    await passTime(
      credentialId,
      "refresh_claim_id = 'of the dead', refresh_claimed_until = clock_timestamp()",
    );
    expect(new Set(await calls(6, need))).toEqual(new Set([200]));
    expect(outcomes()).toEqual(["granted"]);
    await passTime(credentialId, "expires_at = clock_timestamp()");
    const refused = await proxies[0]!.credentials.grant(need);
    await refused!.renewed();
    expect(outcomes()).toEqual(["granted", "reused"]);
    const { credential } = await rig.home.vaults.getCredential({ credentialId });
    expect(credential!.refreshProblem).toBe("unfinished_refresh");
    expect(await refused!.renewed()).toBeUndefined();
    expect(far.refreshes).toHaveLength(2);
  });
});

test("parts of a secret are replaced without the rest, and a new access token keeps its refresh token", async () => {
  const { home } = rig;
  const { need, credentialId } = await grantOf({ endsInMs: -1_000, clientAuth: "client_secret_post" });
  const again = far.newGrant();
  const expiresAt = timestampFromMs(Date.now() + 60 * MINUTE_MS);
  const secret = (value: object) => ({ form: { case: "plain" as const, value } });
  await home.vaults.updateCredential({
    credentialId,
    secret: secret({ value: again.accessToken, expiresAt }),
    keepRestOfSecret: true,
  });
  expect(await call(0, need)).toBe(200);
  expect(far.refreshes).toHaveLength(0);
  await home.vaults.updateCredential({
    credentialId,
    secret: secret({ refreshToken: again.refreshToken }),
    keepRestOfSecret: true,
  });
  far.expire(again.accessToken);
  expect(await call(1, need)).toBe(200);
  expect(far.refreshes[0]!.form.get("client_secret")).toBe("canary client:secret");
});

test("no token is in the database in the clear, in the audit log or in what the server tells (S2)", async () => {
  // What proxies did is written a moment later, by each of them.
  const wanted = ["open", "inject", "refresh_begin", "refresh", "refresh_failed", "refuse"];
  await eventually(async () => {
    const entries = await rig.audit({ action: "credential." });
    const actions = new Set(entries.map(({ action }) => action));
    expect([...actions]).toEqual(expect.arrayContaining(wanted.map((action) => `credential.${action}`)));
    return true;
  });
  const tables = ["credentials", "vaults", "audit_entries", "request_ids", "sessions", "events"];
  for (const table of tables) {
    const { rows } = await rig.database
      .pool()
      .query<{ text: string }>(`select coalesce(string_agg(t::text, ' '), '') as text from ${table} t`);
    for (const secret of [...far.secrets, "canary"])
      expect(rows[0]!.text.includes(secret), table).toBe(false);
  }
});

/** Connecting vaults to MCP servers by OAuth's authorization code, found by the server's own metadata. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { startAuthorizationServer } from "../kit/authorization-server.ts";
import { type ConnectRig, REDIRECT, startConnectRig } from "../kit/connect-rig.ts";
import { failure } from "../kit/failure.ts";
import { startProxy } from "../kit/proxy-rig.ts";
import { needOf } from "../kit/vault-rig.ts";

let rig: ConnectRig;

beforeAll(async () => {
  rig = await startConnectRig();
});
afterAll(() => rig?.stop());
beforeEach(() => rig.reset());

describe("a vault is connected", () => {
  test.each([
    ["path", "rfc8414"],
    ["header", "openid-inserted"],
    ["root", "openid-appended"],
  ] as const)(
    "by metadata of the server at its %s and of the authorization server by %s",
    async (place, of) => {
      rig.mcp.guard.place = place;
      rig.authorization.set.place = of;
      const vaultId = await rig.home.newVault();
      const started = await rig.begin(vaultId);
      expect(started).toMatchObject({
        issuer: rig.authorization.issuer,
        registered: true,
        scope: "read write",
      });
      const { credential, replaced } = await rig.finish(vaultId, started, { displayName: "by browser" });
      expect(credential).toMatchObject({ id: started.credentialId, vaultId, displayName: "by browser" });
      expect(replaced).toBe(false);
      expect(credential!.use!.kind.value).toMatchObject({
        serverUrl: rig.mcp.url,
        resource: rig.mcp.url,
        clientId: started.clientId,
        clientAuth: "client_secret_basic",
        scope: "read write",
      });
      expect(rig.authorization.access.get((await rig.tokenOf(vaultId))!)).toBe(rig.mcp.url);
      const { validity } = await rig.home.vaults.validateCredential({ credentialId: credential!.id });
      expect(validity).toBe(1);
    },
  );

  test("to a server that is its own authorization server and publishes nothing of itself, as older ones do", async () => {
    rig.mcp.guard.place = "nowhere";
    const vaultId = await rig.home.newVault();
    const error = await failure(rig.begin(vaultId));
    expect(error).toMatchObject({ reason: "CONNECT_FAILED", metadata: { problem: "no_metadata" } });
    const { origin } = new URL(rig.mcp.url);
    const own = await startAuthorizationServer();
    try {
      const answers = rig.mcp.answers;
      rig.mcp.answers = (request, response, body) => {
        if (request.url !== "/.well-known/oauth-authorization-server")
          return answers!(request, response, body);
        const said = { issuer: origin, authorization_endpoint: `${own.origin}/authorize?tenant=1` };
        const more = {
          token_endpoint: `${own.origin}/token`,
          registration_endpoint: `${own.origin}/register`,
        };
        response.writeHead(200, { "content-type": "application/json" });
        response.end(JSON.stringify({ ...said, ...more, code_challenge_methods_supported: ["S256"] }));
        return true;
      };
      own.set.redirect = (query) => query.delete("iss");
      expect((await rig.finish(vaultId, await rig.begin(vaultId))).replaced).toBe(false);
      rig.mcp.answers = answers;
      expect(own.exchanges).toMatchObject([{ refusal: "" }]);
    } finally {
      await own.close();
    }
  });

  test("its token is refreshed with the client that was registered, for the same resource", async () => {
    const vaultId = await rig.home.newVault();
    rig.authorization.set.tokens = { expires_in: 1 };
    const { credential } = await rig.finish(vaultId, await rig.begin(vaultId));
    rig.authorization.set.tokens = {};
    const first = rig.authorization.exchanges.length;
    const token = await rig.tokenOf(vaultId);
    expect(rig.authorization.access.get(token!)).toBe(rig.mcp.url);
    expect(rig.authorization.exchanges.slice(first)).toMatchObject([{ refusal: "" }]);
    const { credential: now } = await rig.home.vaults.getCredential({ credentialId: credential!.id });
    expect(now!.refreshedAt).toBeDefined();
  });

  test("again, its credential stays and its tokens are replaced, for running sessions too", async () => {
    const vaultId = await rig.home.newVault();
    const before = (await rig.finish(vaultId, await rig.begin(vaultId), { displayName: "mine" })).credential!;
    const sessionId = await rig.home.newSession([vaultId]);
    const need = needOf(rig.home, sessionId, rig.mcp.url);
    const old = (await rig.proxy.credentials.grant(need))!.headers.authorization;
    const started = await rig.begin(vaultId);
    expect(started.credentialId).toBe(before.id);
    const again = await rig.finish(vaultId, started, { displayName: "another name" });
    expect(again).toMatchObject({ replaced: true, credential: { id: before.id, displayName: "mine" } });
    expect(await rig.stored(vaultId)).toBe(1);
    const now = (await rig.proxy.credentials.grant(need))!.headers.authorization!;
    expect(now).not.toBe(old);
    expect(rig.authorization.access.has(now.replace("Bearer ", ""))).toBe(true);
  });

  test("and each step is in the audit log, without a secret", async () => {
    const vaultId = await rig.home.newVault();
    const started = await rig.begin(vaultId);
    const { credential } = await rig.finish(vaultId, started);
    const host = new URL(rig.mcp.url).host;
    const common = { host, issuer: rig.authorization.issuer, client_id: started.clientId };
    expect(await rig.steps(vaultId)).toMatchObject([
      { action: "credential.connect_register", ...common, credential_id: credential!.id },
      { action: "credential.connect_begin", ...common, credential_id: credential!.id },
      { action: "credential.connect_exchange" },
    ]);
    const [kept] = await rig.audit({ subject: credential!.id, action: "credential.connect" });
    expect(JSON.parse(kept!.detail)).toEqual({
      vault_id: vaultId,
      host,
      issuer: rig.authorization.issuer,
      replaced: false,
    });
    const all = JSON.stringify((await rig.audit({})).map(({ detail }) => detail));
    for (const secret of rig.authorization.secrets) expect(all).not.toContain(secret);
  });
});

test("what one proxy has begun another one with the same keys ends", async () => {
  const options = { url: rig.server.url, key: rig.proxyKey, keys: rig.proxy.keys };
  const proxies = await Promise.all([startProxy(options), startProxy(options)]);
  try {
    // They are asked in turns: of three proxies none begins and ends the same one each time.
    const vaultIds = [await rig.home.newVault(), await rig.home.newVault()];
    for (const vaultId of vaultIds) await rig.finish(vaultId, await rig.begin(vaultId));
    expect(await Promise.all(vaultIds.map((vaultId) => rig.stored(vaultId)))).toEqual([1, 1]);
  } finally {
    await Promise.all(proxies.map((proxy) => proxy.stop()));
  }
});

describe("what is asked for", () => {
  test.each([
    ["by the caller", { scope: "admin" }, "read", "admin"],
    ["by the server's challenge", {}, "read:notes", "read:notes"],
    ["by all that the server supports", {}, "", "read write"],
  ])("is the scope that is named %s", async (_, more, challenged, asked) => {
    rig.mcp.guard.scope = challenged;
    const started = await rig.begin(await rig.home.newVault(), more);
    expect(started.scope).toBe(asked);
    expect(new URL(started.authorizationUrl).searchParams.get("scope")).toBe(asked);
    expect(rig.authorization.registrations[0]).toMatchObject({ scope: asked });
  });

  test("is a code for the server's resource, with a challenge of PKCE and nothing that is secret", async () => {
    const started = await rig.begin(await rig.home.newVault());
    const { tenant, state, code_challenge, ...rest } = Object.fromEntries(
      new URL(started.authorizationUrl).searchParams,
    );
    expect({ tenant, state }).toEqual({ tenant: "1", state: started.state });
    expect(code_challenge).toMatch(/^[\w-]{43}$/);
    expect(rest).toEqual({
      response_type: "code",
      code_challenge_method: "S256",
      client_id: started.clientId,
      redirect_uri: REDIRECT,
      resource: rig.mcp.url,
      scope: "read write",
    });
    expect(rig.authorization.registrations).toEqual([
      {
        client_name: "Tendon",
        application_type: "native",
        redirect_uris: [REDIRECT],
        grant_types: ["authorization_code", "refresh_token"],
        response_types: ["code"],
        token_endpoint_auth_method: "client_secret_basic",
        scope: "read write",
      },
    ]);
  });

  test.each([
    ["client_secret_basic", ""],
    ["client_secret_post", "client_secret_post"],
    ["none", ""],
  ])("a client that is known proves itself by %s and is not registered", async (way, clientAuth) => {
    const secret = way === "none" ? "" : "canary a:client's secret+%";
    const clientId = `known ${way}`;
    rig.authorization.addClient({ id: clientId, secret, way, redirectUris: ["http://127.0.0.1:1/callback"] });
    const value = { clientSecret: secret };
    const clientSecret = secret === "" ? undefined : { form: { case: "plain" as const, value } };
    const vaultId = await rig.home.newVault();
    const more = { clientId, clientAuth, ...(clientSecret && { clientSecret }) };
    const started = await rig.begin(vaultId, more);
    expect(started).toMatchObject({ registered: false, clientId });
    await rig.finish(vaultId, started);
    expect(rig.authorization.exchanges).toMatchObject([{ refusal: "" }]);
    expect(rig.authorization.registrations).toEqual([]);
    expect(rig.authorization.access.get((await rig.tokenOf(vaultId))!)).toBe(rig.mcp.url);
  });
});

/** Connects that do not come about: nothing is stored, the reason is told and recorded, and nothing secret is repeated. */
import { create } from "@bufbuild/protobuf";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { sealContent } from "../../kit/vault/sealed-content.ts";
import { type ConnectState, ConnectStates } from "../../mcp-proxy/credentials/connect/connect-state.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { SealedContentSchema, VaultService } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { type ConnectRig, startConnectRig } from "../kit/connect-rig.ts";
import { failure } from "../kit/failure.ts";
import { newSealingKeys } from "../kit/proxy-rig.ts";
import { bearer, plain } from "../kit/vault-rig.ts";

let rig: ConnectRig;

beforeAll(async () => {
  rig = await startConnectRig();
});
afterAll(() => rig?.stop());
beforeEach(() => rig.reset());

describe("a connect is not begun", () => {
  test.each<[string, () => void, string, string]>([
    [
      "with an authorization server that does not support S256",
      () => {
        rig.authorization.set.metadata = { code_challenge_methods_supported: ["plain"] };
      },
      "discovery",
      "no_s256",
    ],
    [
      "with one that says nothing of PKCE",
      () => {
        rig.authorization.set.metadata = { code_challenge_methods_supported: undefined };
      },
      "discovery",
      "no_s256",
    ],
    [
      "with one whose metadata is another issuer's",
      () => {
        rig.authorization.set.metadata = { issuer: "https://login.example.com" };
      },
      "discovery",
      "issuer_differs",
    ],
    [
      "with one that gives no codes",
      () => {
        rig.authorization.set.metadata = { response_types_supported: ["token"] };
      },
      "discovery",
      "no_code_flow",
    ],
    [
      "with one whose endpoint is no web page",
      () => {
        rig.authorization.set.metadata = { authorization_endpoint: "file:///etc/passwd" };
      },
      "discovery",
      "bad_metadata",
    ],
    [
      "with one whose metadata is too long",
      () => {
        rig.authorization.set.metadata = { more: "x".repeat(200_000) };
      },
      "discovery",
      "no_metadata",
    ],
    [
      "for a server whose metadata is another resource's",
      () => {
        rig.mcp.guard.metadata = { resource: "https://rig.mcp.example.com/mcp" };
      },
      "discovery",
      "resource_differs",
    ],
    [
      "for one whose metadata is that of a place below it",
      () => {
        rig.mcp.guard.metadata = { resource: `${rig.mcp.url}/below` };
      },
      "discovery",
      "resource_differs",
    ],
    [
      "for one that names no authorization server",
      () => {
        rig.mcp.guard.metadata = { authorization_servers: [] };
      },
      "discovery",
      "bad_metadata",
    ],
    [
      "for one whose authorization server is where nothing is ever sent",
      () => {
        rig.mcp.guard.metadata = { authorization_servers: ["https://169.254.169.254"] };
      },
      "discovery",
      "address_not_allowed",
    ],
    [
      "where clients are not registered",
      () => {
        rig.authorization.set.metadata = { registration_endpoint: undefined };
      },
      "registration",
      "no_registration",
    ],
    [
      "where this client is not registered",
      () => {
        rig.authorization.set.refusesClients = "invalid_redirect_uri";
      },
      "registration",
      "invalid_redirect_uri",
    ],
    [
      "where it is registered in a way that nobody here knows",
      () => {
        rig.authorization.set.registered = { token_endpoint_auth_method: "private_key_jwt" };
      },
      "registration",
      "invalid_response",
    ],
  ])("%s", async (_, change, step, problem) => {
    change();
    const vaultId = await rig.home.newVault();
    const error = await failure(rig.begin(vaultId));
    expect(error).toMatchObject({ reason: "CONNECT_FAILED", metadata: { part: "upstream", step, problem } });
    expect(error.message).not.toContain("canary");
    if (step === "registration") expect(error.message).toMatch(/--client-id.*--client-secret-file/);
    expect(await rig.stored(vaultId)).toBe(0);
    expect(await rig.steps(vaultId)).toMatchObject([{ action: "credential.connect_failed", step, problem }]);
  });

  test("with an authorization server that the MCP server does not name, and is with one that it does", async () => {
    rig.mcp.guard.metadata = {
      authorization_servers: ["https://other.example.com/", rig.authorization.issuer],
    };
    const vaultId = await rig.home.newVault();
    const error = await failure(rig.begin(vaultId, { issuer: "https://third.example.com" }));
    expect(error.metadata).toMatchObject({ problem: "issuer_unknown" });
    expect((await rig.begin(vaultId, { issuer: rig.authorization.issuer })).issuer).toBe(
      rig.authorization.issuer,
    );
  });

  test("over a redirect", async () => {
    const answers = rig.mcp.answers;
    rig.mcp.answers = (request, response, body) => {
      if (!request.url!.startsWith("/.well-known/")) return answers!(request, response, body);
      response.writeHead(302, { location: `${rig.authorization.issuer}/metadata` }).end();
      return true;
    };
    const error = await failure(rig.begin(await rig.home.newVault()));
    rig.mcp.answers = answers;
    expect(error.metadata).toMatchObject({ step: "discovery", problem: "redirect_refused" });
    expect(rig.authorization.seen).toEqual([]);
  });

  test("with a client's secret that its caller has sealed for another server or client (S1), and is with the right one", async () => {
    const vaultId = await rig.home.newVault();
    const { workspaceId } = rig.home;
    const sealed = async (serverUrl: string, clientId: string) => {
      const use = { kind: { case: "oauth" as const, value: { serverUrl, clientId } } };
      const secret = { clientSecret: "a secret of a client" };
      const content = create(SealedContentSchema, { version: 1, workspaceId, vaultId, use, secret });
      const value = await sealContent(rig.proxy.keys[0], content);
      return { clientId: "mine", clientSecret: { form: { case: "sealed" as const, value } } };
    };
    for (const [serverUrl, clientId] of [
      ["https://mcp.example.com/mcp", "mine"],
      [rig.mcp.url, "yours"],
    ]) {
      const error = await failure(rig.begin(vaultId, await sealed(serverUrl!, clientId!)));
      expect(error).toMatchObject({ reason: "SEAL_REFUSED", metadata: { refusal: "destination_differs" } });
    }
    expect(rig.authorization.seen).toEqual([]);
    expect(await rig.begin(vaultId, await sealed(rig.mcp.url, "mine"))).toMatchObject({ clientId: "mine" });
  });

  test("for what would fail in the end", async () => {
    const vaultId = await rig.home.newVault();
    await rig.home.addCredential(vaultId, bearer(rig.mcp.url), "a-token");
    expect(await failure(rig.begin(vaultId))).toMatchObject({ reason: "ALREADY_EXISTS" });
    const reasons: string[] = [];
    const other = await rig.home.newVault();
    for (const more of [
      { redirectUri: "http://192.0.2.1/callback" },
      { redirectUri: "http://127.0.0.1:1/callback#x" },
      { serverUrl: "hand-agent://lab/rig.mcp.corp/mcp" },
      { clientAuth: "none" },
      { clientId: "a", clientAuth: "client_secret_post" },
      { clientId: "a", clientAuth: "private_key_jwt" },
      { clientId: "a", clientSecret: plain("in the wrong field") },
    ])
      reasons.push((await failure(rig.begin(other, more))).reason);
    expect(new Set(reasons)).toEqual(new Set(["INVALID_FIELD"]));
    await rig.home.vaults.archiveVault({ vaultId: other });
    expect((await failure(rig.begin(other))).reason).toBe("VAULT_ARCHIVED");
    expect(rig.authorization.seen).toEqual([]);
  });
});

describe("a connect is not ended", () => {
  const refusals: [string, (query: URLSearchParams) => void, string][] = [
    ["with the answer to another request", (query) => query.set("state", "x".repeat(43)), "state_differs"],
    [
      "with the answer of another authorization server",
      (query) => query.set("iss", "https://evil.example.com"),
      "issuer_differs",
    ],
    [
      "with one that does not name its authorization server, which does so",
      (query) => query.delete("iss"),
      "issuer_missing",
    ],
    [
      "when somebody refuses",
      (query) => {
        query.delete("code");
        query.set("error", "access_denied");
      },
      "access_denied",
    ],
    [
      "with an error that is none of the standards",
      (query) => {
        query.delete("code");
        query.set("error", "canary <b>");
      },
      "refused",
    ],
  ];
  test.each(refusals)("%s", async (_, redirect, problem) => {
    const vaultId = await rig.home.newVault();
    const started = await rig.begin(vaultId);
    rig.authorization.set.redirect = redirect;
    const error = await failure(rig.finish(vaultId, started));
    expect(error).toMatchObject({ reason: "CONNECT_FAILED", metadata: { step: "authorization", problem } });
    expect(error.message).not.toContain("canary");
    expect(rig.authorization.exchanges).toEqual([]);
    expect(await rig.stored(vaultId)).toBe(0);
    expect((await rig.steps(vaultId)).at(-1)).toMatchObject({ action: "credential.connect_failed", problem });
    // What was refused once is over.
    rig.authorization.set.redirect = () => {};
    expect(await failure(rig.finish(vaultId, started))).toMatchObject({
      reason: "CONNECT_STATE_REFUSED",
      metadata: { problem: "used" },
    });
  });

  test("twice, and a code that was used is good for nothing", async () => {
    const vaultId = await rig.home.newVault();
    const started = await rig.begin(vaultId);
    const answer = await rig.browse(started);
    const { connectState } = started;
    const both = await Promise.allSettled(
      [1, 2].map(() => rig.home.vaults.finishConnect({ vaultId, connectState, ...answer })),
    );
    expect(both.map(({ status }) => status).sort()).toEqual(["fulfilled", "rejected"]);
    expect(rig.authorization.exchanges).toHaveLength(1);
    const other = await rig.begin(vaultId);
    const again = { vaultId, connectState: other.connectState, ...answer, state: other.state };
    const error = await failure(rig.home.vaults.finishConnect(again));
    expect(error).toMatchObject({
      reason: "CONNECT_FAILED",
      metadata: { step: "token", problem: "invalid_grant" },
    });
    expect(rig.authorization.exchanges.map(({ refusal }) => refusal)).toEqual(["", "code reuse"]);
  });

  test("when the token endpoint gives no tokens, and then nothing is stored", async () => {
    const vaultId = await rig.home.newVault();
    for (const [status, body, problem] of [
      [400, '{"error":"invalid_grant","error_description":"canary"}', "invalid_grant"],
      [200, '{"access_token":"canary two words","token_type":"Bearer"}', "invalid_response"],
      [200, '{"access_token":"canary","token_type":"mac"}', "invalid_response"],
      [503, "canary", "http_503"],
    ] as const) {
      const started = await rig.begin(vaultId);
      rig.authorization.set.tokenFailure = { status, body };
      const error = await failure(rig.finish(vaultId, started));
      expect(error).toMatchObject({ metadata: { step: "token", problem } });
      expect(error.message).not.toContain("canary");
      rig.authorization.set.tokenFailure = undefined;
    }
    expect(await rig.stored(vaultId)).toBe(0);
  });

  test("later than 10 minutes after it was begun", async () => {
    const vaultId = await rig.home.newVault();
    const started = await rig.begin(vaultId);
    const tenMinutes = Number(started.expiresAt!.seconds) * 1000 - Date.now();
    expect(tenMinutes).toBeLessThanOrEqual(600_000);
    const connectState = await rig.changed(started, { expiresAtMs: Date.now() - 1 });
    const error = await failure(rig.finish(vaultId, { ...started, connectState }));
    expect(error).toMatchObject({ reason: "CONNECT_STATE_REFUSED", metadata: { problem: "expired" } });
    expect(rig.authorization.exchanges).toEqual([]);
  });

  test("by anybody but who has begun it, for another vault, or with a state that no proxy made", async () => {
    const { home, elsewhere, server } = rig;
    const vaultId = await home.newVault();
    const admin = server.client(AdminService);
    const { secret: otherKey } = await admin.createApiKey({
      name: "other",
      role: Role.CLIENT,
      workspaceId: home.workspaceId,
    });
    const refused = async (vaults: typeof home.vaults, into: string, more: object = {}) => {
      const started = await rig.begin(vaultId);
      const request = {
        vaultId: into,
        connectState: started.connectState,
        ...(await rig.browse(started)),
        ...more,
      };
      const { reason, metadata } = await failure(vaults.finishConnect(request));
      return `${reason} ${metadata.problem ?? ""}`.trim();
    };
    const anothers = "CONNECT_STATE_REFUSED of_another";
    expect(await refused(elsewhere.vaults, vaultId)).toBe("NOT_FOUND");
    expect(await refused(elsewhere.vaults, await elsewhere.newVault())).toBe(anothers);
    expect(await refused(server.client(VaultService, otherKey), vaultId)).toBe(anothers);
    expect(await refused(home.vaults, await home.newVault())).toBe(anothers);
    const foreign = new ConnectStates(await newSealingKeys());
    const forged = await foreign.seal({ ...({} as ConnectState), workspaceId: home.workspaceId });
    const unreadable = "CONNECT_STATE_REFUSED unreadable";
    expect(await refused(home.vaults, vaultId, { connectState: forged })).toBe(unreadable);
    expect(await refused(home.vaults, vaultId, { connectState: "no.state" })).toBe(unreadable);
    // What anybody can make with the public key is no state, either.
    const content = create(SealedContentSchema, { version: 1, workspaceId: home.workspaceId, vaultId });
    const withPublicKey = await sealContent(rig.proxy.keys[0], content);
    expect(await refused(home.vaults, vaultId, { connectState: withPublicKey })).toBe(unreadable);
    expect(rig.authorization.exchanges).toEqual([]);
  });
});

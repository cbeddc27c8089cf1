/** What a proxy gets for a session, and what it refuses: only what is sealed counts (S1, S3, S5). */
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Reason, TendonError } from "../../kit/errors.ts";
import { CredentialRefusal } from "../../mcp-proxy/credentials/refusal.ts";
import { AdminService, Role } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { CredentialPurpose, CredentialService } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { CredentialValidity } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { newSealingKeys, startProxy, type TestProxy } from "../kit/proxy-rig.ts";
import { bearer, needOf, startVaultRig, takeSession, type VaultRig } from "../kit/vault-rig.ts";

let rig: VaultRig;
let proxy: TestProxy;

beforeAll(async () => {
  rig = await startVaultRig();
  proxy = await startProxy({ url: rig.server.url, key: rig.proxyKey, keys: await newSealingKeys(2) });
});
afterAll(async () => {
  await proxy?.stop();
  await rig?.stop();
});

const URL_A = "https://a.example.com/mcp";
const query = (sql: string, values: unknown[]) => rig.database.pool().query(sql, values);

/** Once so many are connected, as the server sees it. */
const proxiesAre = (count: number) =>
  eventually(async () => (await rig.server.client(AdminService).getStatus({})).proxies.length === count);

async function refusal(promise: PromiseLike<unknown>): Promise<string> {
  const error = await promise.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (error instanceof CredentialRefusal || error instanceof TendonError) return error.reason;
  throw new Error(`expected a refusal, got ${error}`);
}

type Told = [action: string, detail: Record<string, unknown>][];

/** What the audit log has of a credential, oldest first, once so many things are in it; the same twice at once is one entry with a count. */
async function uses(subject: string, things: number): Promise<Told> {
  return eventually(async (): Promise<Told | undefined> => {
    const entries = await rig.audit({ subject });
    const told: Told = entries.reverse().map(({ action, detail }) => [action, JSON.parse(detail)]);
    const sum = told.reduce((all, [, { count = 1 }]) => all + Number(count), 0);
    return sum >= things ? told : undefined;
  });
}

describe("a session's credential", () => {
  test("is found by its vaults in their order, for the very URL, however that is written", async () => {
    const { home } = rig;
    const [first, second, third] = [await home.newVault(), await home.newVault(), await home.newVault()];
    await home.addCredential(first, bearer("https://other.example.com/mcp"), "secret-other");
    await home.addCredential(second, bearer(URL_A), "secret-second");
    await home.addCredential(third, bearer(URL_A), "secret-third");
    const sessionId = await home.newSession([first, second, third]);
    const headers = async (url: string, id = sessionId) =>
      (await proxy.credentials.grant(needOf(home, id, url)))?.headers;
    for (const same of [URL_A, "https://A.example.com:443/mcp/"]) {
      expect(await headers(same)).toEqual({ authorization: "Bearer secret-second" });
    }
    for (const other of [
      "https://a.example.com/mcp2",
      "https://a.example.com/",
      "https://a.example.com:444/mcp",
      "https://b.a.example.com/mcp",
      "http://a.example.com/mcp",
      `${URL_A}?x=1`,
    ]) {
      expect(await headers(other)).toBeUndefined();
    }
    const turned = await home.newSession([third, second]);
    expect(await headers(URL_A, turned)).toEqual({ authorization: "Bearer secret-third" });
    expect(await headers(URL_A, await home.newSession([]))).toBeUndefined();
  });

  test("is a header, a token or a git user's, and its values are known for taking them out of answers", async () => {
    const { home } = rig;
    const vaultId = await home.newVault();
    await home.addCredential(
      vaultId,
      { kind: { case: "header", value: { serverUrl: URL_A, headerName: "X-Api-Key" } } },
      "secret-header",
    );
    await home.addCredential(
      vaultId,
      { kind: { case: "git", value: { url: "https://git.example.com/owner" } } },
      { value: "secret-owner", userName: "bot" },
    );
    await home.addCredential(
      vaultId,
      { kind: { case: "git", value: { url: "https://git.example.com/owner/repo" } } },
      "secret-repo",
    );
    const sessionId = await home.newSession([vaultId]);
    const mcp = await proxy.credentials.grant(needOf(home, sessionId, URL_A));
    expect([mcp!.headers, mcp!.secrets]).toEqual([{ "x-api-key": "secret-header" }, ["secret-header"]]);
    const git = async (destination: string) => {
      const need = { ...needOf(home, sessionId, destination), purpose: CredentialPurpose.GIT as const };
      const grant = await proxy.credentials.grant(need);
      return grant && Buffer.from(grant.headers.authorization!.slice(6), "base64").toString();
    };
    expect(await git("https://git.example.com/owner/repo.git")).toBe("x-access-token:secret-repo");
    expect(await git("https://git.example.com/owner/another")).toBe("bot:secret-owner");
    expect(await git("https://git.example.com/ownership/repo")).toBeUndefined();
  });

  test("of a thread is one of its root's vaults", async () => {
    const { home } = rig;
    const [ofRoot, ofThread] = [await home.newVault(), await home.newVault()];
    await home.addCredential(ofRoot, bearer(URL_A), "secret-of-root");
    await home.addCredential(ofThread, bearer(URL_A), "secret-of-thread");
    const [root, thread] = [await home.newSession([ofRoot]), await home.newSession([ofThread])];
    await query("update sessions set root_session_id = $2 where session_id = $1", [thread, root]);
    const grant = await proxy.credentials.grant(needOf(home, thread, URL_A));
    expect(grant!.headers).toEqual({ authorization: "Bearer secret-of-root" });
    await home.sessions.archiveSession({ sessionId: root, interrupt: true });
    expect(await refusal(proxy.credentials.grant(needOf(home, thread, URL_A)))).toBe("SESSION_ARCHIVED");
  });

  test("counts as it is now: a new secret, an archived credential and vault count from the next request on", async () => {
    const { home } = rig;
    const vaultId = await home.newVault();
    const credentialId = await home.addCredential(vaultId, bearer(URL_A), "secret-one");
    const sessionId = await home.newSession([vaultId]);
    const token = async () =>
      (await proxy.credentials.grant(needOf(home, sessionId, URL_A)))?.headers.authorization;
    expect(await token()).toBe("Bearer secret-one");
    await home.vaults.updateCredential({
      credentialId,
      secret: { form: { case: "plain", value: { value: "secret-two" } } },
    });
    expect(await token()).toBe("Bearer secret-two");
    await home.vaults.archiveCredential({ credentialId });
    expect(await token()).toBeUndefined();
    await home.addCredential(vaultId, bearer(URL_A), "secret-three");
    expect(await token()).toBe("Bearer secret-three");
    await home.vaults.archiveVault({ vaultId });
    expect(await token()).toBeUndefined();
  });

  test("is refused to an older brain, to an archived session and to a proxy of another workspace, and the log says so (E1)", async () => {
    const { home, elsewhere, server } = rig;
    const vaultId = await home.newVault();
    await home.addCredential(vaultId, bearer(URL_A), "some-secret");
    const sessionId = await home.newSession([vaultId]);
    const resolve = (epoch: bigint, key = rig.proxyKey) =>
      server.client(CredentialService, key).resolveCredential({ sessionId, epoch, destination: URL_A });
    await resolve(1n);
    const admin = server.client(AdminService);
    const { secret: foreign } = await admin.createApiKey({
      name: "p",
      role: Role.PROXY,
      workspaceId: elsewhere.workspaceId,
    });
    expect(await refusal(resolve(1n, foreign))).toBe("NOT_FOUND" satisfies Reason);
    await takeSession(rig.database, sessionId);
    expect(await refusal(resolve(1n))).toBe("LEASE_FENCED" satisfies Reason);
    expect(await refusal(resolve(3n))).toBe("LEASE_FENCED" satisfies Reason);
    await home.sessions.archiveSession({ sessionId, interrupt: true });
    expect(await refusal(resolve(2n))).toBe("SESSION_ARCHIVED" satisfies Reason);
    const entries = await rig.audit({ sessionId });
    const told = entries.reverse().map(({ action, detail }) => [action, JSON.parse(detail).reason]);
    expect(told).toEqual([
      ["credential.open", undefined],
      ["credential.refuse", "lease_fenced"],
      ["credential.refuse", "lease_fenced"],
      ["credential.refuse", "session_archived"],
    ]);
    expect(entries[0]).toMatchObject({
      workspaceId: home.workspaceId,
      actor: expect.stringMatching(/^proxy apikey_/),
    });
  });
});

describe("whoever can write the database", () => {
  /** Two workspaces with a credential for the same URL each, and a session of the first. */
  async function world() {
    const { home, elsewhere } = rig;
    const [vaultId, foreignVaultId] = [await home.newVault(), await elsewhere.newVault()];
    const credentialId = await home.addCredential(vaultId, bearer(URL_A), "secret-home");
    const siblingId = await home.addCredential(
      vaultId,
      bearer("https://sibling.example.com"),
      "secret-sibling",
    );
    const foreignId = await elsewhere.addCredential(foreignVaultId, bearer(URL_A), "secret-elsewhere");
    const sessionId = await home.newSession([vaultId]);
    const grant = (url = URL_A) => proxy.credentials.grant(needOf(home, sessionId, url));
    return { vaultId, foreignVaultId, credentialId, siblingId, foreignId, sessionId, grant };
  }

  test("and puts another's sealed text into a row gets nothing, and the audit log tells of it (S1)", async () => {
    const { grant, credentialId, siblingId, foreignId } = await world();
    for (const from of [siblingId, foreignId]) {
      await query(
        "update credentials set sealed = (select sealed from credentials where credential_id = $2) where credential_id = $1",
        [credentialId, from],
      );
      expect(await refusal(grant())).toBe("SEAL_OF_ANOTHER");
    }
    const told = await uses(credentialId, 5);
    const refused = told.filter(([action]) => action === "credential.refuse").map(([, detail]) => detail);
    expect(refused.reduce((sum, { count = 1 }) => sum + Number(count), 0)).toBe(2);
    expect(refused[0]).toMatchObject({ host: "a.example.com", result: "seal_of_another" });
  });

  test("and names a neighbour's vault in a session, or moves a row to it, gets nothing", async () => {
    const { grant, sessionId, credentialId, vaultId, foreignVaultId, foreignId } = await world();
    await query("update sessions set vault_ids = $2 where session_id = $1", [sessionId, [foreignVaultId]]);
    expect(await grant()).toBeUndefined();
    await query("update sessions set vault_ids = $2 where session_id = $1", [sessionId, [vaultId]]);
    await query("delete from credentials where credential_id = $1", [credentialId]);
    await query("update credentials set vault_id = $2, workspace_id = $3 where credential_id = $1", [
      foreignId,
      vaultId,
      rig.home.workspaceId,
    ]);
    expect(await refusal(grant())).toBe("SEAL_OF_ANOTHER");
  });

  test("and moves vault, credential and session alike is refused for the workspace of the session's token", async () => {
    const { sessionId, foreignVaultId } = await world();
    const { elsewhere, home } = rig;
    await query("update sessions set workspace_id = $2, vault_ids = $3 where session_id = $1", [
      sessionId,
      elsewhere.workspaceId,
      [foreignVaultId],
    ]);
    expect(await refusal(proxy.credentials.grant(needOf(home, sessionId, URL_A)))).toBe("SEAL_OF_ANOTHER");
  });

  test("and edits the destination sends nothing there: what is sealed says where it may go", async () => {
    const { grant, credentialId } = await world();
    const evil = "https://evil.example.com/mcp";
    await query(
      "update credentials set destination = $2, use = replace(use, $3, $4) where credential_id = $1",
      [credentialId, `mcp ${evil}`, URL_A, evil],
    );
    expect(await refusal(grant(evil))).toBe("DESTINATION_DIFFERS");
    expect((await uses(credentialId, 3)).at(-1)).toEqual([
      "credential.refuse",
      { host: "evil.example.com", result: "destination_differs" },
    ]);
  });

  test("and changes a sealed text, or seals one to a key of their own, gets it refused", async () => {
    const { grant, credentialId } = await world();
    const { rows } = await rig.database
      .pool()
      .query<{ sealed: string }>("select sealed from credentials where credential_id = $1", [credentialId]);
    const parts = rows[0]!.sealed.split(".");
    const flipped = [
      ...parts.slice(0, 3),
      (parts[3]![0] === "A" ? "B" : "A") + parts[3]!.slice(1),
      parts[4],
    ].join(".");
    const header = JSON.parse(Buffer.from(parts[0]!, "base64url").toString()) as object;
    const [foreign] = await newSealingKeys();
    const renamed = [
      Buffer.from(JSON.stringify({ ...header, kid: foreign.keyId })).toString("base64url"),
      ...parts.slice(1),
    ].join(".");
    for (const [sealed, reason] of [
      [flipped, "SEAL_BROKEN"],
      ["no.jwe.at.all.x", "SEAL_BROKEN"],
      [renamed, "KEY_UNKNOWN"],
    ] as const) {
      await query("update credentials set sealed = $2 where credential_id = $1", [credentialId, sealed]);
      expect(await refusal(grant())).toBe(reason);
    }
  });

  test("cannot take back what the audit log says", async () => {
    for (const sql of [
      "update audit_entries set actor = 'nobody'",
      "delete from audit_entries",
      "truncate audit_entries",
    ]) {
      await expect(query(sql, [])).rejects.toThrow(/only ever added to/);
    }
  });
});

describe("a new destination without the secret", () => {
  test("is sealed by a proxy and audited; the secret stays as it was", async () => {
    const { home } = rig;
    const vaultId = await home.newVault();
    const credentialId = await home.addCredential(vaultId, bearer(URL_A), "secret-moving");
    const sessionId = await home.newSession([vaultId]);
    const moved = "https://moved.example.com/mcp";
    const { credential } = await home.vaults.updateCredential({ credentialId, use: bearer(moved) });
    expect(credential!.use!.kind.value).toMatchObject({ serverUrl: moved });
    expect(await proxy.credentials.grant(needOf(home, sessionId, URL_A))).toBeUndefined();
    expect((await proxy.credentials.grant(needOf(home, sessionId, moved)))!.headers.authorization).toBe(
      "Bearer secret-moving",
    );
    expect((await uses(credentialId, 2))[1]).toEqual([
      "credential.redirect",
      { changed: ["use"], kind: "static_bearer", host: "moved.example.com" },
    ]);
    const other = { kind: { case: "git" as const, value: { url: "https://git.example.com" } } };
    expect(await refusal(home.vaults.updateCredential({ credentialId, use: other }))).toBe("INVALID_FIELD");
  });

  test("can be forbidden by an installation; with the secret, and for what is no destination, it goes on", async () => {
    const { home } = rig;
    const vaultId = await home.newVault();
    const strict = await startProxy({
      url: rig.server.url,
      key: rig.proxyKey,
      keys: proxy.keys,
      destinations: "fixed",
    });
    try {
      const git = (url: string, pushBranches: string[]) => ({
        kind: { case: "git" as const, value: { url, pushBranches } },
      });
      const credentialId = await home.addCredential(
        vaultId,
        git("https://git.example.com/a", []),
        "some-secret",
      );
      // Asked in turns: the one that forbids it is asked by every second request.
      const move = (i: number) =>
        home.vaults.updateCredential({ credentialId, use: git(`https://git.example.com/b${i}`, []) });
      const outcomes = [
        await move(1).catch((error) => error.reason),
        await move(2).catch((error) => error.reason),
      ];
      expect(outcomes.filter((outcome) => outcome === "DESTINATION_FIXED")).toHaveLength(1);
      await proxy.stop();
      await proxiesAre(1);
      expect(await refusal(move(3))).toBe("DESTINATION_FIXED");
      const { credential } = await home.vaults.getCredential({ credentialId });
      const { url } = credential!.use!.kind.value as { url: string };
      await home.vaults.updateCredential({ credentialId, use: git(url, ["main"]) });
      const secret = { form: { case: "plain" as const, value: { value: "secret-again" } } };
      await home.vaults.updateCredential({
        credentialId,
        use: git("https://git.example.com/c", ["main"]),
        secret,
      });
      expect((await uses(credentialId, 6)).map(([action]) => action)).toContain("credential.refuse");
    } finally {
      proxy = await startProxy({ url: rig.server.url, key: rig.proxyKey, keys: strict.keys });
      await strict.stop();
    }
  });

  test("without a proxy it is refused with a reason", async () => {
    const { home } = rig;
    const credentialId = await home.addCredential(await home.newVault(), bearer(URL_A), "some-secret");
    await proxy.stop();
    await proxiesAre(0);
    try {
      const asked = home.vaults.updateCredential({ credentialId, use: bearer("https://x.example.com") });
      expect(await refusal(asked)).toBe("NOT_CONFIGURED");
    } finally {
      proxy = await startProxy({ url: rig.server.url, key: rig.proxyKey, keys: proxy.keys });
    }
  });
});

describe("trying a credential", () => {
  let far: Server;
  let url = "";
  const seen: { method: string; url: string; headers: Record<string, unknown> }[] = [];
  beforeAll(async () => {
    far = createServer((request, response) => {
      request.resume();
      const { method = "", url: path = "", headers } = request;
      seen.push({ method, url: path, headers });
      const { authorization = "", "x-api-key": key = "" } = headers;
      const isGood = authorization === "Bearer canary-good" || key === "canary-good";
      if (path.startsWith("/away"))
        return response.writeHead(302, { location: "https://evil.example.com/" }).end();
      if (path.startsWith("/broken")) return response.writeHead(503).end(`you sent ${authorization}`);
      // A careless server repeats what it was sent.
      const more = method === "POST" ? { "mcp-session-id": "upstream-1", "x-echo": authorization } : {};
      response.writeHead(isGood ? 200 : 401, { "content-type": "application/json", ...more });
      response.end(JSON.stringify({ echoed: authorization + key }));
    });
    await new Promise<void>((resolve) => far.listen(0, "127.0.0.1", resolve));
    url = `http://127.0.0.1:${(far.address() as AddressInfo).port}`;
  });
  afterAll(() => {
    far.close();
    far.closeAllConnections();
  });

  test.each([
    ["that is good", "/mcp", "canary-good", CredentialValidity.VALID, 200],
    ["that is refused", "/mcp", "canary-bad-0", CredentialValidity.INVALID, 401],
    ["whose server is broken", "/broken", "canary-good", CredentialValidity.UNKNOWN, 503],
    ["whose server leads elsewhere", "/away", "canary-good", CredentialValidity.UNKNOWN, 0],
  ])("%s", async (_, path, value, validity, httpStatus) => {
    const { home } = rig;
    const vaultId = await home.newVault();
    seen.length = 0;
    const credentialId = await home.addCredential(vaultId, bearer(url + path), value);
    const answer = await home.vaults.validateCredential({ credentialId });
    expect(answer).toMatchObject({ validity, httpStatus, refreshed: false, hasRefreshToken: false });
    expect(JSON.stringify(answer)).not.toContain("canary");
    expect(seen[0]!.headers.authorization).toBe(`Bearer ${value}`);
    if (path === "/mcp" && httpStatus === 200) {
      expect(seen[1]).toMatchObject({ method: "DELETE", headers: { "mcp-session-id": "upstream-1" } });
    }
    const told = (await uses(credentialId, 2)).at(-1);
    expect(told).toEqual(["credential.validate", expect.objectContaining({ host: url.slice(7) })]);
    expect(JSON.stringify(told)).not.toContain("canary");
  });

  test("says what cannot be tried, and reaches nothing that the rules forbid", async () => {
    const { home } = rig;
    const vaultId = await home.newVault();
    const variable = { name: "A", allowedHosts: ["a.example.com"], inBody: true };
    const ids = [
      await home.addCredential(
        vaultId,
        { kind: { case: "environmentVariable", value: variable } },
        "some-secret",
      ),
      await home.addCredential(vaultId, bearer("http://169.254.169.254/latest"), "some-secret"),
      await home.addCredential(vaultId, bearer(rig.server.url), "some-secret"),
    ];
    const answers = await Promise.all(
      ids.map((credentialId) => home.vaults.validateCredential({ credentialId })),
    );
    expect(answers.map(({ validity }) => validity)).toEqual(ids.map(() => CredentialValidity.UNKNOWN));
    expect(answers[0]!.detail).toMatch(/variable cannot be tried/);
    expect(answers[1]!.detail).toMatch(/nothing is ever sent to/);
    expect(answers[2]!.detail).toMatch(/Tendon itself/);
  });
});

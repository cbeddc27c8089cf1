/** VaultService over the wire: what people do with vaults and credentials, and what they never see again. */
import Anthropic from "@anthropic-ai/sdk";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import { Opener } from "../../mcp-proxy/credentials/opener.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { NetworkMode } from "../../proto/gen/tendon/v1/environment_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { CredentialUseSchema } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { failure } from "../kit/failure.ts";
import { newSealingKeys, startProxy, type TestProxy } from "../kit/proxy-rig.ts";
import { bearer, plain, startVaultRig, type Tenant, type VaultRig } from "../kit/vault-rig.ts";

let rig: VaultRig;
let proxy: TestProxy;
let vaults: Tenant["vaults"];
let strangers: Tenant["vaults"];

beforeAll(async () => {
  rig = await startVaultRig();
  vaults = rig.home.vaults;
  strangers = rig.elsewhere.vaults;
  proxy = await startProxy({ url: rig.server.url, key: rig.proxyKey, keys: await newSealingKeys(2) });
});
afterAll(async () => {
  await proxy?.stop();
  await rig?.stop();
});

const CANARY = "canary-5e1f77aa02";
const newVault = () => rig.home.newVault();

describe("vaults", () => {
  test("are made, read, changed, listed, archived and deleted", async () => {
    const request = { requestId: newId("request"), displayName: "mine", metadata: { team: "core", a: "b" } };
    const { vault } = await vaults.createVault(request);
    expect(vault).toMatchObject({ workspaceId: rig.home.workspaceId, displayName: "mine" });
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
    const { rows } = await rig.database
      .pool()
      .query<{ all: string }>("select coalesce(string_agg(c::text, ' '), '') as all from credentials c");
    expect(rows[0]!.all).not.toContain(CANARY);
    const opener = new Opener(proxy.keys);
    const { rows: sealed } = await rig.database
      .pool()
      .query<{ credential_id: string; sealed: string }>(
        "select credential_id, sealed from credentials where vault_id = $1 order by created_at",
        [vaultId],
      );
    const names = (credentialId: string) => ({ workspaceId: rig.home.workspaceId, vaultId, credentialId });
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
      const { rows } = await rig.database
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
      const { rows } = await rig.database
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
    const { entries } = await rig.server.client(AdminService).listAuditEntries({ subject: one });
    expect(entries.map(({ action }) => action)).toEqual(["credential.archive", "credential.create"]);
    expect(entries[0]!.workspaceId).toBe(rig.home.workspaceId);
  });
});

describe("sessions", () => {
  test("are given vaults of their own workspace that are not archived, and no other", async () => {
    const sessions = rig.server.client(SessionService, rig.home.key);
    const { agent } = await rig.server
      .client(AgentService, rig.home.key)
      .createAgent({ spec: { name: "a" } });
    const [own, foreign, archived] = [await newVault(), await rig.elsewhere.newVault(), await newVault()];
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

  test("with variables are refused where their hands would have no relay for these, however they are made", async () => {
    const { key } = rig.home;
    const [sessions, environments] = [
      rig.server.client(SessionService, key),
      rig.server.client(EnvironmentService, key),
    ];
    const newAgent = async (spec: object) =>
      (await rig.server.client(AgentService, key).createAgent({ spec: { name: "a", ...spec } })).agent!.id;
    const agentId = await newAgent({ tools: [{ kind: { case: "handToolset", value: {} } }] });
    const newEnvironment = async (spec: object) => {
      const made = await environments.createEnvironment({ spec: { name: newId("environment"), ...spec } });
      return made.environment!;
    };
    const { id: open, spec } = await newEnvironment({ network: { mode: NetworkMode.UNRESTRICTED } });
    const { id: closed } = await newEnvironment({ network: { mode: NetworkMode.NONE } });
    const { id: process } = await newEnvironment({ driver: "process" });
    const [vaultId, plainVault] = [await newVault(), await newVault()];
    const use = {
      kind: {
        case: "environmentVariable" as const,
        value: { name: "API_KEY", allowedHosts: ["a.example"], inHeaders: true },
      },
    };
    await rig.home.addCredential(vaultId, use, "secret");
    const message = `vault_ids: the vaults have variables (API_KEY), whose values are put in on the way through a hand's relay; hands of the environment "${spec!.name}" reach the network by themselves and have none: choose an environment whose network is none or limited, or leave the vault out`;

    const create = (environmentId: string, more: object = {}) =>
      sessions.createSession({ agentId, environmentId, vaultIds: [vaultId], ...more });
    const refusal = await failure(create(open));
    expect([refusal.reason, refusal.message, refusal.metadata.field]).toEqual([
      "INVALID_FIELD",
      message,
      "vault_ids",
    ]);
    expect((await failure(create(process))).reason).toBe("INVALID_FIELD");
    await create(closed);
    await create(open, { agentId: await newAgent({}) });
    const { session } = await create(open, { vaultIds: [plainVault] });
    expect(
      (await failure(sessions.forkSession({ sessionId: session!.id, vaultIds: [vaultId] }))).message,
    ).toBe(message);

    const { beta } = new Anthropic({ baseURL: rig.server.url, apiKey: key, maxRetries: 0 });
    const made = { agent: agentId, environment_id: open, vault_ids: [vaultId] };
    const told = { status: 400, error: { error: { type: "invalid_request_error", message } } };
    await expect(beta.sessions.create(made)).rejects.toMatchObject(told);
    const words = { type: "user.message" as const, content: [{ type: "text" as const, text: "go" }] };
    const deployment = beta.deployments.create({ name: "d", ...made, initial_events: [words] });
    await expect(deployment).rejects.toMatchObject(told);
    await vaults.deleteVault({ vaultId });
  });
});

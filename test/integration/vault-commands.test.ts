/** `tendon vault`, `tendon credential` and `tendon audit`: secrets come from files and standard input, and are shown nowhere. */
import { writeFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { NetworkMode } from "../../proto/gen/tendon/v1/environment_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { newSealingKeys, startProxy, type TestProxy } from "../kit/proxy-rig.ts";
import { Installation } from "../kit/start-process.ts";
import { needOf, startVaultRig, type VaultRig } from "../kit/vault-rig.ts";

const CANARY = "canary-88c1d0";
const installation = new Installation();
let rig: VaultRig;
let proxy: TestProxy;
let folder = "";

beforeAll(async () => {
  rig = await startVaultRig();
  proxy = await startProxy({ url: rig.server.url, key: rig.proxyKey, keys: await newSealingKeys() });
  folder = await mkdtemp(join(tmpdir(), "tendon-vault-commands-"));
});
afterAll(async () => {
  await installation.dispose();
  await rm(folder, { recursive: true, force: true });
  await proxy?.stop();
  await rig?.stop();
});

/** As the client of the workspace "home", unless told otherwise. */
const environment = (key: string) => ({ TENDON_URL: rig.server.url, TENDON_API_KEY: key });

async function tendon<T = Record<string, string>>(
  args: string[],
  input = "",
  key = rig.home.key,
): Promise<T> {
  const { code, stdout, stderr } = await installation.tendon([...args, "--json"], {
    env: environment(key),
    input,
  });
  expect({ args, code, stderr }).toMatchObject({ code: 0 });
  expect(stdout + stderr).not.toContain("canary");
  return JSON.parse(stdout) as T;
}

test("a credential is made from standard input, from a file, and sealed on this machine, and each opens for its session", async () => {
  const vault = await tendon(["vault", "create", "mine", "--metadata", "team=core"]);
  expect(vault).toMatchObject({ display_name: "mine", metadata: { team: "core" } });
  const vaultId = vault.id!;
  const url = (name: string) => `https://${name}.example.com/mcp`;
  const json = join(folder, "tokens.json");
  writeFileSync(json, JSON.stringify({ value: `${CANARY}-2`, refresh_token: `${CANARY}-r` }));
  const made = [
    await tendon(
      ["credential", "create", vaultId, "--bearer", url("one"), "--name", "first"],
      `${CANARY}-1\n`,
    ),
    await tendon([
      "credential",
      "create",
      vaultId,
      "--oauth",
      url("two"),
      "--token-endpoint",
      "https://auth.example.com/t",
      "--client-id",
      "c",
      "--secret-json",
      json,
    ]),
    await tendon(
      ["credential", "create", vaultId, "--header", url("three"), "--header-name", "X-Key", "--seal-here"],
      `${CANARY}-3`,
    ),
  ];
  const sessionId = await rig.home.newSession([vaultId]);
  const headers = async (name: string) =>
    (await proxy.credentials.grant(needOf(rig.home, sessionId, url(name))))?.headers;
  expect([await headers("one"), await headers("two"), await headers("three")]).toEqual([
    { authorization: `Bearer ${CANARY}-1` },
    { authorization: `Bearer ${CANARY}-2` },
    { "x-key": `${CANARY}-3` },
  ]);
  const { credentials } = await tendon<{ credentials: { id: string }[] }>(["credential", "list", vaultId]);
  expect(credentials.map(({ id }) => id).sort()).toEqual(made.map(({ id }) => id).sort());
  const id = made[0]!.id!;
  await tendon(["credential", "update", id, "--bearer", url("moved"), "--name", "moved"]);
  expect(await headers("moved")).toEqual({ authorization: `Bearer ${CANARY}-1` });
  await tendon(["credential", "update", id, "--secret-file", "-"], `${CANARY}-4\n`);
  expect(await headers("moved")).toEqual({ authorization: `Bearer ${CANARY}-4` });
  expect(await tendon(["credential", "archive", id])).toHaveProperty("archived_at");
  expect(await headers("moved")).toBeUndefined();
  expect(await tendon(["vault", "delete", vaultId])).toEqual({ deleted: vaultId });
});

test("a secret in the wrong form is refused with a line that repeats nothing of it", async () => {
  const { id: vaultId = "" } = await tendon(["vault", "create", "other"]);
  const url = "https://one.example.com/mcp";
  for (const [args, input] of [
    [["--bearer", url, "--secret-json", "-"], `{"value":"${CANARY}`],
    [["--bearer", url, "--git", "https://git.example.com"], CANARY],
    [["--bearer", url], `${CANARY}\nmore\n`],
    [[], CANARY],
  ] as const) {
    const command = ["credential", "create", vaultId, ...args];
    const { code, stdout, stderr } = await installation.tendon(command, {
      env: environment(rig.home.key),
      input,
    });
    expect(code).not.toBe(0);
    expect(stdout + stderr).not.toContain(CANARY);
  }
});

test("a session whose variables leave it without a hand is made, and that is said", async () => {
  const { home, server } = rig;
  const vaultId = await home.newVault();
  const value = { name: "API_KEY", allowedHosts: ["api.example"], inHeaders: true };
  await home.addCredential(vaultId, { kind: { case: "environmentVariable", value } }, `${CANARY}-5`);
  const spec = { name: "sealed", network: { mode: NetworkMode.NONE } };
  await server.client(EnvironmentService, home.key).createEnvironment({ spec });
  const create = (...more: string[]) =>
    installation.tendon(["session", "create", "--agent", "a", "--vault", vaultId, ...more, "--json"], {
      env: environment(home.key),
    });
  const noted = await create();
  expect(noted).toMatchObject({ code: 0, stderr: expect.stringMatching(/API_KEY.* no hand .*"e".*--env/) });
  expect(JSON.parse(noted.stdout)).toMatchObject({ vault_ids: [vaultId] });
  expect(await create("--env", "sealed")).toMatchObject({ code: 0, stderr: "" });
});

test("the audit log is listed, followed and exported", async () => {
  const { id: vaultId = "" } = await tendon(["vault", "create", "audited"]);
  const admin = rig.server.adminKey;
  const listed = await tendon<{ entries: { action: string }[] }>(
    ["audit", "list", "--subject", vaultId],
    "",
    admin,
  );
  expect(listed.entries.map(({ action }) => action)).toEqual(["vault.create"]);
  const followed = installation.startTendon(["audit", "follow", "--subject", vaultId, "--since", "1h"], {
    env: environment(admin),
  });
  await eventually(() => followed.stdout.includes("vault.create"));
  await tendon(["vault", "archive", vaultId]);
  await eventually(() => followed.stdout.includes("vault.archive"));
  followed.child.kill("SIGTERM");
  expect((await followed.ended()).code).toBe(0);
  const lines = followed.stdout.trim().split("\n");
  expect(lines.map((line) => JSON.parse(line).action)).toEqual(["vault.create", "vault.archive"]);
  const { stdout } = await installation.tendon(
    ["audit", "export", "--action", "vault.", "--workspace", rig.home.workspaceId],
    { env: environment(admin) },
  );
  const exported = stdout
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as { at: string; detail: object; workspace_id: string });
  expect(exported.length).toBeGreaterThanOrEqual(5);
  expect(exported.map(({ at }) => at)).toEqual(exported.map(({ at }) => at).sort());
  expect(new Set(exported.map(({ workspace_id }) => workspace_id))).toEqual(new Set([rig.home.workspaceId]));
  expect(exported[0]!.detail).toEqual({});
});

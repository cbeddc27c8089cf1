/** R20 with proxies that are killed in the middle of a refresh: as processes, against an endpoint that ends a grant when a token is shown twice. */
import { join } from "node:path";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { FailpointName } from "../../kit/failpoint.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { CredentialValidity } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { trials } from "../kit/fault-trials.ts";
import { type OauthSide, startOauthSide } from "../kit/oauth-side.ts";
import { type RunningProgram, startProgram } from "../kit/program.ts";
import { readProc } from "../kit/start-process.ts";
import { startVaultRig, type VaultRig } from "../kit/vault-rig.ts";

const PROXIES = 3;
const CALLS = 50;
const UNARMED = "";

let rig: VaultRig;
let far: OauthSide;
const running = new Set<RunningProgram>();
const all: RunningProgram[] = [];

beforeAll(async () => {
  rig = await startVaultRig();
  far = await startOauthSide();
});
afterAll(async () => {
  await far?.close();
  await rig?.stop();
});

function startProxy(failpoints: string): RunningProgram {
  const { dataDir, url } = rig.server;
  const proxy = startProgram("mcp-proxy", {
    TENDON_URL: url,
    TENDON_PROXY_KEY_FILE: join(dataDir, "proxy.key"),
    TENDON_PROXY_SEALING_KEY_FILE: join(dataDir, "proxy-sealing.key"),
    TENDON_PROXY_PORT: "0",
    ...(failpoints !== UNARMED && { TENDON_FAILPOINTS: failpoints }),
  });
  running.add(proxy);
  all.push(proxy);
  return proxy;
}

/** All say so themselves: the server may still count one that has just died. */
const connected = () =>
  eventually(
    async () =>
      running.size === PROXIES &&
      [...running].every((proxy) => proxy.log().includes("connected to the server")) &&
      (await rig.server.client(AdminService).getStatus({})).proxies.length === PROXIES,
    { withinMs: 60_000 },
  );

/** Three proxies, of which each is killed at the point, once; who comes after a dead one is killed no more. */
async function withDyingProxies<T>(
  point: FailpointName,
  run: () => Promise<T>,
): Promise<{ value: T; deaths: number }> {
  let deaths = 0;
  let isOver = false;
  const keep = async (failpoints: string): Promise<void> => {
    const proxy = startProxy(failpoints);
    const how = await proxy.ended;
    running.delete(proxy);
    if (isOver) return;
    expect(how).toBe("SIGKILL");
    deaths += 1;
    // The time that its claim would have held up the others.
    await rig.database
      .pool()
      .query(
        "update credentials set refresh_claimed_until = clock_timestamp() where refresh_claim_id is not null",
      );
    return keep(UNARMED);
  };
  const kept = Array.from({ length: PROXIES }, () => keep(`${point}=kill`));
  try {
    await connected();
    const value = await run();
    // Those that came after the dead are there too, so that all can stop in good order.
    await connected();
    return { value, deaths };
  } finally {
    isOver = true;
    // R22, as far as it goes here: what the endpoint gave stands in no argument, environment or log of a proxy.
    for (const { pid } of running) {
      const known = readProc(pid, "cmdline") + readProc(pid, "environ");
      expect(far.secrets.filter((secret) => known.includes(secret))).toEqual([]);
    }
    for (const proxy of all) expect(far.secrets.filter((secret) => proxy.log().includes(secret))).toEqual([]);
    const ends = await Promise.all([...running].map((proxy) => proxy.end("SIGTERM")));
    await Promise.all(kept);
    expect(ends.every((how) => how === 0)).toBe(true);
  }
}

/** Calls that use an expired credential, all at once, each until it has an answer. */
async function useExpired() {
  const { home } = rig;
  far.refreshes.length = 0;
  const { accessToken, refreshToken } = far.newGrant();
  const use = { serverUrl: far.mcpUrl, tokenEndpoint: far.tokenUrl, clientId: "c" };
  const secret = { value: accessToken, refreshToken, expiresAt: timestampFromMs(Date.now() - 1_000) };
  const credentialId = await home.addCredential(
    await home.newVault(),
    { kind: { case: "oauth", value: use } },
    secret,
  );
  const call = () =>
    eventually(() => home.vaults.validateCredential({ credentialId }), { withinMs: 90_000, everyMs: 200 });
  const answers = await Promise.all(Array.from({ length: CALLS }, call));
  const { credential } = await home.vaults.getCredential({ credentialId });
  return {
    validities: new Set(answers.map(({ validity }) => validity)),
    problem: credential!.refreshProblem,
    refreshes: far.refreshes.map(({ outcome }) => outcome),
  };
}

describe("R20 with proxies that die", () => {
  test.each(Array.from({ length: trials(1, 5) }, (_, i) => i))(
    "before the token endpoint is asked: one refresh, and all succeed (%d)",
    async () => {
      const { value, deaths } = await withDyingProxies("proxy.refresh_claimed", useExpired);
      expect(value).toEqual({
        validities: new Set([CredentialValidity.VALID]),
        problem: "",
        refreshes: ["granted"],
      });
      expect(deaths).toBeGreaterThanOrEqual(1);
    },
    150_000,
  );

  test.each(Array.from({ length: trials(1, 5) }, (_, i) => i))(
    "between refresh and store: the credential says that its refresh was never finished, and is asked for no more (%d)",
    async () => {
      const { value, deaths } = await withDyingProxies("proxy.token_refreshed", useExpired);
      const problem = "unfinished_refresh";
      expect(value).toEqual({
        validities: new Set([CredentialValidity.INVALID]),
        problem,
        refreshes: ["granted", "reused"],
      });
      expect(deaths).toBe(1);
    },
    150_000,
  );

  test.each(Array.from({ length: trials(1, 5) }, (_, i) => i))(
    "after it is stored: the others use what it stored (%d)",
    async () => {
      const { value, deaths } = await withDyingProxies("proxy.token_stored", useExpired);
      expect(value).toEqual({
        validities: new Set([CredentialValidity.VALID]),
        problem: "",
        refreshes: ["granted"],
      });
      expect(deaths).toBe(1);
    },
    150_000,
  );
});

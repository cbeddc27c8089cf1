/** Git repositories of sessions over time and in other surroundings: kept clones, LFS, submodules, new hands, containers, other networks. */
import { execFileSync, spawnSync } from "node:child_process";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { NetworkMode } from "../../proto/gen/tendon/v1/environment_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { type TestEngine, useDocker, whyNoDocker } from "../kit/docker.ts";
import { ensureGitImage } from "../kit/docker-images.ts";
import { whyNoPrivateNetwork } from "../kit/private-network.ts";
import { type RepositoryRig, startRepositoryRig } from "../kit/repository-rig.ts";

const MIB = 1024 * 1024;
const COMMIT = "git add . && git commit -qm";

function hasLfs(): boolean {
  try {
    return execFileSync("git-lfs", ["version"]).length > 0;
  } catch {
    return false;
  }
}

describe.skipIf(whyNoPrivateNetwork() !== undefined)("a session's repository", () => {
  let rig: RepositoryRig;
  let engine: TestEngine | undefined;
  let vaultId: string;
  beforeAll(async () => {
    if (whyNoDocker() === undefined) engine = await useDocker();
    rig = await startRepositoryRig(engine === undefined ? {} : { DOCKER_HOST: engine.host });
    for (const path of ["private/one.git", "private/two.git", "public/open.git"])
      await rig.host.addRepository(path);
    ({ vaultId } = await rig.newVault("private"));
  });
  afterAll(async () => {
    await rig?.stop();
    await engine?.release();
  });

  const withVault = (path: string, vault = vaultId) =>
    rig.newSession({ repositories: [{ url: rig.url(path) }], vaultIds: [vault] });
  /** Bytes that the host sent until the session's hand was there. */
  async function cloned(path: string, vault = vaultId): Promise<number> {
    const before = rig.host.sentBytes;
    const session = await withVault(path, vault);
    expect(await session.bash("ls *")).toContain("large");
    return rig.host.sentBytes - before;
  }

  test("comes from what was kept the second time, for the credential alone that fetched it, and after the host was asked", async () => {
    const writer = await withVault("private/one.git");
    const large = `cd one && head -c ${MIB} /dev/urandom >large && ${COMMIT} large && git push -q && echo done`;
    expect(await writer.bash(large)).toBe("done\n");
    const first = await cloned("private/one.git");
    expect(first).toBeGreaterThan(MIB);
    expect(await cloned("private/one.git")).toBeLessThan(MIB / 20);
    await writer.bash("echo more >more && git add . && git commit -qm more && git push -q");
    expect(await cloned("private/one.git")).toBeLessThan(MIB / 20);
    const another = await rig.newVault("private/one.git");
    expect(await cloned("private/one.git", another.vaultId)).toBeGreaterThan(MIB);
    const without = await rig.newSession({ repositories: [{ url: rig.url("private/one.git") }] });
    expect(await without.bash("ls -A")).toBe("");
    const token = rig.host.login;
    rig.host.login = "bot:another";
    const refused = await withVault("private/one.git");
    expect(await refused.bash("ls -A")).toBe("");
    rig.host.login = token;
  });

  test("is cloned again by a hand that is made again, and its submodules of the same host come the same way", async () => {
    const session = await withVault("private/two.git");
    const add = `cd two && git submodule --quiet add ${rig.url("public/open.git")} open && ${COMMIT} sub && git push -q; ls`;
    expect(await session.bash(add)).toBe("open\n");
    const [hand] = await session.events("hand.provisioned");
    const hands = rig.vault.server.client(HandService, rig.vault.home.key);
    await hands.releaseHand({ handId: String(hand?.hand_id) });
    const again = "cd two && git submodule --quiet update --init && git -C open log --format=%s";
    expect(await session.bash(again)).toBe("first\n");
    expect(await session.events("hand.provisioned")).toHaveLength(2);
  });

  test.skipIf(!hasLfs())(
    "has its LFS objects at checkout and sends them with a push, without the store's token (R22)",
    async () => {
      const writer = await withVault("private/two.git");
      const said = await writer.bash(
        `cd two && git lfs install --local >/dev/null && git lfs track '*.bin' >/dev/null && head -c 200000 /dev/urandom >a.bin &&
       ${COMMIT} lfs && git push -q >push.log 2>&1 && sha256sum <a.bin`,
      );
      expect([...rig.host.lfs.objects.keys()]).toEqual([said.trim().slice(0, 64)]);
      const reader = await withVault("private/two.git");
      expect(await reader.bash("cd two && sha256sum <a.bin")).toBe(said);
      const found = spawnSync("grep", ["-rlaF", rig.host.lfs.token, rig.agentDir], { encoding: "utf8" });
      expect(found.stdout).toBe("");
    },
  );

  test("in a hand with the machine's network is cloned straight, without a credential, and fails with that reason", async () => {
    const session = await rig.newSession({
      repositories: [{ url: rig.url("public/open.git") }, { url: rig.url("private/two.git") }],
      vaultIds: [vaultId],
      environment: {
        network: { mode: NetworkMode.UNRESTRICTED },
        variables: { GIT_SSL_NO_VERIFY: "true" },
      },
    });
    expect(await session.bash("ls; git -C open log --format=%s")).toBe("open\nfirst\n");
    const [failed] = await session.events("session.error");
    expect(failed?.error).toMatchObject({
      type: "repository_authentication_error",
      message: expect.stringMatching(/containers, and for hands with the network "none" or "limited" alone/),
    });
  });

  test.skipIf(whyNoDocker() !== undefined)(
    "is cloned, pushed to and pulled from in a container with the network none, until its token is wrong or revoked",
    async () => {
      const own = await rig.newVault("private/one.git");
      const image = await ensureGitImage(engine!);
      const environment = { driver: "docker", image, network: { mode: NetworkMode.NONE } };
      const repositories = [{ url: rig.url("private/one.git"), pushBranches: ["agent/*"] }];
      const session = await rig.newSession({ repositories, vaultIds: [own.vaultId], environment });
      expect(
        await session.bash(
          `cd one && echo text >contained && ${COMMIT} contained && git push -q origin HEAD:agent/a; echo $?`,
        ),
      ).toBe("0\n");
      expect(await session.bash("git push -q origin HEAD:main 2>&1; echo $?")).toMatch(
        /may not push here[\s\S]*\n1\n$/,
      );
      await rig.host.git("private/one.git", "branch", "-f", "main", "agent/a");
      expect(await session.bash("git pull -q --no-rebase origin main && git log -1 --format=%s")).toBe(
        "contained\n",
      );
      const { vaults } = rig.vault.home;
      const push = "git push -q origin HEAD:agent/b 2>&1; echo $?";
      const secret = { form: { case: "plain" as const, value: { value: "a wrong token", userName: "bot" } } };
      await vaults.updateCredential({ credentialId: own.credentialId, secret });
      expect(await session.bash(push)).toMatch(/refuses the session's credential[\s\S]*\n128\n$/);
      await vaults.archiveCredential({ credentialId: own.credentialId });
      expect(await session.bash(push)).toMatch(/no vault of the session has one[\s\S]*\n128\n$/);
    },
  );

  test.skipIf(whyNoDocker() !== undefined)(
    "has its credential in a container that reaches everything, too: through a relay that carries git alone",
    async () => {
      const image = await ensureGitImage(engine!);
      const environment = { driver: "docker", image, network: { mode: NetworkMode.UNRESTRICTED } };
      const repositories = [{ url: rig.url("private/one.git") }];
      const session = await rig.newSession({ repositories, vaultIds: [vaultId], environment });
      const push = `cd one && echo text >>open && ${COMMIT} open && git push -q origin HEAD:open; echo $?`;
      expect(await session.bash(push)).toBe("0\n");
      expect(await session.bash("env | grep -ci http_proxy")).toBe("0\n");
    },
  );
});

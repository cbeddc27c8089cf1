/** Git repositories of sessions: real git in hands without a network, a real git host with authentication, all that is between. */
import { spawnSync } from "node:child_process";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { whyNoPrivateNetwork } from "../kit/private-network.ts";
import { type RepositoryRig, type RepositorySession, startRepositoryRig } from "../kit/repository-rig.ts";

const COMMIT = "git add . && git commit -qm";
describe.skipIf(whyNoPrivateNetwork() !== undefined)("a session's repository", () => {
  let rig: RepositoryRig;
  let vaultId: string;
  beforeAll(async () => {
    rig = await startRepositoryRig();
    for (const path of ["private/one.git", "private/two.git", "public/open.git"])
      await rig.host.addRepository(path);
    ({ vaultId } = await rig.newVault("private"));
  });
  afterAll(() => rig?.stop());

  const errorsOf = async (session: RepositorySession) =>
    (await session.events("session.error")).map(({ error }) => error as Record<string, unknown>);
  const given = (path: string, more: object = {}) => ({ url: rig.url(path), ...more });
  const withVault = (...repositories: ReturnType<typeof given>[]) =>
    rig.newSession({ repositories, vaultIds: [vaultId] });

  test("is cloned, pushed to and pulled from in a hand that reaches nothing, and no token is anywhere in it (R22)", async () => {
    const url = rig.url("private/one.git");
    const one = await withVault(given("private/one.git"));
    expect(await one.bash("git -C one log --format=%s; git -C one config remote.origin.url")).toBe(
      `first\n${url}\n`,
    );
    const pushed = await one.bash(
      `cd one && echo text >file && ${COMMIT} second && git push origin main 2>&1; echo $?`,
    );
    expect(pushed).toMatch(/main -> main\n0\n$/);
    const other = await withVault(given("private/one.git"));
    await other.bash(`cd one && echo more >>file && ${COMMIT} third && git push -q`);
    expect(await one.bash("git pull -q && cat file")).toBe("text\nmore\n");
    const [provisioned] = await one.events("hand.provisioned");
    expect(provisioned?.repositories).toEqual([
      {
        repository_url: url,
        path: expect.stringMatching(/\/one$/),
        commit: expect.stringMatching(/^[0-9a-f]{40}$/),
      },
    ]);
    const [, token = ""] = rig.host.login.split(":");
    const words = [token, Buffer.from(rig.host.login).toString("base64")];
    // Everything that programs of the hand can read of themselves, looked at from outside, where the words are known.
    const all = await one.bash(
      "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; env; git config --list; cat .git/config .git/FETCH_HEAD",
    );
    expect(all).toContain("GIT_CONFIG_COUNT");
    for (const word of words) expect(all).not.toContain(word);
    expect(filesWith(words, rig.agentDir)).toBe("");
  });

  test("keeps a session going when it cannot be had, and says exactly why", async () => {
    const wrong = await rig.newVault("private/one.git", "a wrong token");
    const right = await rig.newVault("private/two.git");
    const cases: [path: string, kind: string, message: RegExp][] = [
      ["private/other.git", "authentication", /wants a credential, and no vault of the session has one/],
      ["private/one.git", "authentication", /refuses the session's credential/],
      ["forbidden/open.git", "forbidden", /forbids this/],
      ["public/none.git", "not_found", /has no such repository/],
      ["private/two.git", "checkout", /no branch or tag none/],
    ];
    const checkout = { at: { case: "branch" as const, value: "none" } };
    const session = await rig.newSession({
      repositories: [...cases.map(([path]) => given(path, { checkout }))],
      vaultIds: [wrong.vaultId, right.vaultId],
    });
    const told = await session.bash("ls -A", { whole: true });
    expect(told).toContain("Note: not all repositories are here.");
    expect(await session.bash("ls -A")).toBe("");
    const errors = cases.map(([path, kind, message]) => ({
      type: `repository_${kind}_error`,
      message: expect.stringMatching(message),
      repository_url: rig.url(path),
      retry_status: { type: "retrying" },
      part: "upstream",
      reason: `REPOSITORY_${kind.toUpperCase()}`,
    }));
    expect(await errorsOf(session)).toEqual(errors);
  });

  test("may be several, each at the branch, tag or commit that is asked for; one that fails leaves the others there", async () => {
    await rig.host.git("private/two.git", "branch", "topic", "main");
    await rig.host.git("private/two.git", "tag", "v1", "main");
    const commit = await rig.host.git("private/two.git", "rev-parse", "main");
    const at = (kind: string, value: string, mountPath: string) =>
      given("private/two.git", { mountPath, checkout: { at: { case: kind, value } } });
    const session = await withVault(
      at("branch", "topic", "src/a"),
      given("private/none.git"),
      at("tag", "v1", "/workspace/b"),
      at("commit", commit, "c"),
    );
    const look =
      "for d in src/a b c; do git -C $d rev-parse HEAD; echo on $(git -C $d branch --show-current); done";
    expect((await session.bash(look)).split("\n")).toEqual([
      commit,
      "on topic",
      commit,
      "on",
      commit,
      "on",
      "",
    ]);
    expect(await errorsOf(session)).toMatchObject([{ type: "repository_not_found_error" }]);
  });

  test("is pushed to only where its branch rules say, whatever the credential may", async () => {
    const ruled = await withVault(
      given("private/two.git", { pushBranches: ["agent/*"] }),
      given("private/one.git"),
    );
    const push = (where: string) => ruled.bash(`git -C two push ${where} 2>&1; echo $?`);
    await ruled.bash("git -C two commit -q --allow-empty -m ruled");
    expect(await push("origin HEAD:main")).toMatch(
      /HEAD -> main \(the session may not push here\)[\s\S]*\n1\n$/,
    );
    expect(await push("origin HEAD:agent/one")).toMatch(/HEAD -> agent\/one\n0\n$/);
    expect(await push(`${rig.url("private/one.git")} HEAD:two`)).toMatch(/\n0\n$/);
    // Hosts know repositories by other names, too, and redirect to them.
    expect(await push(`${rig.url("moved/open.git")} HEAD:main`)).toMatch(
      /its own repositories alone[\s\S]*\n128\n$/,
    );
  });

  test("takes a new token at once, and is refused with a revoked one", async () => {
    const own = await rig.newVault("private/two.git", "a token that was");
    const session = await rig.newSession({
      repositories: [given("public/open.git")],
      vaultIds: [own.vaultId],
    });
    const look = `git ls-remote -q ${rig.url("private/two.git")} main 2>&1; echo $?`;
    expect(await session.bash(look)).toMatch(/refuses the session's credential[\s\S]*128\n$/);
    const [userName, value] = rig.host.login.split(":");
    const secret = { form: { case: "plain" as const, value: { userName: userName!, value: value! } } };
    await rig.vault.home.vaults.updateCredential({ credentialId: own.credentialId, secret });
    expect(await session.bash(look)).toMatch(/refs\/heads\/main\n0\n$/);
    await rig.vault.home.vaults.archiveCredential({ credentialId: own.credentialId });
    expect(await session.bash(look)).toMatch(/no vault of the session has one[\s\S]*128\n$/);
  });
});

/** Names of files below `folder` that hold one of the words. */
function filesWith(words: string[], folder: string): string {
  const args = ["-rlaF", ...words.flatMap((word) => ["-e", word]), folder];
  return spawnSync("grep", args, { encoding: "utf8" }).stdout;
}

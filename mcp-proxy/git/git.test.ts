/** Real git against git's own http-backend, through the proxy's handler. */
import { execFile } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import net, { type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { NameResolver } from "../../kit/network/name-resolver.ts";
import { type GitServer, startGitServer } from "../../test/kit/git-server.ts";
import { newSealingKeys } from "../../test/kit/proxy-rig.ts";
import type { Grant } from "../credentials/credentials.ts";
import { CredentialRefusal } from "../credentials/refusal.ts";
import { Outbound } from "../outbound/outbound.ts";
import { OutboundRules } from "../outbound/rules.ts";
import type { GivenRepository } from "../tunnels/sandbox-connection.ts";
import { createGit } from "./git.ts";
import { createLfsActions } from "./lfs-actions.ts";
import { readPushCommands } from "./push-commands.ts";
import { mayPush } from "./push-rules.ts";

let host: GitServer;
let outbound: Outbound;
let way: net.Server;
let home: string;
let grant: () => Promise<Grant | undefined>;
let used: string[] = [];
const wanted: string[] = [];
let repositories: readonly GivenRepository[] = [];

beforeAll(async () => {
  host = await startGitServer();
  for (const path of ["private/one.git", "public/one.git"]) await host.addRepository(path);
  const rules = new OutboundRules({ deny: [], ownAddresses: () => new Set(), ownListeners: () => [] });
  const resolver = new NameResolver({ clock: systemClock });
  outbound = new Outbound({ rules, resolver, clock: systemClock, ca: [readFileSync(host.caFile, "utf8")] });
  const log = createLogger("test", "silent");
  const credentials = {
    grant: ({ destination }: { destination: string }) => {
      wanted.push(destination);
      return grant();
    },
  };
  const actions = createLfsActions(await newSealingKeys());
  const handler = createGit({ credentials, outbound, actions, clock: systemClock, log });
  const names = {
    tunnelId: "t",
    sessionId: "s",
    workspaceId: "w",
    handId: "h",
    epoch: 1,
    kind: "git" as const,
    variables: [],
  };
  way = net.createServer({ allowHalfOpen: true }, (stream) => {
    handler({ ...names, repositories, host: "127.0.0.1", port: host.port, stream });
  });
  way.listen(0, "127.0.0.1");
  await once(way, "listening");
  home = await mkdtemp(join(tmpdir(), "tendon-git-home-"));
});
afterAll(async () => {
  outbound?.close();
  way?.close();
  await host?.stop();
  await rm(home, { recursive: true, force: true });
});
beforeEach(() => {
  used = [];
  grant = async () => granted();
  repositories = ["private/one.git", "public/one.git"].map((path) => ({ url: url(path), pushBranches: [] }));
});

function granted(pushBranches: string[] = [], login = host.login): Grant {
  const authorization = `Basic ${Buffer.from(login).toString("base64")}`;
  return {
    credentialId: "c",
    vaultId: "v",
    isOauth: false,
    pushBranches,
    headers: { authorization },
    secrets: [],
    used: (result) => used.push(result),
    renewed: async () => undefined,
  };
}

/** What git printed, both ways, and how it ended. */
function git(...args: string[]): Promise<{ code: number; text: string }> {
  const { port } = way.address() as AddressInfo;
  const config = [
    [`url.http://127.0.0.1:${port}/git/127.0.0.1:${host.port}/.insteadOf`, `https://127.0.0.1:${host.port}/`],
    ["user.name", "Someone"],
    ["user.email", "someone@example.com"],
  ];
  const env: Record<string, string> = {
    PATH: "/usr/bin:/bin",
    HOME: home,
    GIT_TERMINAL_PROMPT: "0",
    GIT_CONFIG_COUNT: String(config.length),
  };
  config.forEach(([key = "", value = ""], index) => {
    env[`GIT_CONFIG_KEY_${index}`] = key;
    env[`GIT_CONFIG_VALUE_${index}`] = value;
  });
  return new Promise((resolve) => {
    execFile("git", args, { cwd: home, env }, (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : Number(error.code), text: stdout + stderr });
    });
  });
}

const relayed = (path: string) =>
  `http://127.0.0.1:${(way.address() as AddressInfo).port}/git/127.0.0.1:${host.port}/${path}`;
const url = (path: string) => `https://127.0.0.1:${host.port}/${path}`;
const ok = expect.objectContaining({ code: 0 });

test("clones, pushes 3 MiB and pulls with a credential that git never has", async () => {
  expect(await git("clone", url("private/one.git"), "one")).toEqual(ok);
  const random = Buffer.from(Array.from({ length: 3 * 1024 * 1024 }, () => Math.floor(Math.random() * 256)));
  await writeFile(join(home, "one/large"), random);
  await git("-C", "one", "add", ".");
  await git("-C", "one", "commit", "-qm", "large");
  expect(await git("-C", "one", "push", "origin", "HEAD:main", "HEAD:topic")).toEqual(ok);
  expect(await host.git("private/one.git", "log", "--format=%s", "topic")).toBe("large\nfirst");
  expect(await git("clone", url("private/one.git"), "two")).toEqual(ok);
  await git("-C", "two", "commit", "--allow-empty", "-qm", "second");
  expect(await git("-C", "two", "push", "origin", "main")).toEqual(ok);
  expect(await git("-C", "one", "pull", "origin", "main")).toEqual(ok);
  expect(readFileSync(join(home, "two/large")).equals(random)).toBe(true);
  expect(new Set(wanted)).toEqual(new Set([url("private/one.git")]));
  expect(new Set(used)).toEqual(new Set(["200"]));
  expect(readFileSync(join(home, "one/.git/config"), "utf8")).not.toContain("token");
});

test("refuses pushes to branches that the credential's rules do not name, and says so by git's own report", async () => {
  grant = async () => granted(["topics/*"]);
  await git("clone", "-q", url("private/one.git"), "ruled");
  await git("-C", "ruled", "commit", "--allow-empty", "-qm", "ruled");
  const before = await host.git("private/one.git", "for-each-ref");
  const refused = await git("-C", "ruled", "push", "origin", "HEAD:main", "HEAD:topics/one");
  expect(refused.code).toBe(1);
  expect(refused.text).toMatch(/HEAD -> main \(the session may not push here\)/);
  expect(refused.text).toMatch(/HEAD -> topics\/one \(refused with the rest of the push\)/);
  for (const ref of [":main", "HEAD:refs/tags/v1", "+HEAD:refs/notes/x"]) {
    expect(await git("-C", "ruled", "push", "origin", ref)).toMatchObject({ code: 1 });
  }
  expect(await host.git("private/one.git", "for-each-ref")).toBe(before);
  expect(used).toContain("push_refused");
  expect(await git("-C", "ruled", "push", "origin", "HEAD:topics/one")).toEqual(ok);
});

test("refuses pushes with options where there are rules, in whichever line it says that it has some", async () => {
  grant = async () => granted(["topics/*"]);
  await host.git("private/one.git", "config", "receive.advertisePushOptions", "true");
  await git("clone", "-q", url("private/one.git"), "options");
  await git("-C", "options", "commit", "--allow-empty", "-qm", "options");
  const refused = await git("-C", "options", "push", "-o", "merge", "origin", "HEAD:topics/options");
  expect(refused.text).toMatch(/HEAD -> topics\/options \(the session may not push with options\)/);
  const line = (text: string) => `${(Buffer.byteLength(text) + 4).toString(16).padStart(4, "0")}${text}`;
  const zero = "0".repeat(40);
  const commands = `${line(`${zero} ${zero} refs/heads/topics/a\0report-status`)}${line(`${zero} ${zero} refs/heads/topics/b\0push-options`)}0000`;
  const answer = await fetch(relayed("private/one.git/git-receive-pack"), { method: "POST", body: commands });
  expect([answer.status, await answer.text()]).toEqual([
    200,
    expect.stringMatching(/ng refs\/heads\/topics\/a the session may not push with options/),
  ]);
  grant = async () => granted();
  expect(await git("-C", "options", "push", "-o", "merge", "origin", "HEAD:topics/options")).toEqual(ok);
});

test("reads the commands of a push once, however small the pieces are in which they come", async () => {
  const line = `0069${"0".repeat(40)} ${"1".repeat(40)} refs/heads/topics/a`;
  const bytes = Buffer.from(`${line.repeat(9_000)}0000PACK`);
  const body = Readable.from(pieces(bytes, 32), { objectMode: false, highWaterMark: 1 });
  const before = process.cpuUsage();
  const { refs } = await readPushCommands(body);
  const { user, system } = process.cpuUsage(before);
  expect(refs.length).toBe(9_000);
  // Some 0.2 s; a minute when each piece has all of it read again.
  expect(user + system).toBeLessThan(10_000_000);
  let text = Buffer.alloc(0);
  for await (const piece of body) text = Buffer.concat([text, piece as Buffer]);
  expect(text.equals(bytes)).toBe(true);
});

function* pieces(bytes: Buffer, length: number) {
  for (let at = 0; at < bytes.length; at += length) yield bytes.subarray(at, at + length);
}

test("keeps nobody from a host by requests that get no further, and ends connections that ask for much at once", async () => {
  const { port } = way.address() as AddressInfo;
  const silent = `GET /git/127.0.0.1:${host.port}/silent/one.git/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\n\r\n`;
  const sockets = Array.from({ length: 300 }, () => net.connect(port, "127.0.0.1").on("error", () => {}));
  const before = host.seen.length;
  for (const socket of sockets) socket.write(silent);
  await expect.poll(() => host.seen.length - before).toBe(sockets.length);
  expect(await git("ls-remote", url("public/one.git"))).toEqual(ok);
  const greedy = sockets[0]!;
  greedy.write(silent.repeat(100));
  await once(greedy, "close");
  for (const socket of sockets) socket.destroy();
  expect(host.seen.length - before).toBeLessThan(sockets.length + 30);
});

test("is told at once when a host switches to another protocol", async () => {
  expect((await git("ls-remote", url("switched/one.git"))).text).toMatch(
    /remote: Tendon: .* broke the connection/,
  );
});

test("pushes to a session's own repositories alone, with the credential of the name by which it was given them", async () => {
  repositories = [{ url: url("private/one"), pushBranches: [] }];
  await git("clone", "-q", url("private/one.git"), "alone");
  await git("-C", "alone", "commit", "--allow-empty", "-qm", "alone");
  const push = async (path: string) => (await git("-C", "alone", "push", url(path), "HEAD:alone")).text;
  expect(await push("public/one.git")).toMatch(/may push to its own repositories alone/);
  expect(await push("moved/one.git")).toMatch(/may push to its own repositories alone/);
  wanted.length = 0;
  await push("private/ONE.git");
  expect(await push("private/one.git")).toMatch(/\[new branch\]/);
  expect(new Set(wanted)).toEqual(new Set([url("private/one")]));
});

test("keeps the branch rules of a session's own repository beside those of its credential, and by any name of it", async () => {
  repositories = [
    { url: url("private/one"), pushBranches: ["agent/*"] },
    { url: url("public/one.git"), pushBranches: [] },
  ];
  await git("clone", "-q", url("private/one.git"), "owned");
  await git("-C", "owned", "commit", "--allow-empty", "-qm", "owned");
  const push = async (path: string, ref: string) => (await git("-C", "owned", "push", url(path), ref)).text;
  expect(await push("private/one.git", "HEAD:main")).toMatch(
    /HEAD -> main \(the session may not push here\)/,
  );
  expect(await push("private/One.git", "HEAD:main")).toMatch(/may not push here|no such repository/);
  expect(await push("private/one.git", "HEAD:agent/a")).toMatch(/\[new branch\]/);
  expect(await push("moved/one.git", "HEAD:main")).toMatch(/may push to its own repositories alone/);
  grant = async () => granted(["other/*"]);
  expect(await push("private/one.git", "HEAD:agent/b")).toMatch(/may not push here/);
}, 30_000);

test("reaches public repositories without a credential, also where they have moved to within the host", async () => {
  grant = async () => undefined;
  host.seen.length = 0;
  expect(await git("clone", url("moved/one.git"), "public")).toEqual(ok);
  expect(host.seen.filter(({ authorization }) => authorization !== undefined)).toEqual([]);
  expect(host.seen.length).toBeGreaterThan(2);
  expect(wanted).toContain(url("public/one.git"));
});

test("tells in git's output why: no credential, a wrong one, one that is not used, no repository, a redirect elsewhere", async () => {
  const clone = async (path: string) => (await git("clone", url(path), "never")).text;
  grant = async () => undefined;
  expect(await clone("private/one.git")).toMatch(
    /remote: Tendon: authentication failed: .* no vault .*\n.*403/s,
  );
  expect(await clone("public/none.git")).toMatch(/remote: Tendon: .* no such repository/);
  grant = async () => granted([], "bot:wrong");
  expect(await clone("private/one.git")).toMatch(
    /authentication failed: .* refuses the session's credential/,
  );
  grant = async () => Promise.reject(new CredentialRefusal("SEAL_BROKEN", "its seal is broken"));
  expect(await clone("private/one.git")).toMatch(/remote: Tendon: the credential .* is not used: its seal/);
  grant = async () => granted();
  expect(await clone("away/one.git")).toMatch(/redirects to other.example, which is not followed/);
});

test("takes no other request, and none for another host", async () => {
  const { port } = way.address() as AddressInfo;
  const ask = async (path: string, method = "GET") =>
    (await fetch(`http://127.0.0.1:${port}${path}`, { method })).status;
  const here = `/git/127.0.0.1:${host.port}`;
  for (const path of [
    `${here}/public/one.git/HEAD`,
    `${here}/a%2f..%2fb/info/refs?service=git-upload-pack`,
    `${here}/a/%2e%2e/b/x/info/refs?service=git-upload-pack&x=y`,
    `${here}/public/x/..;/one.git/info/refs?service=git-upload-pack`,
    `${here}/public/x/..%3b/one.git/info/refs?service=git-upload-pack`,
    // Another spelling of the same repository, for which another credential might count.
    `${here}/public/%6fne.git/info/refs?service=git-upload-pack`,
    "/git/other.example/one.git/info/refs?service=git-upload-pack",
  ]) {
    expect([path, await ask(path)]).toEqual([path, 400]);
  }
  expect(await ask(`${here}/public/one.git/git-receive-pack`, "DELETE")).toBe(400);
});

test.each([
  ["refs/heads/main", ["main"], true],
  ["refs/heads/main2", ["main"], false],
  ["refs/heads/a/b", ["a/*"], true],
  ["refs/heads/a/b/c", ["a/*"], false],
  ["refs/heads/a/b/c", ["a/**"], true],
  ["refs/heads/ab", ["a?"], true],
  ["refs/heads/a/", ["a?"], false],
  ["refs/heads/main", ["x", "m*n"], true],
  ["refs/tags/main", ["**"], false],
  ["refs/tags/main", [], true],
])("%s by %j: %s", (ref, patterns, expected) => {
  expect(mayPush(ref, patterns)).toBe(expected);
});

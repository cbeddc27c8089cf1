/** What of LFS a sandbox sees: the API as its host answers, without where objects are and by which token. */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import net, { type AddressInfo } from "node:net";
import { afterAll, beforeAll, expect, test } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { NameResolver } from "../../kit/network/name-resolver.ts";
import { type GitServer, startGitServer } from "../../test/kit/git-server.ts";
import { newSealingKeys } from "../../test/kit/proxy-rig.ts";
import type { Grant } from "../credentials/credentials.ts";
import { Outbound } from "../outbound/outbound.ts";
import { OutboundRules } from "../outbound/rules.ts";
import { createGit } from "./git.ts";
import { createLfsActions } from "./lfs-actions.ts";

const OBJECT = Buffer.from("an object");
const OID = createHash("sha256").update(OBJECT).digest("hex");
const TYPE = "application/vnd.git-lfs+json";

let host: GitServer;
let outbound: Outbound;
let way: net.Server;
let sessionId = "s";

beforeAll(async () => {
  host = await startGitServer();
  const rules = new OutboundRules({ deny: [], ownAddresses: () => new Set(), ownListeners: () => [] });
  const resolver = new NameResolver({ clock: systemClock });
  outbound = new Outbound({ rules, resolver, clock: systemClock, ca: [readFileSync(host.caFile, "utf8")] });
  const authorization = `Basic ${Buffer.from(host.login).toString("base64")}`;
  const handler = createGit({
    credentials: {
      grant: async () => {
        const secrets = [authorization.slice("Basic ".length)];
        return { credentialId: "c", headers: { authorization }, secrets, used() {} } as never as Grant;
      },
    },
    outbound,
    actions: createLfsActions(await newSealingKeys()),
    clock: systemClock,
    log: createLogger("test", "silent"),
  });
  way = net.createServer({ allowHalfOpen: true }, (stream) => {
    const names = { tunnelId: "t", sessionId, workspaceId: "w", handId: "h", epoch: 1, kind: "git" as const };
    const repositories = [{ url: `https://127.0.0.1:${host.port}/private/one.git`, pushBranches: [] }];
    handler({ ...names, repositories, variables: [], host: "127.0.0.1", port: host.port, stream });
  });
  way.listen(0, "127.0.0.1");
  await once(way, "listening");
}, 30_000);
afterAll(async () => {
  outbound?.close();
  way?.close();
  await host?.stop();
});

const base = () =>
  `http://127.0.0.1:${(way.address() as AddressInfo).port}/git/127.0.0.1:${host.port}/private/one.git`;
const close = { connection: "close" };

async function hrefOf(operation: "upload" | "download"): Promise<string> {
  const body = JSON.stringify({ operation, objects: [{ oid: OID, size: OBJECT.length }] });
  const headers = { "content-type": TYPE, accept: TYPE, ...close };
  const response = await fetch(`${base()}/info/lfs/objects/batch`, { method: "POST", headers, body });
  const text = await response.text();
  expect([response.status, response.headers.get("content-type")]).toEqual([200, TYPE]);
  expect(text).not.toContain(host.lfs.token);
  expect(text).not.toContain("Authorization");
  return JSON.parse(text).objects[0].actions[operation].href as string;
}

test("is where its transfers go, with the token of the host's answer, which it does not see", async () => {
  const up = await hrefOf("upload");
  expect(up.startsWith(`${base()}/info/lfs/tendon/`)).toBe(true);
  expect((await fetch(up, { method: "PUT", body: OBJECT, headers: close })).status).toBe(200);
  expect(host.lfs.objects.get(OID)).toEqual(OBJECT);
  const down = await fetch(await hrefOf("download"), { headers: close });
  expect(Buffer.from(await down.arrayBuffer())).toEqual(OBJECT);
  expect(new Set(host.lfs.seen.map(({ authorization }) => authorization))).toEqual(
    new Set([`RemoteAuth ${host.lfs.token}`]),
  );
});

test("cannot use a transfer of another session, with another method, or one that it has made up", async () => {
  host.lfs.objects.set(OID, OBJECT);
  const href = await hrefOf("download");
  const status = async (url: string, method = "GET") => (await fetch(url, { method, headers: close })).status;
  expect(await status(href)).toBe(200);
  expect(await status(href, "PUT")).toBe(400);
  expect(await status(`${href.slice(0, -2)}xx`)).toBe(400);
  expect(await status(href.replace("/private/one.git/", "/private/two.git/"))).toBe(400);
  sessionId = "another";
  expect(await status(href)).toBe(400);
  sessionId = "s";
});

test("does not see its credential in the answers of a host that repeats it", async () => {
  const path = base().replace("/private/", "/repeating/");
  for (const method of ["GET", "POST"]) {
    const response = await fetch(`${path}/info/lfs/locks`, { method, headers: close });
    expect(await response.text()).toBe('{"locks":[],"said":"Basic [redacted]"}');
  }
});

test("is told in its own format what the host refuses", async () => {
  const login = host.login;
  host.login = "bot:another token";
  const response = await fetch(`${base()}/info/lfs/locks`, { headers: close });
  host.login = login;
  expect([response.status, response.headers.get("content-type")]).toEqual([403, TYPE]);
  expect(((await response.json()) as { message: string }).message).toMatch(/^Tendon: authentication failed/);
});

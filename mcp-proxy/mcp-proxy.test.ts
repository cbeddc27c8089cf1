import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { eventually } from "../test/kit/eventually.ts";
import { addSealingKey, loadSealingKeys } from "./sealing-key.ts";

const PROGRAM = fileURLToPath(new URL("../dist/mcp-proxy.mjs", import.meta.url));
let folder = "";
let child: ChildProcess | undefined;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "tendon-proxy-"));
});
afterEach(async () => {
  if (child?.exitCode === null && child.signalCode === null) {
    const ended = new Promise((resolve) => child?.once("exit", resolve));
    child.kill("SIGKILL");
    await ended;
  }
  child = undefined;
  rmSync(folder, { recursive: true, force: true });
});

function startProxy(environment: Record<string, string> = {}) {
  const started = spawn(process.execPath, [PROGRAM], {
    env: {
      TENDON_PROXY_KEY: "canary-proxy-key",
      TENDON_PROXY_PORT: "0",
      TENDON_PROXY_SEALING_KEY_FILE: join(folder, "sealing.key"),
      TENDON_URL: "http://127.0.0.1:1",
      ...environment,
    },
    stdio: ["ignore", "ignore", "pipe"],
  });
  child = started;
  let stderr = "";
  started.stderr.on("data", (chunk) => {
    stderr += chunk;
  });
  const exit = new Promise<number | null>((resolve) => started.once("exit", resolve));
  return { exit, stderr: () => stderr };
}

describe("the sealing keys", () => {
  const inFile = (path: string) => loadSealingKeys({ text: undefined, path });

  test("are made once, readable by their owner alone, and are the same afterwards", async () => {
    const path = join(folder, "keys", "sealing.key");
    const [[first], [second]] = await Promise.all([inFile(path), inFile(path)]);
    expect(second.keyId).toBe(first.keyId);
    expect(statSync(path).mode & 0o777).toBe(0o600);
    expect(first.keyId).toMatch(/^[A-Za-z0-9_-]{43}$/);
    expect(Object.keys(JSON.parse(first.publicJwk))).not.toContain("d");
  });

  test("that others may read, or that are none, are refused in one line that repeats nothing of them", async () => {
    const open = join(folder, "open.key");
    writeFileSync(open, "{}", { mode: 0o644 });
    await expect(inFile(open)).rejects.toThrow(/others may read .*chmod 600/);
    const broken = join(folder, "broken.key");
    writeFileSync(broken, "canary-content", { mode: 0o600 });
    for (const source of [
      { text: undefined, path: broken },
      { text: "canary-content", path: broken },
      { text: '{"keys":[]}', path: broken },
      { text: '{"kty":"EC","crv":"P-256","x":"canary-content"}', path: broken },
    ]) {
      const failure: unknown = await loadSealingKeys(source).catch((error: unknown) => error);
      expect(String(failure)).toMatch(/not a (private P-256 )?key in JWK form|without keys/);
      expect(String(failure)).not.toContain("canary");
    }
  });

  test("a new one comes in front of the others, and all of them can be given as text instead", async () => {
    const path = join(folder, "sealing.key");
    const [old] = await inFile(path);
    const [newest, second, ...more] = await addSealingKey(path);
    expect([second?.keyId, more]).toEqual([old.keyId, []]);
    expect(newest.keyId).not.toBe(old.keyId);
    expect(statSync(path).mode & 0o777).toBe(0o600);
    const text = readFileSync(path, "utf8").trim();
    const given = await loadSealingKeys({ text, path: join(folder, "none.key") });
    expect(given.map(({ keyId }) => keyId)).toEqual([newest.keyId, old.keyId]);
    expect(existsSync(join(folder, "none.key"))).toBe(false);
  });
});

describe("the proxy program", () => {
  test("says that it is not connected, answers its routes with a typed error, and stops on SIGTERM without a trace of its key", async () => {
    const proxy = startProxy();
    const url = await eventually(() => /"url":"(http:[^"]+)"/.exec(proxy.stderr())?.[1]);
    const health = await fetch(`${url}/healthz`);
    expect([health.status, await health.json()]).toEqual([
      503,
      { status: "unavailable", missing: ["connection to the server"] },
    ]);
    for (const [path, status, type] of [
      ["/mcp/sesn_1/github", 401, "authentication_error"],
      ["/git/sesn_1/repo.git/info/refs", 404, "not_found_error"],
    ]) {
      const answer = await fetch(`${url}${path}`, { method: "POST", body: "x".repeat(100_000) });
      const { error } = (await answer.json()) as { error: { type: string } };
      expect([answer.status, error.type]).toEqual([status, type]);
    }
    expect((await fetch(`${url}/else`)).status).toBe(404);
    child?.kill("SIGTERM");
    expect(await proxy.exit).toBe(0);
    expect(proxy.stderr()).not.toContain("canary-proxy-key");
  });

  test("ends with one line and a code when its port is taken or a setting is wrong", async () => {
    const first = startProxy();
    const port = await eventually(() => /"url":"http:\/\/127.0.0.1:(\d+)"/.exec(first.stderr())?.[1]);
    const holder = child;
    const second = startProxy({ TENDON_PROXY_PORT: port });
    expect(await second.exit).toBe(1);
    expect(second.stderr().trim().split("\n").at(-1)).toMatch(/cannot listen on 127.0.0.1:\d+: it is in use/);
    const third = startProxy({ TENDON_PROXY_PROT: "1" });
    expect(await third.exit).toBe(2);
    expect(third.stderr()).toMatch(/TENDON_PROXY_PROT .*did you mean TENDON_PROXY_PORT/);
    child = holder;
  });
});

import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ownNetworkArgv } from "./own-network.ts";

const asRoot = process.geteuid?.() === 0;
const ways = [...(asRoot ? [true] : []), false].filter((root) => {
  const [file = "", ...args] = ownNetworkArgv(["true"], { asRoot: root });
  return spawnSync(file, args).status === 0;
});

let bin: string;
beforeAll(() => {
  bin = mkdtempSync(join(tmpdir(), "tendon-bin-"));
  for (const name of ["unshare", "sh", "mount", "cat"]) symlinkSync(`/usr/bin/${name}`, join(bin, name));
});
afterAll(() => rmSync(bin, { recursive: true, force: true }));

test.skipIf(ways.length === 0).each([
  ["with ip", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
  ["with neither ip nor ifconfig", ""],
])("a new network's loopback is up, and all there is, %s", (_name, path) => {
  for (const root of ways) {
    const [file = "", ...args] = ownNetworkArgv(["/bin/sh", "-c", "cat /proc/net/dev /proc/net/fib_trie"], {
      asRoot: root,
    });
    const env = { PATH: path === "" ? bin : path };
    const { status, stdout, stderr } = spawnSync(file, args, { env, encoding: "utf8" });
    expect({ status, stderr }).toEqual({ status: 0, stderr: "" });
    expect(stdout).toContain("127.0.0.1");
    expect(stdout.match(/^ *\w+:/gm)?.map((name) => name.trim())).toContain("lo:");
    expect(stdout).not.toContain("eth0");
  }
});

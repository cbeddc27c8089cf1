import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import type { CliConfig } from "../config.ts";
import { ignoredHere, localTarget } from "./local-target.ts";

const directory = mkdtempSync(join(tmpdir(), "tendon-local-"));
afterAll(() => rmSync(directory, { recursive: true }));

const LOCAL = "http://127.0.0.1:7400";
const REMOTE = { TENDON_URL: "https://u:hidden@tendon.example", TENDON_API_KEY: "tk_remote" };

test("the key of another server is not used for the installation here", async () => {
  const dataDir = { path: directory, isNamed: true };
  expect((await localTarget(LOCAL, dataDir, REMOTE as CliConfig)).key).toBeUndefined();
  writeFileSync(join(directory, "admin.key"), "tk_admin\n", { mode: 0o600 });
  const target = await localTarget(LOCAL, dataDir, REMOTE as CliConfig);
  expect(target).toMatchObject({ url: LOCAL, key: "tk_admin", keyOrigin: join(directory, "admin.key") });
});

test("what was set for another server is told, without what is secret in it", () => {
  const told = ignoredHere(LOCAL, REMOTE as CliConfig).join("\n");
  expect(told).toContain("TENDON_URL (https://tendon.example) is not used");
  expect(told).toContain("TENDON_API_KEY is not used");
  expect(told).not.toMatch(/hidden|tk_remote/);
  expect(ignoredHere(LOCAL, { TENDON_URL: `${LOCAL}/`, TENDON_API_KEY: "tk_x" } as CliConfig)).toEqual([]);
});

/** Where keys go: the model key to the harness alone, and no key to a hand (S2, S3). */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type FakeMessagesApi, startFakeMessagesApi } from "../kit/fake-messages-api.ts";
import { atOwnPort, Installation, readProc } from "../kit/start-process.ts";

const CANARY = "sk-canary-7f3a9c51e0";

describe("with a model key", () => {
  const installation = new Installation();
  let api: FakeMessagesApi;
  beforeAll(async () => {
    api = await startFakeMessagesApi({ apiKey: CANARY });
    const env = { ANTHROPIC_API_KEY: CANARY, ANTHROPIC_BASE_URL: api.url };
    await installation.start(await atOwnPort(), { env }).ready();
  });
  afterAll(async () => {
    await installation.dispose();
    await api.stop();
  });

  const keys = () =>
    ["admin.key", "harness.key", "proxy.key"].map((name) =>
      readFileSync(join(installation.dataDir, name), "utf8").trim(),
    );

  test("the harness asks the model with it, and says that it is no demo", async () => {
    const { code, stdout } = await installation.startToEnd(["--once", "run: echo model-$((6*7))"]);
    expect({ code, stdout }).toMatchObject({ code: 0 });
    expect(stdout).toContain("model-42");
    expect(stdout).not.toContain("scripted demo");
    // The fake refuses any other key.
    expect(api.requests.map(({ outcome }) => outcome)).toEqual(["answered", "answered"]);
    expect(api.refusals).toEqual([]);
  });

  test("no program has a key in its arguments or environment but the launcher that was given one", () => {
    const launcher = installation.processes().find(({ command }) => command.includes("start.mjs"))!;
    const programs = installation.processes().filter(({ pid }) => pid !== launcher.pid);
    expect(programs.length).toBeGreaterThanOrEqual(5);
    for (const { pid, command } of programs) {
      const known = command + readProc(pid, "environ");
      for (const key of [CANARY, ...keys()]) expect(known).not.toContain(key);
    }
  });

  test("no log of a program holds a key", () => {
    for (const name of ["server", "harness", "mcp-proxy", "hand-agent"]) {
      const log = readFileSync(join(installation.dataDir, "logs", `${name}.log`), "utf8");
      for (const key of [CANARY, ...keys()]) expect(log).not.toContain(key);
    }
  });

  test("a hand's shell finds no key in other processes or in the data directory", async () => {
    const probe = [
      "echo probe-$((20+3))",
      "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'",
      `cat ${installation.dataDir}/*.key ${installation.dataDir}/*/*.key ${installation.dataDir}/logs/* 2>&1`,
      `ls -la ${installation.dataDir} 2>&1`,
      `grep -rs tk_ ${installation.dataDir} 2>/dev/null | head -5`,
    ].join("; ");
    const { code, stdout } = await installation.startToEnd(["--json", "--once", `run: ${probe}`]);
    expect(code).toBe(0);
    expect(stdout).toContain("probe-23");
    for (const key of [CANARY, ...keys()]) expect(stdout).not.toContain(key);
  });
});

describe("with a model that fails", () => {
  const installation = new Installation();
  afterAll(() => installation.dispose());

  test("--once tells the error and ends with 1, and the session says that retries are exhausted", async () => {
    const env = {
      ANTHROPIC_API_KEY: CANARY,
      ANTHROPIC_BASE_URL: "http://127.0.0.1:1",
      TENDON_MODEL_RETRY_FIRST_MS: "10",
      TENDON_MODEL_RETRY_MAX_MS: "50",
      TENDON_MODEL_RETRY_TOTAL_MS: "400",
    };
    const { code, stdout, stderr } = await installation.startToEnd(
      [...(await atOwnPort()), "--once", "hello"],
      { env },
    );
    expect(code).toBe(1);
    expect(stdout).toContain("✗ model:");
    expect(stdout).toContain("idle: retries_exhausted");
    expect(stdout + stderr).not.toContain(CANARY);
    expect(installation.processes()).toEqual([]);
  });
});

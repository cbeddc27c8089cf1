/** The driver whose hands are MCP servers, with the reference servers and with one that misbehaves as it is told. */
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pino } from "pino";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import type { Hand } from "../../hand-agent/drivers/driver.ts";
import { McpDriver } from "../../hand-agent/drivers/mcp/mcp-driver.ts";
import { STOP_GRACE_MS } from "../../hand-agent/drivers/mcp/mcp-hand.ts";
import type { McpServerConfig } from "../../hand-agent/drivers/mcp/server-config.ts";
import { type Clock, systemClock } from "../../kit/clock.ts";
import { eventually } from "../kit/eventually.ts";
import { everythingServer, filesystemServer } from "../kit/mcp-servers.ts";
import { markedProcesses, zombiesBelow } from "../kit/process-list.ts";
import { promised } from "../kit/promised.ts";
import { textOf, toolCaller } from "../kit/tool-caller.ts";
import { describeDriver, PARTS } from "./driver-contract.ts";

const dataDir = mkdtempSync(join(tmpdir(), "tendon-mcp-driver-"));
const troublesome = join(import.meta.dirname, "../kit/troublesome-mcp-server.mjs");
const made: Hand[] = [];
let count = 0;
afterEach(async () => {
  for (const hand of made.splice(0)) await hand.destroy();
});
afterAll(() => rmSync(dataDir, { recursive: true, force: true }));

function driverOf(server: McpServerConfig, lines: string[] = [], clock = systemClock): McpDriver {
  const log = pino({ level: "info" }, { write: (line: string) => void lines.push(line) });
  return new McpDriver({ server, dataDir, clock, log });
}

async function handOf(driver: McpDriver) {
  count += 1;
  const hand = await driver.provision({ handId: `hand_mcp${count}` });
  made.push(hand);
  return { hand, call: toolCaller(hand) };
}

const trouble = (more: Partial<McpServerConfig> = {}): McpServerConfig => ({
  name: "trouble",
  command: process.execPath,
  args: [troublesome],
  env: {},
  ...more,
});

describeDriver(
  "mcp",
  async () => ({
    driver: driverOf(filesystemServer("contract")),
    zombies: zombiesBelow,
    dispose: async () => {},
  }),
  undefined,
  [PARTS.handsById],
);

describe("with the reference servers", () => {
  let everything: McpDriver;
  beforeAll(async () => {
    everything = driverOf(everythingServer("everything"));
    await everything.probe();
  });

  test("its tools are the server's, known before there is a hand, and nothing of the trial is left", async () => {
    const names = everything.tools.map(({ name }) => name);
    expect(names).toEqual(
      expect.arrayContaining(["echo", "get-sum", "get-tiny-image", "trigger-long-running-operation"]),
    );
    expect(everything.tools.every(({ inputSchema }) => inputSchema.type === "object")).toBe(true);
    expect(everything.capabilities).toMatchObject({ ownTools: true, park: true });
    expect(await everything.listHandIds()).toEqual([]);
  });

  test("a configuration may offer some of the tools, and one that the server lacks makes it unavailable", async () => {
    const some = driverOf(everythingServer("some", { tools: ["echo"] }));
    expect(await some.probe()).toMatchObject({ available: true });
    expect(some.tools.map(({ name }) => name)).toEqual(["echo"]);
    const wrong = await driverOf(everythingServer("wrong", { tools: ["ech"] })).probe();
    expect(wrong).toMatchObject({ available: false, reason: expect.stringContaining('no tool "ech"') });
  });

  test("text, images and resources come back as blocks that models take; progress is output", async () => {
    const { call } = await handOf(everything);
    expect(textOf(await call("echo", { message: "hello" }))).toBe("Echo: hello");
    const image = await call("get-tiny-image", {});
    expect(image.content.find(({ type }) => type === "image")).toMatchObject({
      source: { type: "base64", media_type: "image/png" },
    });
    let output = "";
    const long = await call(
      "trigger-long-running-operation",
      { duration: 0.2, steps: 2 },
      {
        onOutput: (chunk) => {
          output += Buffer.from(chunk).toString();
        },
      },
    );
    expect(long.isError).toBe(false);
    expect(output).toBe("1/2\n2/2\n");
  });

  test("the server has nothing of the agent's environment, and what its configuration says", async () => {
    process.env.TENDON_CANARY_OF_AGENT = "canary-of-the-agent";
    try {
      const driver = driverOf(everythingServer("env", { env: { GIVEN: "by the file" } }));
      const { call } = await handOf(driver);
      const env = JSON.parse(textOf(await call("get-env", {}))) as Record<string, string>;
      expect(env.GIVEN).toBe("by the file");
      expect(Object.keys(env).sort()).toEqual(["GIVEN", "HOME", "LANG", "PATH", "TENDON_HAND_ID"]);
    } finally {
      delete process.env.TENDON_CANARY_OF_AGENT;
    }
  });

  test("each hand has a directory of its own, which stays when it is parked and goes with it", async () => {
    const driver = driverOf(filesystemServer("files"));
    await driver.probe();
    const one = await handOf(driver);
    const two = await handOf(driver);
    const path = join(one.hand.workdir, "note.txt");
    expect((await one.call("write_file", { path, content: "kept" })).isError).toBe(false);
    const refused = await two.call("read_text_file", { path });
    expect(refused).toMatchObject({ isError: true, outcome: "completed" });
    expect((await one.hand.park!()).left).toEqual([]);
    expect(markedProcesses("mcp-files", one.hand.id)).toEqual([]);
    const again = await driver.recover(JSON.parse(JSON.stringify(one.hand.handle)));
    if (again === "gone") throw new Error("the hand is gone");
    made.push(again);
    expect(again.resumed).toBe(true);
    expect(textOf(await toolCaller(again)("read_text_file", { path }))).toBe("kept");
    await again.destroy();
    expect(await driver.recover(again.handle)).toBe("gone");
    expect(readdirSync(join(dataDir, "mcp/files"))).toEqual([two.hand.id]);
  });
});

describe("with a server that misbehaves", () => {
  test("a server that dies in a call is an error result; the next call starts it again and says so", async () => {
    const { call } = await handOf(driverOf(trouble()));
    expect(textOf(await call("count", {}))).toBe("1");
    expect(textOf(await call("count", {}))).toBe("2");
    const died = await call("die", { code: 7 });
    expect(died).toMatchObject({ isError: true, outcome: "unknown" });
    expect(textOf(died)).toMatch(/ended during this call \(it ended with code 7\)/);
    const next = await call("count", {});
    expect(textOf(next)).toMatch(/^\[the MCP server was started again \(it ended with code 7\).*\]1$/);
    expect(textOf(await call("count", {}))).toBe("2");
  });

  test("cancelling ends the call, and the server's processes however they detached, within 3 s (X4)", async () => {
    const { hand, call } = await handOf(driverOf(trouble()));
    const cancel = new AbortController();
    let isAtIt = false;
    const running = call(
      "hang",
      { child: true },
      {
        signal: cancel.signal,
        onOutput: () => {
          isAtIt = true;
        },
      },
    );
    await eventually(() => expect(isAtIt).toBe(true));
    expect(markedProcesses("mcp-trouble", hand.id).length).toBe(2);
    const startedMs = performance.now();
    cancel.abort();
    const result = await running;
    expect(performance.now() - startedMs).toBeLessThan(promised(3_000));
    expect(result).toMatchObject({ isError: true, outcome: "cancelled" });
    expect(textOf(result)).toMatch(/The server was ended with it/);
    expect(markedProcesses("mcp-trouble", hand.id)).toEqual([]);
    expect(textOf(await call("count", {}))).toMatch(/started again .*\]1$/);
  });

  test("a call that times out beside another leaves that one alone, and the server ends with the last of them", async () => {
    const { hand, call } = await handOf(driverOf(trouble()));
    expect(textOf(await call("count", {}))).toBe("1");
    const file = join(dataDir, "go-on");
    const other = call("wait", { file });
    const result = await call("hang", {}, { timeoutMs: 100 });
    expect(result).toMatchObject({ isError: true, outcome: "timed_out" });
    expect(textOf(result)).toMatch(/timed out after 100ms\. The server was told; it may still be at it/);
    expect(result.leftProcesses).toHaveLength(1);
    writeFileSync(file, "");
    expect(textOf(await other)).toBe("waited");
    expect(markedProcesses("mcp-trouble", hand.id)).toEqual([]);
  });

  test("a server that ends what it was told to is kept with its memory", async () => {
    const patient: Clock = {
      ...systemClock,
      sleep: (ms, signal) => systemClock.sleep(ms === STOP_GRACE_MS ? 30_000 : ms, signal),
    };
    const { call } = await handOf(driverOf(trouble(), [], patient));
    expect(textOf(await call("count", {}))).toBe("1");
    const result = await call("obey", {}, { timeoutMs: 100 });
    expect(textOf(result)).toMatch(/the server has ended the call/);
    expect(textOf(await call("count", {}))).toBe("2");
  });

  test("text above the bound is cut in its middle, and a message above its bound ends the server", async () => {
    const { call } = await handOf(driverOf(trouble()));
    const long = await call("flood", { chars: 300_000 });
    expect(textOf(long).length).toBeLessThan(100_200);
    expect(textOf(long)).toMatch(/\[200000 bytes dropped\]/);
    const tooLong = await call("flood", { chars: 17 * 1024 * 1024 });
    expect(tooLong).toMatchObject({ isError: true, outcome: "unknown" });
    expect(textOf(tooLong)).toMatch(/a message of more than 16777216 bytes/);
  });

  test("standard error goes to the agent's log, bounded and without configured values", async () => {
    const lines: string[] = [];
    const { call } = await handOf(driverOf(trouble({ env: { API_KEY: "canary-in-config" } }), lines));
    await call("complain", { lines: 500 });
    await eventually(() => expect(lines.join("")).toContain("stderr: complaint 0 with [hidden]"));
    const stderr = lines.filter((line) => line.includes("stderr: "));
    expect(stderr.length).toBeLessThanOrEqual(20);
    expect(lines.join("")).not.toContain("canary-in-config");
  });

  test("what does not start is said: no program, no answer in MCP, an end at once", async () => {
    const nowhere = await driverOf(trouble({ command: "/nowhere/server" })).probe();
    expect(nowhere).toMatchObject({ available: false, reason: expect.stringContaining("is not there") });
    const ends = driverOf(trouble({ args: ["-e", "process.exit(3)"] }));
    expect(await ends.probe()).toMatchObject({ available: false, reason: expect.stringContaining("code 3") });
    await expect(ends.provision({ handId: "hand_none" })).rejects.toThrow(
      /did not start: it ended with code 3/,
    );
    expect(await ends.listHandIds()).not.toContain("hand_none");
  });

  test("a hand's spec decides nothing of what is started, and there is no shell and no file", async () => {
    const driver = driverOf(trouble());
    const env = { NODE_OPTIONS: "--require /tmp/x.js" };
    await expect(driver.provision({ handId: "hand_e", env })).rejects.toThrow(/take no variables/);
    const resources = [{ kind: "inline" as const, path: "a", content: "x" }];
    await expect(driver.provision({ handId: "hand_f", resources })).rejects.toThrow(/take no files/);
    const network = { mode: "none" as const };
    await expect(driver.provision({ handId: "hand_n", network })).rejects.toThrow(/no network mode/);
    const { hand } = await handOf(driver);
    await expect(hand.exec({ argv: ["true"] })).rejects.toThrow(/no shell/);
    await expect(hand.writeFile("/tmp/x", Buffer.from("x"))).rejects.toThrow(/no files/);
  });
});

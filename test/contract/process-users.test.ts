/** Process hands whose users are told apart by the system: as root without stronger means, and as a user that is not root. */
import { spawnSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import type { Hand } from "../../hand-agent/drivers/driver.ts";
import type { IsolationMode } from "../../hand-agent/drivers/process/isolation.ts";
import { ProcessDriver } from "../../hand-agent/drivers/process/process-driver.ts";
import { TOOL_DEFINITIONS } from "../../hand-agent/tools/registry.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { makeProcessDriver, makeTestDir, reasonsAgainstModes } from "../kit/process-modes.ts";
import { testProgram } from "../kit/test-program.ts";
import { textOf, toolCaller } from "../kit/tool-caller.ts";

const reasons = await reasonsAgainstModes();
const CANARY = `canary-${process.pid}-secret`;

/** A machine where neither bubblewrap nor namespaces can be had, with the data directory in a home that is root's alone. */
function bareMachine(isolation: "auto" | IsolationMode, { without = [] as string[] } = {}) {
  const { dataDir: machine } = makeProcessDriver("none");
  const bin = join(machine, "bin");
  const home = join(machine, "home");
  const dataDir = join(home, ".tendon", "hand-agent");
  const systemRoot = join(machine, "tendon-hands");
  mkdirSync(bin);
  for (const name of [
    "setpriv",
    "mkfifo",
    "id",
    "cat",
    "ls",
    "sleep",
    "setsid",
    "sh",
    "stat",
    "tr",
    "grep",
  ]) {
    if (!without.includes(name)) symlinkSync(`/usr/bin/${name}`, join(bin, name));
  }
  mkdirSync(dataDir, { recursive: true });
  chmodSync(home, 0o700);
  chmodSync(dataDir, 0o711);
  const keyPath = join(home, ".tendon", "admin.key");
  writeFileSync(keyPath, CANARY, { mode: 0o600 });
  const make = (systemRoots = [systemRoot]) =>
    new ProcessDriver({
      dataDir,
      systemRoots,
      clock: systemClock,
      log: createLogger("test", "silent"),
      isolation,
      path: bin,
      tools: TOOL_DEFINITIONS,
    });
  return { make, machine, dataDir, systemRoot, keyPath };
}

const canUseUids = process.getuid?.() === 0 && reasons.get("uid") === undefined;

describe.skipIf(!canUseUids)("as root without bubblewrap and namespaces, below a home of mode 0700", () => {
  it("gives hands a uid of their own and keeps their files where it can reach them; no key is in sight", async () => {
    const { make, systemRoot, dataDir, keyPath } = bareMachine("auto");
    const driver = make();
    expect(await driver.probe()).toEqual({
      available: true,
      isolation: "uid",
      detail: expect.stringMatching(
        `^hands run as a uid of their own.*; their files are in ${systemRoot} \\(bubblewrap: not installed; namespaces: not installed\\)$`,
      ),
    });
    expect(existsSync(systemRoot)).toBe(false);
    const hand = await driver.provision({ handId: "hand_bare" });
    expect(hand.workdir.startsWith(`${systemRoot}/`)).toBe(true);
    expect(await driver.listHandIds()).toEqual(["hand_bare"]);
    process.env.TENDON_TEST_CANARY = CANARY;
    try {
      const call = toolCaller(hand);
      const out = async (command: string) => textOf(await call.bash(command));
      expect(Number(await out("id -u"))).toBeGreaterThanOrEqual(50_000);
      expect(await out(`cat ${keyPath}`)).toMatch(/Permission denied/);
      expect(await out(`ls ${systemRoot} 2>&1; ls ${dataDir}`)).toMatch(/denied\n.*denied/);
      expect(
        await out(
          `cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c 'canar[y]-${process.pid}-secret'`,
        ),
      ).toBe("0");
      await call("write", { file_path: "f", content: "hello" });
      expect(await out("cat f; stat -c ' %u' f")).toBe(`hello ${await out("id -u")}`);
    } finally {
      delete process.env.TENDON_TEST_CANARY;
      await hand.destroy();
    }
    expect(await driver.listHandIds()).toEqual([]);
    expect(existsSync(systemRoot)).toBe(false);
  });

  it("finds these hands again after its agent was killed, and says gone when their folder is", async () => {
    const { make, systemRoot } = bareMachine("auto");
    const hand = await make().provision({ handId: "hand_again" });
    await toolCaller(hand).bash("echo kept >f; setsid sleep 1000 & X=1");
    const next = make();
    expect(await next.listHandIds()).toEqual(["hand_again"]);
    const again = (await next.recover(hand.handle)) as Hand;
    expect(textOf(await toolCaller(again).bash("cat f"))).toBe("kept");
    expect((await again.callProcesses()).filter(({ command }) => command === "sleep")).toEqual([]);
    await hand.park?.();
    await again.park?.();
    rmSync(systemRoot, { recursive: true });
    expect(await make().recover(hand.handle)).toBe("gone");
    const anew = await make().provision({ handId: "hand_again" });
    expect(anew.resumed).toBe(false);
    await anew.park?.();
    // By its id alone, by an agent that has never seen it.
    expect(await make().discard("hand_again")).toEqual({ left: [] });
    expect(existsSync(systemRoot)).toBe(false);
  });

  it("uses no folder that other users could change, and takes the next one", async () => {
    const { make, machine, systemRoot } = bareMachine("auto");
    const planted = join(machine, "planted");
    mkdirSync(planted);
    chownSync(planted, 65_534, 65_534);
    const link = join(machine, "link");
    symlinkSync(planted, link);
    const writable = join(machine, "writable");
    mkdirSync(writable);
    chmodSync(writable, 0o777);
    const unsafe = [planted, link, join(writable, "hands"), join(machine, "home", "hands")];
    const refused = await make(unsafe).probe();
    expect(refused).toMatchObject({ available: false, reason: expect.stringContaining(`${planted} is not`) });
    const hand = await make([...unsafe, systemRoot]).provision({ handId: "hand_next" });
    expect(hand.workdir.startsWith(systemRoot)).toBe(true);
    await hand.park?.();
    // Its folder changed hands: neither used nor removed by root.
    chownSync(systemRoot, 65_534, 65_534);
    await expect(make().recover(hand.handle)).rejects.toThrow(/only the hand agent's user can change/);
    await expect(make().discard("hand_next")).rejects.toThrow(/only the hand agent's user can change/);
    chownSync(systemRoot, 0, 0);
    await make().discard("hand_next");
    expect([planted, writable].flatMap((dir) => readdirSync(dir))).toEqual([]);
  });

  it("runs hands as root only when asked to, and then says what they can read", async () => {
    const bare = bareMachine("auto", { without: ["setpriv"] });
    const driver = bare.make();
    const probe = await driver.probe();
    expect(probe).toMatchObject({
      available: false,
      reason: expect.stringMatching(
        /install bubblewrap.*TENDON_HAND_AGENT_ISOLATION=none \(.*uid: not installed\)$/,
      ),
    });
    await expect(driver.provision({ handId: "hand_root" })).rejects.toThrow(/TENDON_HAND_AGENT_ISOLATION/);
    expect(await driver.listHandIds()).toEqual([]);
    const options = {
      dataDir: bare.dataDir,
      clock: systemClock,
      log: createLogger("test", "silent"),
      tools: [],
    };
    const asked = new ProcessDriver({ ...options, isolation: "none" });
    expect(await asked.probe()).toMatchObject({
      isolation: "none",
      detail: expect.stringMatching(/NOT isolated.*run as root and can read all that root can/),
    });
    const hand = await asked.provision({ handId: "hand_root" });
    await hand.park?.();
    await expect(new ProcessDriver(options).recover(hand.handle)).rejects.toThrow(/would run as root/);
    await asked.discard("hand_root");
  });
});

describe("as a user that is not root", () => {
  it.skipIf(process.getuid?.() !== 0)("isolates in every mode there is", async () => {
    const dataDir = makeTestDir();
    chmodSync(dataDir, 0o777);
    const script = await testProgram("test/contract/non-root-check.mts");
    const { stdout, stderr } = spawnSync(
      "setpriv",
      ["--reuid=65534", "--regid=65534", "--clear-groups", process.execPath, script, dataDir, CANARY],
      {
        encoding: "utf8",
        env: { PATH: process.env.PATH, HOME: "/nonexistent", TMPDIR: dataDir, SECRET: CANARY },
      },
    );
    const modes = JSON.parse(stdout || JSON.stringify(stderr)) as Record<string, unknown>;
    expect(modes.none).toMatchObject({ uid: "65534" });
    for (const mode of ["bubblewrap", "namespaces"]) {
      if (reasons.get(mode as IsolationMode) !== undefined) continue;
      expect(modes[mode]).toEqual({ uid: "65534", seen: "(no output)", killed: [], file: "hello" });
    }
  });
});

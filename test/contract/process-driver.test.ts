/** The process driver in every isolation mode that this machine has. */
import { spawnSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import type { Hand } from "../../hand-agent/drivers/driver.ts";
import { ISOLATION_MODES, type IsolationMode } from "../../hand-agent/drivers/process/isolation.ts";
import { ProcessDriver } from "../../hand-agent/drivers/process/process-driver.ts";
import { TOOL_DEFINITIONS } from "../../hand-agent/tools/registry.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { eventually } from "../kit/eventually.ts";
import { commandsWith, zombiesBelow } from "../kit/process-list.ts";
import { textOf, toolCaller } from "../kit/tool-caller.ts";
import { describeDriver } from "./driver-contract.ts";

const dirs: string[] = [];
function makeDriver(isolation: "auto" | IsolationMode): { driver: ProcessDriver; dataDir: string } {
  const dataDir = mkdtempSync(join(tmpdir(), "tendon-driver-"));
  chmodSync(dataDir, 0o711);
  dirs.push(dataDir);
  const driver = new ProcessDriver({
    dataDir,
    clock: systemClock,
    log: createLogger("test", "silent"),
    isolation,
    tools: TOOL_DEFINITIONS,
  });
  return { driver, dataDir };
}
afterAll(() => {
  for (const dir of dirs) rmSync(dir, { recursive: true, force: true });
});

const reasons = new Map<IsolationMode, string | undefined>();
for (const mode of ISOLATION_MODES) {
  const probe = await makeDriver(mode).driver.probe();
  reasons.set(mode, probe.available ? undefined : probe.reason);
}

for (const mode of ISOLATION_MODES) {
  const make = async () => {
    const { driver } = makeDriver(mode);
    return { driver, zombies: zombiesBelow, dispose: () => driver.parkAll() };
  };
  describeDriver(`process (${mode})`, make, reasons.get(mode));
}

const CANARY = `canary-${process.pid}-secret`;

for (const mode of ["bubblewrap", "namespaces", "uid"] as const) {
  describe.skipIf(reasons.get(mode))(`isolation by ${mode}`, () => {
    it("lets bash see neither the agent's environment and files nor its data directory", async () => {
      const { driver, dataDir } = makeDriver(mode);
      const keyPath = join(dataDir, "admin.key");
      writeFileSync(keyPath, CANARY, { mode: 0o600 });
      process.env.TENDON_TEST_CANARY = CANARY;
      const hand = await driver.provision({ handId: "hand_isolated" });
      try {
        const { bash } = toolCaller(hand);
        const out = async (command: string) => textOf(await bash(command));
        // Written so that the search does not find itself.
        expect(
          await out(
            `cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c 'canar[y]-${process.pid}-secret'`,
          ),
        ).toBe("0");
        expect(await out(`cat ${keyPath}`)).toMatch(/No such file|Permission denied/);
        expect(await out(`cat ${hand.workdir}/../hand.json`)).toMatch(/No such file|Permission denied/);
        // Of the agent's descriptors none; a pipe of the call is all there is.
        expect(
          await out(
            "for f in /proc/$$/fd/* /proc/self/fd/*; do readlink $f; done >fds 2>/dev/null; grep -v -e ^/dev/null -e /run/p -e ^/proc -e /work/fds$ fds; true",
          ),
        ).toBe("(no output)");
        expect(
          await out(
            "for d in / /usr /etc /opt /var /bin/; do : >$d/tendon-test && echo $d; done 2>/dev/null; true",
          ),
        ).toBe("(no output)");
        expect(await out("ls -A /root 2>/dev/null; true")).toBe("(no output)");
        expect(
          await out(
            "grep -E 'Cap(Prm|Eff|Bnd)' /proc/self/status | tr -d '0\\n\\t'; grep NoNewPrivs /proc/self/status",
          ),
        ).toMatch(/^CapPrm:CapEff:CapBnd:NoNewPrivs:\s1$/);
        expect(await out("env | cut -d= -f1 | sort | tr '\\n' ' '")).toBe(
          "HOME LANG LOGNAME OLDPWD PATH PWD SHLVL TENDON_CALL_ID TENDON_HAND_ID TERM TMPDIR USER _ ",
        );
      } finally {
        delete process.env.TENDON_TEST_CANARY;
        await hand.destroy();
      }
    });
  });
}

for (const mode of ["bubblewrap", "namespaces"] as const) {
  describe.skipIf(reasons.get(mode))(`the view of the machine in ${mode}`, () => {
    it("shows no processes but the hand's own, an own /tmp, and no sockets of the host", async () => {
      const { driver } = makeDriver(mode);
      const hand = await driver.provision({ handId: "hand_view" });
      try {
        const { bash } = toolCaller(hand);
        expect(Number(textOf(await bash("ls -d /proc/[0-9]* | wc -l")))).toBeLessThan(8);
        expect(
          textOf(
            await bash(
              `kill -0 ${process.pid} 2>&1; find /run -type s; ls -A /tmp | grep -v tendon-driver; ls -A /home 2>/dev/null; true`,
            ),
          ),
        ).toMatch(/^[^\n]*No such process$/);
        const attempts = ["mount -t tmpfs x /mnt", "umount /proc", "umount /tmp", "mount -o remount,rw /"];
        for (const attempt of attempts)
          expect(await bash(`${attempt} 2>/dev/null`)).toMatchObject({ isError: true });
      } finally {
        await hand.destroy();
      }
    });
  });
}

/** A machine where neither bubblewrap nor namespaces can be had, with the data directory in a home that is root's alone. */
function bareMachine(isolation: "auto" | IsolationMode, { without = [] as string[] } = {}) {
  const { dataDir: machine } = makeDriver("none");
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
  it.skipIf(process.getuid?.() !== 0)(
    "isolates in every mode there is",
    () => {
      const dataDir = mkdtempSync(join(tmpdir(), "tendon-driver-"));
      dirs.push(dataDir);
      chmodSync(dataDir, 0o777);
      const script = new URL("./non-root-check.mts", import.meta.url).pathname;
      const { stdout, stderr } = spawnSync(
        "setpriv",
        [
          "--reuid=65534",
          "--regid=65534",
          "--clear-groups",
          process.execPath,
          "node_modules/tsx/dist/cli.mjs",
          script,
          dataDir,
          CANARY,
        ],
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
    },
    60_000,
  );
});

describe("the process driver", () => {
  it("resumes a hand after its agent was killed, without its processes", async () => {
    const { driver, dataDir } = makeDriver("auto");
    const hand = await driver.provision({ handId: "hand_crash" });
    await toolCaller(hand).bash("echo kept >f; setsid sleep 1000 & X=1");
    const sleeper = await eventually(async () =>
      (await hand.callProcesses()).find((each) => each.command === "sleep"),
    );
    // Another agent on the same directory: what is left when the first one cannot clean up.
    const next = new ProcessDriver({
      dataDir,
      clock: systemClock,
      log: createLogger("test", "silent"),
      tools: [],
    });
    const again = (await next.recover(hand.handle)) as Hand;
    expect(again.resumed).toBe(true);
    expect(textOf(await toolCaller(again).bash("cat f"))).toBe("kept");
    expect(readdirSync("/proc")).not.toContain(`${sleeper.pid}`);
    await hand.park?.();
    await again.destroy();
  });

  it("leaves no half-made sandbox when provisioning is aborted at any moment", async () => {
    const { driver, dataDir } = makeDriver("auto");
    for (let i = 0; i < 40; i++) {
      const stop = new AbortController();
      const made = driver.provision({ handId: `hand_aborted${i}` }, stop.signal).then(
        (hand) => hand.destroy(),
        () => {},
      );
      const abortAt = performance.now() + i * 2;
      await eventually(() => performance.now() >= abortAt, { everyMs: 1 });
      stop.abort();
      await made;
    }
    expect(await driver.listHandIds()).toEqual([]);
    await eventually(() => commandsWith(`${dataDir}/hands/hand_aborted`).length === 0);
  });

  it("refuses limits that it cannot enforce", async () => {
    const { driver } = makeDriver("none");
    await expect(driver.provision({ handId: "hand_limits", limits: { memoryBytes: 1 } })).rejects.toThrow(
      /memoryBytes/,
    );
  });

  it("searches by itself where the hand has no ripgrep, and is not held up by a pattern that never ends", async () => {
    const { dataDir } = makeDriver("none");
    const bin = join(dataDir, "bin");
    mkdirSync(bin);
    symlinkSync("/usr/bin/mkfifo", join(bin, "mkfifo"));
    const driver = new ProcessDriver({
      dataDir,
      clock: systemClock,
      log: createLogger("test", "silent"),
      isolation: "none",
      path: bin,
      tools: [],
    });
    const hand = await driver.provision({ handId: "hand_grep" });
    const call = toolCaller(hand);
    const grep = async (pattern: string, path: string) => textOf(await call("grep", { pattern, path }));
    await call("write", { file_path: "s/x", content: "alpha\nbeta\n" });
    await call("write", { file_path: "s/node_modules/y", content: "beta" });
    await call("write", { file_path: "s/binary", content: "beta\0" });
    await call("write", { file_path: "s/a", content: "a".repeat(100) });
    await call("write", { file_path: "s/long", content: "0123456789\n".repeat(20_000) });
    expect(await grep("^be.a$", "s")).toBe(`${hand.workdir}/s/x:2:beta`);
    expect(await grep("gamma", "s")).toBe("no matches");
    expect(await grep("alpha", "s/x")).toBe(`${hand.workdir}/s/x:1:alpha`);
    expect(await grep("(", "s")).toMatch(/^grep: invalid regex/);
    expect(await grep("^(a+)+$", "s/x")).toBe("no matches");
    expect(await grep("^(a+)+b$", "s/a")).toBe(
      "grep: the pattern takes too long to match; use a simpler one",
    );
    expect(await grep("0", "s/long")).toMatch(/\[output truncated at 102400 bytes\]$/);
    await hand.destroy();
  });

  // Only where the hand has a process namespace: elsewhere these commands would end processes of this machine.
  const confined = (["bubblewrap", "namespaces"] as const).find((mode) => reasons.get(mode) === undefined);

  it.skipIf(confined === undefined)("notices when a command kills every process of its hand", async () => {
    const { driver } = makeDriver(confined ?? "auto");
    const hand = await driver.provision({ handId: "hand_killall" });
    const { bash } = toolCaller(hand);
    await bash("echo kept >f");
    expect(textOf(await bash("kill -9 -1; kill -9 $$"))).toMatch(/^bash: bash session terminated/);
    expect(textOf(await bash("cat f"))).toBe("kept");
    await hand.destroy();
  });

  it.skipIf(confined === undefined)(
    "starts the sandbox again when its first process was killed",
    async () => {
      const { driver } = makeDriver(confined ?? "auto");
      const hand = await driver.provision({ handId: "hand_restart" });
      const { bash } = toolCaller(hand);
      await bash("echo kept >f");
      const parent = (pid: number) =>
        Number(readFileSync(`/proc/${pid}/stat`, "latin1").split(") ")[1]?.split(" ")[1]);
      const shell = (await hand.callProcesses()).find((each) => each.command === "bash");
      const first = parent(parent(shell?.pid ?? 0)); // above the fork that waits for the shell
      const running = bash("sleep 1000");
      process.kill(first, "SIGKILL");
      expect(textOf(await running)).toMatch(/^bash: bash session terminated\n\[the sandbox has ended/);
      expect(textOf(await bash("cat f"))).toBe("kept");
      await hand.destroy();
    },
  );
});

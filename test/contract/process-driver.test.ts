import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import type { Hand } from "../../hand-agent/drivers/driver.ts";
import { ISOLATION_MODES } from "../../hand-agent/drivers/process/isolation.ts";
import { ProcessDriver } from "../../hand-agent/drivers/process/process-driver.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { eventually } from "../kit/eventually.ts";
import { commandsWith, zombiesBelow } from "../kit/process-list.ts";
import { makeProcessDriver, reasonsAgainstModes } from "../kit/process-modes.ts";
import { textOf, toolCaller } from "../kit/tool-caller.ts";
import { describeDriver, PARTS } from "./driver-contract.ts";

const reasons = await reasonsAgainstModes();

/** What becomes of output is the agent's doing, however the hand is kept apart: the strongest mode of this machine shows it. */
const { outputs, ...PARTS_OF_EACH_MODE } = PARTS;
const strongest = ISOLATION_MODES.find((mode) => reasons.get(mode) === undefined);

for (const mode of ISOLATION_MODES) {
  const make = async () => {
    const { driver } = makeProcessDriver(mode);
    return { driver, zombies: zombiesBelow, dispose: () => driver.parkAll() };
  };
  const parts = [...Object.values(PARTS_OF_EACH_MODE), ...(mode === strongest ? [outputs] : [])];
  describeDriver(`process (${mode})`, make, reasons.get(mode), parts);
}

const CANARY = `canary-${process.pid}-secret`;

for (const mode of ["bubblewrap", "namespaces", "uid"] as const) {
  describe.skipIf(reasons.get(mode))(`isolation by ${mode}`, () => {
    it("lets bash see neither the agent's environment and files nor its data directory", async () => {
      const { driver, dataDir } = makeProcessDriver(mode);
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
      const { driver } = makeProcessDriver(mode);
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

describe("the process driver", () => {
  it("resumes a hand after its agent was killed, without its processes", async () => {
    const { driver, dataDir } = makeProcessDriver("auto");
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
    const { driver, dataDir } = makeProcessDriver("auto");
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
    const { driver } = makeProcessDriver("none");
    await expect(driver.provision({ handId: "hand_limits", limits: { memoryBytes: 1 } })).rejects.toThrow(
      /memoryBytes/,
    );
  });

  it("searches by itself where the hand has no ripgrep, and is not held up by a pattern that never ends", async () => {
    const { dataDir } = makeProcessDriver("none");
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
    const { driver } = makeProcessDriver(confined ?? "auto");
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
      const { driver } = makeProcessDriver(confined ?? "auto");
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

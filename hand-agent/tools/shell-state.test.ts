/** Whatever a command leaves behind in the shell: later answers report what really happened (X4). Nobody waits for a timeout. */
import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import v8 from "node:v8";
import vm from "node:vm";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { eventually } from "../../test/kit/eventually.ts";
import { type ToolCaller, textOf, toolCaller } from "../../test/kit/tool-caller.ts";
import type { Hand } from "../drivers/driver.ts";
import { ProcessDriver } from "../drivers/process/process-driver.ts";
import { TOOL_DEFINITIONS } from "./registry.ts";

const dataDir = mkdtempSync(join(tmpdir(), "tendon-shell-state-"));
chmodSync(dataDir, 0o711);
const driver = new ProcessDriver({
  dataDir,
  clock: systemClock,
  log: createLogger("test", "silent"),
  isolation: "none",
  tools: TOOL_DEFINITIONS,
});
let hand: Hand;
let call: ToolCaller;

beforeAll(async () => {
  hand = await driver.provision({ handId: "hand_shell_state" });
  call = toolCaller(hand);
});
afterAll(async () => {
  await hand?.destroy();
  rmSync(dataDir, { recursive: true, force: true });
});
beforeEach(async () => {
  await call("bash", { restart: true });
});

/** Far below the time that a call may take, far above what these need. */
const bash = (command: string) => call.bash(command, { input: { timeout_ms: 20_000 } });
const NOT_RUN =
  /^bash: bash session terminated\n(?:\[.*\]\n)?\[the shell no longer executed commands.*\n\[this command did not run; call again/;
const STATUS_LOST =
  /^bash: bash session terminated\n(?:\[.*\]\n)?\[this command ran, its exit status is unknown.*\n\[the next command gets a new shell/;

/** The command after `state` ran and is answered truly, in the same shell. */
async function expectTruth(): Promise<void> {
  const ran = await bash(">ran; pwd >&2; (exit 7)");
  expect(textOf(ran)).toContain(hand.workdir);
  expect(ran).toMatchObject({ isError: true, outcome: "completed", exit: { code: 7 } });
  await hand.stat(`${hand.workdir}/ran`);
  await hand.remove(`${hand.workdir}/ran`);
}

const WORDS =
  "eval builtin command printf exec trap return unset set test export read shopt enable declare exit [ : .".split(
    " ",
  );

describe("the shell after a command that left something behind (X4)", () => {
  it("runs commands and tells their status with functions named like every builtin", async () => {
    for (const word of WORDS) {
      expect(await bash(`function ${word} { X=called; }`), word).toMatchObject({ exit: { code: 0 } });
      expect(await bash("touch ran; sh -c 'exit 7'"), word).toMatchObject({
        isError: true,
        exit: { code: 7 },
      });
      await hand.remove(`${hand.workdir}/ran`);
    }
    expect(textOf(await bash("echo really"))).toBe("really");
  });

  it.each([
    "shopt -s expand_aliases; for w in eval printf exec export unset read shopt; do alias $w=:; done",
    "shopt -s extdebug",
    "trap 'echo noise; echo -n more >&61' DEBUG; trap 'echo noise' ERR RETURN",
    "set -u; set -f; set -C; set -E; set -T; set -a",
    "set -k",
    "set -v; set -x; PS4='exit 0 '",
    "exec 9>trace; BASH_XTRACEFD=9; set -x",
    "IFS=0123456789",
    "PROMPT_COMMAND='exit 9'; PS1='$(exit 9)'",
    "TMOUT=1; PATH=; unset PWD OLDPWD",
    "exec 3>&-; exec 60>&-; exec 61>&-",
    "exec >/dev/null 2>&1 </dev/null",
    "source /dev/stdin; . /dev/stdin",
    'export HUGE="$(printf "%0131000d" 0)" H2="$(printf "%0131000d" 0)"; export H3=$HUGE$H2 H4=$HUGE$H2 H5=$HUGE$H2 H6=$HUGE$H2 H7=$HUGE$H2',
    "readonly x=1; x=2",
    "set -o posix",
    "POSIXLY_CORRECT=5",
    "mkdir -p gone; cd gone; rmdir ../gone; cd ..",
    "trap '' INT TERM PIPE HUP CHLD",
    "break; continue; return 3",
    "if then",
    "ulimit -n 70",
    "unset $(compgen -v) 2>/dev/null; TENDON_B=x; TENDON_E=x",
    "ulimit -f 0",
    "set -H; set -o history; echo '!!'",
  ])("runs the next command and tells its status: %s", async (state) => {
    await bash(state);
    await expectTruth();
    expect(await bash("builtin :")).toMatchObject({ isError: false, exit: { code: 0 } });
  });

  it.each([
    "set -n",
    "readonly -f printf 2>&-; printf() { :; }; readonly -f printf",
    "enable -n unset",
    "enable -n eval",
    "shopt -s extdebug; trap false DEBUG",
  ])("says at once that the status is lost and the shell replaced: %s", async (state) => {
    const result = await bash(state);
    expect(textOf(result)).toMatch(STATUS_LOST);
    expect(result).toMatchObject({ isError: true, outcome: "completed" });
    expect(result.exit).toBeUndefined();
    await expectTruth();
  });

  it.each([
    ["set -r", /restricted/],
    ["readonly TENDON_CALL_ID", /TENDON_CALL_ID: readonly variable/],
  ])("says that the next command did not run, why, and to call again: %s", async (state, why) => {
    expect(await bash(state)).toMatchObject({ isError: false, exit: { code: 0 } });
    const result = await bash("touch ran");
    expect(textOf(result)).toMatch(NOT_RUN);
    expect(textOf(result)).toMatch(why);
    expect(result).toMatchObject({ isError: true, outcome: "failed" });
    expect(result.exit).toBeUndefined();
    await expect(hand.stat(`${hand.workdir}/ran`)).rejects.toThrow();
    await expectTruth();
  });

  it.each(["ulimit -n 5", 'for i in {3..70}; do eval "exec $i>&-"; done', "readonly POSIXLY_CORRECT=0"])(
    "says at once that the shell has ended: %s",
    async (state) => {
      const result = await bash(state);
      expect(textOf(result)).toMatch(/bash: bash session terminated\n.*the next command gets a new shell/);
      expect(result).toMatchObject({ isError: true });
      await expectTruth();
    },
  );

  it("says that the shell was replaced when only its preparation for the next command failed", async () => {
    expect(await bash("enable -n read")).toMatchObject({ isError: false, exit: { code: 0 } });
    expect(textOf(await bash("echo on"))).toMatch(/did not run; call again|this one ran in a new shell/);
    await expectTruth();
  });

  it("never takes a skipped command for one that ran", async () => {
    await bash("shopt -s extdebug; trap '[[ $BASH_COMMAND != *TENDON_B* ]]' DEBUG");
    expect(textOf(await bash("touch ran"))).toMatch(NOT_RUN);
    await expect(hand.stat(`${hand.workdir}/ran`)).rejects.toThrow();
  });

  it("replaces a shell that does not begin, within seconds", async () => {
    // Stopped between two commands: one that had begun would run to its time limit.
    await bash("(until [ -e stop-it ]; do sleep 0.01; done; kill -STOP $$; touch stopped) &");
    await hand.writeFile(`${hand.workdir}/stop-it`, Buffer.from(""));
    await eventually(() => hand.stat(`${hand.workdir}/stopped`));
    expect(textOf(await bash("touch ran"))).toContain("did not run");
    await expect(hand.stat(`${hand.workdir}/ran`)).rejects.toThrow();
    await hand.remove(`${hand.workdir}/stop-it`);
    await hand.remove(`${hand.workdir}/stopped`);
    await expectTruth();
  });

  it("says that a shell which ended between two commands was replaced", async () => {
    await bash("X=1; (until [ -e end-it ]; do sleep 0.01; done; kill -9 $$) & ");
    await hand.writeFile(`${hand.workdir}/end-it`, Buffer.from(""));
    await eventually(async () => !(await hand.callProcesses()).some((each) => each.command === "bash"));
    expect(textOf(await bash('echo "[$X]"'))).toMatch(
      // The second where the agent has not heard of the end yet.
      /^\[\]\n\[the shell had ended since the last command \(the shell exited with code 137\); this one ran in a new|^bash: bash session terminated\n\[the shell exited with code 137\]\n.*\n\[this command did not run/,
    );
    await hand.remove(`${hand.workdir}/end-it`);
  });

  it.each([
    ["exit 3", 3],
    ["set -e; false", 1],
    ["trap 'exit 5' DEBUG", 5],
    ["trap 'exit 5' ERR; false", 5],
    ["exec bash", 0],
    ["kill -9 $$", 137],
  ])("tells with which code the shell ended, in words and as data: %s", async (command, code) => {
    const result = await bash(command);
    expect(textOf(result)).toMatch(
      new RegExp(
        `^bash: bash session terminated\\n\\[the shell exited with code ${code}; the next command gets a new`,
      ),
    );
    expect(result).toMatchObject({ isError: true, outcome: "completed", exit: { code } });
    await expectTruth();
  });

  it("keeps directory, variables, functions, aliases and options of the user", async () => {
    await bash(
      "mkdir -p d; cd d; X=1; f() { echo f; }; cd() { builtin cd \"$@\"; }; exec 3>three 5>five; shopt -s expand_aliases nullglob; alias hi='echo hi'; set -u; trap 'echo bye' EXIT",
    );
    const kept = "basename $PWD; echo $X; f; hi; declare -F cd; shopt -p nullglob; trap -p EXIT; echo $-";
    expect(textOf(await bash(kept))).toBe(
      "d\n1\nf\nhi\ncd\nshopt -s nullglob\ntrap -- 'echo bye' EXIT\nhuBs",
    );
    await bash("set +u");
    const modes = `shopt; set -o; echo \${POSIXLY_CORRECT-none}`;
    const before = textOf(await bash(modes));
    expect(before).toMatch(/posix\s+off[\s\S]*none$/);
    expect(textOf(await bash(modes))).toBe(before);
    await bash("set -o posix");
    const posix = textOf(await bash(modes));
    expect(posix).toMatch(/posix\s+on/);
    expect(textOf(await bash("set +o posix"))).toBe("(no output)");
    expect(textOf(await bash("set -o | grep posix"))).toMatch(/off/);
  });

  it("has the modes of any other bash in a new shell", async () => {
    const { execFileSync } = await import("node:child_process");
    const plain = execFileSync("bash", ["--norc", "--noprofile"], {
      input: "shopt; set -o",
      encoding: "utf8",
    });
    await bash("true");
    expect(textOf(await bash("shopt; set -o"))).toBe(plain.trimEnd());
  });

  it("shows tracing of the user's command only", async () => {
    await bash("set -x");
    expect(textOf(await bash("echo a"))).toBe("++ echo a\na");
  });
});

describe("the shell of many calls", () => {
  it("keeps none of those that have ended in memory", async () => {
    const kept: WeakRef<object>[] = [];
    const run = async (command: string) => {
      const onOutput = () => {};
      kept.push(new WeakRef(onOutput));
      await call.bash(command, { onOutput });
    };
    for (let n = 0; n < 20; n += 1) await run(`echo ${n}`);
    v8.setFlagsFromString("--expose-gc");
    const collect = vm.runInNewContext("gc") as () => void;
    // The newest one may still be on its way out of the shell's hands.
    const held = () => kept.slice(0, -1).filter((ref) => ref.deref() !== undefined).length;
    await eventually(() => {
      collect();
      return held() === 0;
    });
  });
});

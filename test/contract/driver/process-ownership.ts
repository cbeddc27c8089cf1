/** Whose processes are whose, and how they end (X4). */
import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import type { Hand } from "../../../hand-agent/drivers/driver.ts";
import { type Clock, systemClock } from "../../../kit/clock.ts";
import { eventually } from "../../kit/eventually.ts";
import { promised } from "../../kit/promised.ts";
import { textOf, toolCaller } from "../../kit/tool-caller.ts";
import type { Parts } from "./driver-under-test.ts";

/** Ways to get away. `N` stands for a number that tells these processes from all others of the machine. */
const ESCAPES = {
  "a setsid descendant": "setsid sleep N &",
  "a double fork": "(setsid /bin/sh -c 'sleep N & sleep N &' &)",
  "a nohup descendant": "nohup sleep N >/dev/null 2>&1 &",
  "a subshell that was only forked": "( while :; do sleep 0.0N; done ) >/dev/null 2>&1 &",
  "an orphaned subshell that ignores signals":
    "( ( trap '' TERM INT HUP; while :; do sleep 0.0N; done ) & ) >/dev/null 2>&1",
  "a process with an empty environment": "env -i setsid /bin/sleep N >/dev/null 2>&1 &",
};
const ALL_ESCAPES = Object.values(ESCAPES).join("\n");

/** See DriverUnderTest.processesWith. */
async function processesOfMachine(number: string): Promise<number> {
  return readdirSync("/proc").filter((name) => {
    try {
      if (!/^\d+$/.test(name)) return false;
      const [program = "", duration] = readFileSync(`/proc/${name}/cmdline`, "latin1").split("\0");
      return /(^|\/)sleep$/.test(program) && (duration === number || duration === `0.0${number}`);
    } catch {
      return false; // gone meanwhile
    }
  }).length;
}

const newNumber = () => `${10_000_000 + Math.floor(Math.random() * 80_000_000)}`;

/** A loop that was missed would show one within every few milliseconds; where a look takes longer, fewer have to do. */
const LOOKS = 50;
const ENOUGH_AFTER_MS = 2_000;
const SEEN = { withinMs: 60_000 };
/** A time limit that nothing else is measured by. */
const TIMEOUT_MS = 54_321;

export function ownership(get: () => Parts, provision: () => Promise<Hand>): void {
  const processesWith = (number: string) => (get().under.processesWith ?? processesOfMachine)(number);
  const expectNoneLeft = async (number: string) => {
    const began = performance.now();
    for (let looks = 0; looks < LOOKS && performance.now() - began < ENOUGH_AFTER_MS; looks++) {
      expect(await processesWith(number)).toBe(0);
      await new Promise((resolve) => setImmediate(resolve));
    }
  };

  describe("ownership of processes (X4, R14)", () => {
    it.each(Object.entries(ESCAPES))("ends %s within 3 s when the call is cancelled", async (_, template) => {
      const { hand, call } = get();
      const stop = new AbortController();
      const number = newNumber();
      const callId = `cancel_${number}`;
      const command = `echo begun\n${template.replaceAll("N", number)}\nwhile :; do :; done`;
      const running = call.bash(command, { callId, signal: stop.signal });
      await eventually(async () => (await processesWith(number)) > 0, SEEN);
      const began = performance.now();
      stop.abort();
      const result = await running;
      expect(performance.now() - began).toBeLessThan(promised(3_000));
      expect(result).toMatchObject({ isError: true, outcome: "cancelled", exit: { signal: "SIGKILL" } });
      expect(textOf(result)).toMatch(/^begun\nbash: bash command cancelled\n.*killed.*\n.*new shell/);
      expect(result.leftProcesses).toBeUndefined();
      expect(await hand.callProcesses(callId)).toEqual([]);
      await expectNoneLeft(number);
    });

    // What ends them is the same as for a call that is cancelled, where each is looked at alone.
    it("ends all of them within 3 s of a timeout", async () => {
      const { hand } = get();
      const number = newNumber();
      const callId = `timeout_${number}`;
      const command = `echo partial\n${ALL_ESCAPES.replaceAll("N", number)}\nwhile :; do sleep 1; done`;
      // Its time is over once all are seen, however long they take to begin.
      let timeIsOver = () => {};
      const after: Clock["after"] = (delayMs, run) => {
        if (delayMs !== TIMEOUT_MS) return systemClock.after(delayMs, run);
        timeIsOver = run;
        return () => {};
      };
      const { bash } = toolCaller(hand, 0, { ...systemClock, after });
      const running = bash(command, { callId, input: { timeout_ms: TIMEOUT_MS } });
      await eventually(async () => (await processesWith(number)) >= Object.keys(ESCAPES).length, SEEN);
      const began = performance.now();
      timeIsOver();
      const result = await running;
      expect(performance.now() - began).toBeLessThan(promised(3_000));
      expect(result).toMatchObject({ isError: true, outcome: "timed_out" });
      expect(textOf(result)).toMatch(
        new RegExp(`^partial\nbash: bash command timed out after ${TIMEOUT_MS}ms\n.*killed.*\n.*new shell`),
      );
      expect(await hand.callProcesses(callId)).toEqual([]);
      await expectNoneLeft(number);
    });

    it("ends a call that shows no progress, and leaves one alone that works without a word (R2)", async () => {
      const hand = await provision();
      if (!hand.callCpuMs) return hand.destroy().then(() => {});
      const others = await Promise.all([provision(), provision()]);
      const [call, inShell, inProcess] = [hand, ...others].map((each) => toolCaller(each, 1_500));
      // Twice the bound: in the shell itself, and in a process of its own that says nothing.
      const works = "end=$((SECONDS + 3)); while ((SECONDS < end)); do :; done; echo worked";
      const working = [inShell!.bash(works), inProcess!.bash(`bash -c '${works}'`)];
      const number = newNumber();
      const began = performance.now();
      const wedged = await call!.bash(`echo partial; sleep ${number} & wait`, {
        callId: `stalled_${number}`,
      });
      expect(performance.now() - began).toBeLessThan(promised(1_500 * 1.5 + 3_000));
      expect(wedged).toMatchObject({ isError: true, outcome: "stalled", exit: { signal: "SIGKILL" } });
      expect(textOf(wedged)).toMatch(
        /^partial\nbash: bash command stalled: for 1500 ms .*\n.*killed.*\n.*new shell/,
      );
      await expectNoneLeft(number);
      // Its new shell is as good.
      expect(textOf(await call!.bash("echo again"))).toBe("again");
      expect((await Promise.all(working)).map(textOf)).toEqual(["worked", "worked"]);
      for (const each of [hand, ...others]) expect((await each.destroy()).left).toEqual([]);
    });

    it("leaves a finished call's background processes running, also when a later call is killed", async () => {
      const { hand, call } = get();
      const result = await call.bash("sleep 1000 & echo done", { callId: "background" });
      expect(textOf(result)).toBe("done");
      expect(result.leftProcesses).toMatchObject([{ callId: "background" }]);
      await call.bash("sleep 1000", { input: { timeout_ms: 50 } });
      expect(await hand.callProcesses("background")).toMatchObject([{ command: "sleep" }]);
      expect(await hand.killCall("background", { withinMs: promised(3_000) })).toEqual({ left: [] });
      expect(await hand.callProcesses("background")).toEqual([]);
    });

    it("leaves no zombies and no open descriptors after 200 calls", async () => {
      const { call, under } = get();
      await call.bash("true");
      const open = () => readdirSync("/proc/self/fd").length;
      const before = open();
      for (let i = 0; i < 200; i++) {
        const command = i % 4 === 0 ? "(sleep 0.01 &) ; (setsid true &)" : "true";
        expect((await call.bash(command)).isError).toBe(false);
      }
      await eventually(() => under.zombies() === 0);
      await eventually(() => open() <= before);
    });

    it("ends everything on destroy within 3 s", async () => {
      const hand = await provision();
      const number = newNumber();
      await toolCaller(hand).bash(ALL_ESCAPES.replaceAll("N", number));
      await eventually(async () => (await processesWith(number)) >= Object.keys(ESCAPES).length, SEEN);
      const began = performance.now();
      expect((await hand.destroy()).left).toEqual([]);
      expect(performance.now() - began).toBeLessThan(promised(3_000));
      await expectNoneLeft(number);
    });
  });
}

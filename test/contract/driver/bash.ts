/** The bash tool on any driver. */
import { setMaxListeners } from "node:events";
import { describe, expect, it } from "vitest";
import { eventually } from "../../kit/eventually.ts";
import { textOf } from "../../kit/tool-caller.ts";
import type { Parts } from "./driver-under-test.ts";

export function bash(get: () => Parts): void {
  describe("bash", () => {
    it("keeps directory, variables, arrays and functions from call to call", async () => {
      const { call } = get();
      await call("bash", { restart: true });
      await call.bash("mkdir -p keep && cd keep; X='a b'; declare -A M=([k]=v); f() { echo f:$1; }");
      expect(textOf(await call.bash('basename "$PWD"; echo "$X"; declare -p M; f 1'))).toBe(
        'keep\na b\ndeclare -A M=([k]="v" )\nf:1',
      );
      expect(textOf(await call("bash", { restart: true }))).toBe("bash session restarted");
      expect(textOf(await call.bash('basename "$PWD"; echo "[$X]"'))).toBe("work\n[]");
    });

    it("merges both outputs, strips ANSI and cuts trailing newlines", async () => {
      const { call } = get();
      expect(
        textOf(await call.bash(String.raw`printf '\033[31mred\033[0m '; echo err >&2; printf 'x\n\n\n'`)),
      ).toBe("red err\nx");
    });

    it.each([
      ["true", "(no output)", false, 0],
      ["false", "exit 1", true, 1],
      ["echo why; exit_code() { return 3; }; exit_code", "why", true, 3],
      ["if then", expect.stringContaining("syntax error"), true, 2],
      ["break; continue; echo on", expect.stringContaining("on"), false, 0],
    ] as const)("%s", async (command, text, isError, code) => {
      const result = await get().call.bash(command);
      expect(textOf(result)).toEqual(text);
      expect(result).toMatchObject({ isError, outcome: "completed", exit: { code } });
    });

    it("reads nothing from standard input and has no terminal", async () => {
      expect(textOf(await get().call.bash("cat; read x; echo $?; echo $TERM; test -t 1 || echo plain"))).toBe(
        "1\ndumb\nplain",
      );
    });

    it("says when a command ends the shell, keeps its output, and goes on with a new one", async () => {
      const { call } = get();
      const result = await call.bash("X=1; echo bye; exit 4");
      expect(result).toMatchObject({ isError: true, outcome: "completed", exit: { code: 4 } });
      expect(textOf(result)).toMatch(/^bye\nbash: bash session terminated\n.*new shell/);
      expect(textOf(await call.bash('echo "[$X]"'))).toBe("[]");
      expect(textOf(await call.bash("set -e; false; echo never"))).toMatch(/^bash: bash session terminated/);
    });

    it("answers bad input with what is wrong", async () => {
      const { call } = get();
      expect(textOf(await call("bash", {}))).toBe("bash: command is required");
      expect(textOf(await call("bash", { command: 1 }))).toBe("bash: command must be a string");
      expect(textOf(await call("bash", { command: "a", timeout_ms: -1 }))).toMatch(
        /timeout_ms must be a whole number/,
      );
      expect(textOf(await call("bash", "{"))).toMatch(/^bash: the input is not valid JSON/);
      expect(textOf(await call("bash", "[]"))).toBe("bash: the input must be a JSON object");
      expect(await call("nope", {})).toMatchObject({ isError: true, outcome: "failed" });
      expect(textOf(await call("nope", {}))).toMatch(/unknown tool "nope".*bash, read/);
    });

    it("gives a background process's later output to nobody else (X6)", async () => {
      const { call, hand } = get();
      const a = await call.bash(
        "(for i in $(seq 60); do echo A$i; sleep 0.005; done; touch a-done) & echo started",
      );
      expect(textOf(a).split("\n")).toContain("started");
      let b = "";
      while (!(await hand.stat(`${hand.workdir}/a-done`).catch(() => undefined)))
        b += textOf(await call.bash("echo B"));
      expect(b.replaceAll("B", "")).toBe("");
      await hand.remove(`${hand.workdir}/a-done`);
    });

    it("streams output while the command runs", async () => {
      const { call, hand } = get();
      const seen: string[] = [];
      const running = call.bash("echo first; until [ -e go-on ]; do sleep 0.01; done; echo second", {
        onOutput: (chunk) => void seen.push(Buffer.from(chunk).toString()),
      });
      await eventually(() => seen.join("").includes("first"));
      expect(seen.join("")).toBe("first\n");
      await hand.writeFile(`${hand.workdir}/go-on`, Buffer.from(""));
      expect(textOf(await running)).toBe("first\nsecond");
      expect(seen.join("")).toBe("first\nsecond\n");
    });

    it("queues calls of the shell in order; one that is cancelled while it waits never starts", async () => {
      const { call, hand } = get();
      const stop = new AbortController();
      const first = call.bash("until [ -e release ]; do sleep 0.01; done; echo 1");
      const second = call.bash("touch started-anyway", { signal: stop.signal });
      const third = call.bash("echo 3; ls started-anyway 2>&1 | grep -c 'No such'");
      stop.abort();
      expect(await second).toMatchObject({ isError: true, outcome: "cancelled" });
      // Other tools do not queue behind the shell.
      await call("write", { file_path: "release", content: "" });
      expect(textOf(await first)).toBe("1");
      expect(textOf(await third)).toBe("3\n1");
      await hand.remove(`${hand.workdir}/release`);
    });

    it("refuses more waiting calls than it can hold", async () => {
      const { call } = get();
      const stop = new AbortController();
      setMaxListeners(100, stop.signal);
      const calls = Array.from({ length: 80 }, () => {
        const each = new AbortController();
        stop.signal.addEventListener("abort", () => each.abort(), { once: true });
        return call.bash("sleep 1000", { signal: each.signal });
      });
      const refused = await Promise.race(calls.map((each, i) => each.then((result) => ({ result, i }))));
      expect(textOf(refused.result)).toMatch(/64 commands are waiting/);
      stop.abort();
      await Promise.all(calls);
    });

    it("holds a flooding writer back while its reader is slow, and still cancels it (X5)", async () => {
      const { call } = get();
      const stop = new AbortController();
      let received = 0;
      const running = call.bash("yes", {
        signal: stop.signal,
        onOutput: (chunk) => {
          received += chunk.byteLength;
          return new Promise(() => {});
        },
      });
      await eventually(() => received > 0);
      stop.abort();
      expect(await running).toMatchObject({ outcome: "cancelled" });
      // A writer that nothing holds back makes gigabytes; some megabytes lie in buffers on the way, also in an engine's.
      expect(received).toBeLessThan(8 * 1024 * 1024);
    });
  });
}

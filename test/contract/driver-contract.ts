/** What every driver must do, and what the tools must do on top of it. Run it for each driver and each of its modes. */
import { createHash } from "node:crypto";
import { setMaxListeners } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type Driver, FileError, type Hand, type HandPipe } from "../../hand-agent/drivers/driver.ts";
import { eventually } from "../kit/eventually.ts";
import { type ToolCaller, textOf, toolCaller } from "../kit/tool-caller.ts";

export interface DriverUnderTest {
  driver: Driver;
  /** Host processes that are zombies below the test; what a hand leaves must not be among them. */
  zombies(): number;
  dispose(): Promise<void>;
}

export function describeDriver(name: string, make: () => Promise<DriverUnderTest>, skip?: string): void {
  describe.skipIf(skip !== undefined)(`the ${name} driver${skip ? ` (skipped: ${skip})` : ""}`, () => {
    let under: DriverUnderTest;
    let hand: Hand;
    let call: ToolCaller;
    let hands = 0;
    const provision = () => under.driver.provision({ handId: `hand_contract${hands++}` });

    beforeAll(async () => {
      under = await make();
      hand = await provision();
      call = toolCaller(hand);
    });
    afterAll(async () => {
      await hand?.destroy();
      await under?.dispose();
    });

    lifeOfAHand(() => under, provision);
    processes(() => hand);
    files(() => hand);
    ownership(() => ({ hand, call, under }), provision);
    shell(() => ({ hand, call, under }));
    outputs(() => ({ hand, call, under }));
    fileTools(() => ({ hand, call, under }));
  });
}

type Parts = { hand: Hand; call: ToolCaller; under: DriverUnderTest };

function lifeOfAHand(under: () => DriverUnderTest, provision: () => Promise<Hand>): void {
  describe("the life of a hand", () => {
    it("probes as available and says how strong it is", async () => {
      const probe = await under().driver.probe();
      expect(probe).toMatchObject({
        available: true,
        isolation: expect.any(String),
        detail: expect.any(String),
      });
    });

    it("gives the same hand for the same id (R15), also when asked twice at once", async () => {
      const { driver } = under();
      const [a, b] = await Promise.all([1, 2].map(() => driver.provision({ handId: "hand_twice" })));
      expect(a).toBe(b);
      expect(await driver.provision({ handId: "hand_twice" })).toBe(a);
      expect(await driver.recover(a?.handle ?? null)).toBe(a);
      await a?.destroy();
    });

    it("keeps files and loses processes when parked; recover says so (H5, R16)", async () => {
      const { driver } = under();
      const hand = await provision();
      if (!driver.capabilities.park || !hand.park) return hand.destroy().then(() => {});
      expect(hand.resumed).toBe(false);
      await hand.writeFile(`${hand.workdir}/kept.txt`, Buffer.from("kept"));
      await toolCaller(hand).bash("sleep 1000 & echo started");
      expect((await hand.park()).left).toEqual([]);
      const again = await driver.recover(JSON.parse(JSON.stringify(hand.handle)));
      if (again === "gone") throw new Error("the hand is gone");
      expect(again.resumed).toBe(true);
      expect(await readAll(again, `${again.workdir}/kept.txt`)).toBe("kept");
      expect(await again.callProcesses()).toEqual([]);
      await again.destroy();
    });

    it("destroys for good and as often as asked; afterwards the hand is gone and takes no calls", async () => {
      const { driver } = under();
      const hand = await provision();
      await toolCaller(hand).bash("setsid sleep 1000 & nohup sleep 1000 >/dev/null 2>&1 & echo started");
      expect((await hand.destroy()).left).toEqual([]);
      expect((await hand.destroy()).left).toEqual([]);
      expect(await driver.recover(hand.handle)).toBe("gone");
      expect(await driver.listHandIds()).not.toContain(hand.id);
      await expect(hand.exec({ argv: ["true"] })).rejects.toThrow(/released/);
    });

    it("leaves nothing of a hand that could not be made, and discards any id", async () => {
      const { driver } = under();
      await expect(driver.provision({ handId: "hand_bad", env: { "NOT A NAME": "x" } })).rejects.toThrow(
        /NOT A NAME/,
      );
      await expect(driver.provision({ handId: "../outside" })).rejects.toThrow(/id/);
      const stop = AbortSignal.abort();
      await expect(driver.provision({ handId: "hand_aborted" }, stop)).rejects.toThrow();
      expect(await driver.listHandIds()).not.toContain("hand_aborted");
      expect(await driver.discard("hand_never")).toEqual({ left: [] });
    });

    it("puts resources and variables into the hand", async () => {
      const hand = await under().driver.provision({
        handId: "hand_resources",
        env: { GREETING: "it's me" },
        resources: [{ kind: "inline", path: "conf/a.txt", content: "inline", mode: 0o640 }],
      });
      expect(
        textOf(await toolCaller(hand).bash('echo "$GREETING"; cat conf/a.txt; stat -c " %a" conf/a.txt')),
      ).toBe("it's me\ninline 640");
      await hand.destroy();
    });
  });
}

function processes(get: () => Hand): void {
  describe("processes", () => {
    it("carries arguments, input, both outputs, variables, directory and the exit status", async () => {
      const hand = get();
      const child = await hand.exec({
        argv: ["/bin/sh", "-c", 'cat; echo "$X|$1|$PWD"; echo oops >&2; exit 7', "sh", "a b'c\n"],
        env: { X: "1=2" },
        cwd: "/",
        stdin: true,
      });
      await child.write("from input\n");
      child.endInput();
      expect(await drain(child.stdout)).toBe("from input\n1=2|a b'c\n|/\n");
      expect(await drain(child.stderr)).toBe("oops\n");
      expect(await child.exit).toEqual({ code: 7 });
    });

    it("reports 127 for a program that is not there, and 137 for a killed one", async () => {
      const missing = await get().exec({ argv: ["no-such-program"] });
      expect(await drain(missing.stderr)).toContain("no-such-program");
      expect(await missing.exit).toEqual({ code: 127 });
      const killed = await get().exec({ argv: ["sleep", "1000"] });
      await killed.kill();
      expect(await killed.exit).toEqual({ code: 137 });
    });

    it("kills a process whose signal aborts", async () => {
      const stop = new AbortController();
      const child = await get().exec({ argv: ["sleep", "1000"] }, stop.signal);
      stop.abort();
      expect(await child.exit).toEqual({ code: 137 });
    });

    it.each([8_191, 8_192, 65_535, 65_536, 1_048_577])("loses none of %i bytes (R11)", async (bytes) => {
      const child = await get().exec({ argv: ["head", "-c", `${bytes}`, "/dev/zero"] });
      expect((await drain(child.stdout)).length).toBe(bytes);
    });
  });
}

function files(get: () => Hand): void {
  describe("files", () => {
    const code = (promise: Promise<unknown>) =>
      promise.then(
        () => "no error",
        (error) => (error instanceof FileError ? error.code : error),
      );

    it("makes and reads links without following them, and sets modes, where it offers that", async () => {
      const { readLink, makeLink, setMode } = get();
      if (!readLink || !makeLink || !setMode) return;
      const at = (name: string) => `${get().workdir}/links/${name}`;
      await get().makeLink!(at("out"), "/etc/passwd");
      await get().makeLink!(at("in"), "file");
      expect(await get().readLink!(at("out"))).toBe("/etc/passwd");
      await expect(get().readFile(at("out"))[Symbol.asyncIterator]().next()).rejects.toThrow(FileError);
      await expect(get().makeLink!(at("in"), "other")).rejects.toThrow(FileError);
      await get().writeFile(at("file"), Buffer.from("x"));
      await expect(get().readLink!(at("file"))).rejects.toMatchObject({ code: "not_found" });
      await get().setMode!(at("in"), 0o751);
      expect((await get().stat(at("file"))).mode).toBe(0o751);
      await expect(get().setMode!(at("out"), 0o777)).rejects.toMatchObject({ code: "outside" });
      await get().remove(at("out"));
      await expect(get().readLink!(at("out"))).rejects.toMatchObject({ code: "not_found" });
    });

    it("writes, reads from an offset, renames, walks and removes", async () => {
      const hand = get();
      const dir = `${hand.workdir}/files/deep`;
      expect(await hand.writeFile(`${dir}/a.bin`, slow(["ab", "cd"]))).toEqual({ bytes: 4 });
      expect(await readAll(hand, `${dir}/a.bin`, 2)).toBe("cd");
      await hand.rename(`${dir}/a.bin`, `${dir}/b.bin`);
      await hand.mkdir(`${dir}/c`);
      await hand.mkdir(`${dir}/c`);
      const walked = [];
      for await (const entry of hand.walk(`${hand.workdir}/files`))
        walked.push(`${entry.type} ${entry.path.slice(dir.length - 5)}`);
      expect(walked.sort()).toEqual(["directory /deep", "directory /deep/c", "file /deep/b.bin"]);
      expect(await hand.stat(`${dir}/b.bin`)).toMatchObject({
        type: "file",
        size: 4,
        mode: 0o600,
        path: `${dir}/b.bin`,
      });
      await hand.remove(`${dir}/b.bin`);
      await hand.remove(`${dir}/b.bin`);
      expect(await code(hand.stat(`${dir}/b.bin`))).toBe("not_found");
    });

    it("follows links inside and refuses those that lead outside", async () => {
      const hand = get();
      await sh(
        hand,
        "mkdir -p links/real && echo in >links/real/f && cd links && ln -s real to && ln -s ../../.. up && ln -s /etc etc && ln -s loop loop && ln -s $PWD/real abs",
      );
      const at = (path: string) => `${hand.workdir}/links/${path}`;
      expect(await readAll(hand, at("to/f"))).toBe("in\n");
      expect((await hand.stat(at("abs/f"))).path).toBe(at("real/f"));
      for (const path of ["etc/passwd", "up/x", "etc"])
        expect(await code(hand.stat(at(path)))).toBe("outside");
      expect(await code(hand.writeFile(at("etc/x"), Buffer.from("x")))).toBe("outside");
      expect(await code(hand.stat("/etc/passwd"))).toBe("outside");
      expect(await code(hand.stat(`${hand.workdir}/../hand.json`))).toBe("outside");
      expect(await code(hand.stat(at("loop")))).toBe("too_many_links");
      expect(await code(hand.stat(at("real/f/x")))).toBe("not_a_directory");
    });

    it("never reads outside while a process swaps a directory for a link", async () => {
      const hand = get();
      const flipper = await hand.exec({
        argv: [
          "/bin/bash",
          "-c",
          "mkdir -p race/d race/e; echo mine >race/d/hostname; cd race; ln -s /etc l; while :; do mv -T d e; mv -T l d; mv -T d l; mv -T e d; done",
        ],
      });
      await eventually(() => hand.stat(`${hand.workdir}/race/l`).catch((error) => error.code === "outside"));
      const seen = new Set<string>();
      const isWide = () => seen.has("mine\n") && seen.has("error outside");
      for (const began = performance.now(), i = { reads: 0 }; i.reads < 500 || !isWide(); i.reads++) {
        seen.add(await readAll(hand, `${hand.workdir}/race/d/hostname`).catch((e) => `error ${e.code}`));
        if (performance.now() - began > 15_000) break;
      }
      await flipper.kill();
      const allowed = [
        "mine\n",
        "error outside",
        "error not_found",
        "error not_a_directory",
        "error too_many_links",
      ];
      expect([...seen].filter((text) => !allowed.includes(text))).toEqual([]);
      expect(seen).toContain("mine\n");
    });

    it("refuses directories and named pipes without waiting for them", async () => {
      const hand = get();
      await sh(hand, "mkfifo pipe; mkdir dir");
      expect(await code(readAll(hand, `${hand.workdir}/pipe`))).toBe("not_a_file");
      expect(await code(readAll(hand, `${hand.workdir}/dir`))).toBe("is_a_directory");
      expect(await code(hand.writeFile(`${hand.workdir}/pipe`, Buffer.from("x")))).toBe("not_a_file");
      expect(await code(hand.writeFile(`${hand.workdir}/dir`, Buffer.from("x")))).toBe("is_a_directory");
    });

    it("leaves the old file and nothing else when a write is cancelled", async () => {
      const hand = get();
      await sh(hand, "mkdir atomic; echo old >atomic/f; chmod 750 atomic/f");
      const stop = new AbortController();
      const content = (async function* () {
        yield Buffer.from("new");
        stop.abort();
        yield Buffer.from("er");
      })();
      await expect(
        hand.writeFile(`${hand.workdir}/atomic/f`, content, { signal: stop.signal }),
      ).rejects.toThrow();
      expect(await sh(hand, "ls -A atomic; cat atomic/f")).toBe("f\nold\n");
      await hand.writeFile(`${hand.workdir}/atomic/f`, Buffer.from("new\n"));
      expect(await sh(hand, "stat -c %a atomic/f; cat atomic/f")).toBe("750\nnew\n");
    });
  });
}

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

/** Processes of the machine that sleep for this number. Independent of what the driver believes. */
function processesWith(number: string): number {
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

/** A loop that was missed would show one within every few milliseconds. */
async function expectNoneLeft(number: string): Promise<void> {
  for (let looks = 0; looks < 200; looks++) {
    expect(processesWith(number)).toBe(0);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function ownership(get: () => Parts, provision: () => Promise<Hand>): void {
  describe("ownership of processes (X4, R14)", () => {
    it.each(Object.entries(ESCAPES))("ends %s within 3 s when the call is cancelled", async (_, template) => {
      const { hand, call } = get();
      const stop = new AbortController();
      const number = newNumber();
      const callId = `cancel_${number}`;
      const command = `echo begun\n${template.replaceAll("N", number)}\nwhile :; do :; done`;
      const running = call.bash(command, { callId, signal: stop.signal });
      await eventually(() => processesWith(number) > 0);
      const began = performance.now();
      stop.abort();
      const result = await running;
      expect(performance.now() - began).toBeLessThan(3_000);
      expect(result).toMatchObject({ isError: true, outcome: "cancelled", exit: { signal: "SIGKILL" } });
      expect(textOf(result)).toMatch(/^begun\nbash: bash command cancelled\n.*killed.*\n.*new shell/);
      expect(result.leftProcesses).toBeUndefined();
      expect(await hand.callProcesses(callId)).toEqual([]);
      await expectNoneLeft(number);
    });

    it.each(Object.entries(ESCAPES))("ends %s within 3 s of a timeout", async (_, template) => {
      const { hand, call } = get();
      const number = newNumber();
      const callId = `timeout_${number}`;
      const command = `echo partial\n${template.replaceAll("N", number)}\nwhile :; do sleep 1; done`;
      const began = performance.now();
      const running = call.bash(command, { callId, input: { timeout_ms: 400 } });
      await eventually(() => processesWith(number) > 0);
      const result = await running;
      expect(performance.now() - began).toBeLessThan(3_400);
      expect(result).toMatchObject({ isError: true, outcome: "timed_out" });
      expect(textOf(result)).toMatch(
        /^partial\nbash: bash command timed out after 400ms\n.*killed.*\n.*new shell/,
      );
      expect(await hand.callProcesses(callId)).toEqual([]);
      await expectNoneLeft(number);
    });

    it("ends a call that shows no progress, and leaves one alone that works without a word (R2)", async () => {
      const hand = await provision();
      if (!hand.callCpuMs) return hand.destroy().then(() => {});
      const call = toolCaller(hand, 1_500);
      const number = newNumber();
      const began = performance.now();
      const wedged = await call.bash(`echo partial; sleep ${number} & wait`, { callId: `stalled_${number}` });
      expect(performance.now() - began).toBeLessThan(1_500 * 1.5 + 3_000);
      expect(wedged).toMatchObject({ isError: true, outcome: "stalled", exit: { signal: "SIGKILL" } });
      expect(textOf(wedged)).toMatch(
        /^partial\nbash: bash command stalled: for 1500 ms .*\n.*killed.*\n.*new shell/,
      );
      await expectNoneLeft(number);
      // Twice the bound: in the shell itself, then in a process of its own that says nothing.
      const works = "end=$((SECONDS + 3)); while ((SECONDS < end)); do :; done; echo worked";
      expect(textOf(await call.bash(works))).toBe("worked");
      expect(textOf(await call.bash(`bash -c '${works}'`))).toBe("worked");
      expect((await hand.destroy()).left).toEqual([]);
    }, 30_000);

    it("leaves a finished call's background processes running, also when a later call is killed", async () => {
      const { hand, call } = get();
      const result = await call.bash("sleep 1000 & echo done", { callId: "background" });
      expect(textOf(result)).toBe("done");
      expect(result.leftProcesses).toMatchObject([{ callId: "background" }]);
      await call.bash("sleep 1000", { input: { timeout_ms: 50 } });
      expect(await hand.callProcesses("background")).toMatchObject([{ command: "sleep" }]);
      expect(await hand.killCall("background", { withinMs: 3_000 })).toEqual({ left: [] });
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
      await eventually(() => under.zombies() === 0, { withinMs: 5_000 });
      await eventually(() => open() <= before);
    });

    it("ends everything on destroy within 3 s", async () => {
      const hand = await provision();
      const number = newNumber();
      await toolCaller(hand).bash(Object.values(ESCAPES).join("\n").replaceAll("N", number));
      await eventually(() => processesWith(number) >= Object.keys(ESCAPES).length);
      const began = performance.now();
      expect((await hand.destroy()).left).toEqual([]);
      expect(performance.now() - began).toBeLessThan(3_000);
      await expectNoneLeft(number);
    });
  });
}

function shell(get: () => Parts): void {
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
        "(for i in $(seq 200); do echo A$i; sleep 0.005; done; touch a-done) & echo started",
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

function outputs(get: () => Parts): void {
  describe("output bounds", () => {
    it("keeps head, tail and everything else as an artefact with its digest (R13)", async () => {
      const { hand, call } = get();
      const result = await call.bash("seq 1 40000", { callId: "long/output" });
      const text = textOf(result);
      const [artefact] = result.artefacts;
      const whole = await readAll(hand, artefact?.path ?? "");
      expect(createHash("sha256").update(whole).digest("hex")).toBe(artefact?.sha256);
      expect(artefact?.bytes).toBe(whole.length);
      expect(whole).toBe(Array.from({ length: 40_000 }, (_, i) => `${i + 1}\n`).join(""));
      const line = /\n\[(\d+) bytes dropped; all of it is in (.*)\]\n/.exec(text);
      expect(line?.[2]).toBe(artefact?.path);
      expect(text.startsWith(whole.slice(0, 20_000))).toBe(true);
      expect(text.endsWith(whole.trimEnd().slice(-80_000))).toBe(true);
      expect(Number(line?.[1])).toBe(whole.trimEnd().length - 100_000);
      expect(textOf(await call("read", { file_path: artefact?.path, view_range: [20_000, 20_000] }))).toBe(
        "20000",
      );
    });

    it("needs no artefact for what fits", async () => {
      const result = await get().call.bash("head -c 100000 /dev/zero | tr '\\0' x");
      expect(textOf(result)).toBe("x".repeat(100_000));
      expect(result.artefacts).toEqual([]);
    });

    it("carries NUL, split characters and invalid bytes as the whole would decode (R12)", async () => {
      const result = await get().call.bash(
        String.raw`for b in 61 00 c3 a9 e2 82 ac f0 9f 98 80 ff c3 62; do printf "\x$b"; sleep 0.002; done`,
      );
      expect(textOf(result)).toBe("a\0é€😀��b");
    });

    it("holds little memory while 256 MiB flow", async () => {
      const { call } = get();
      const before = process.memoryUsage().rss;
      let peak = 0;
      const result = await call.bash("head -c 268435456 /dev/zero", {
        onOutput: () => {
          peak = Math.max(peak, process.memoryUsage().rss - before);
        },
      });
      expect(result.artefacts[0]?.bytes).toBe(268_435_456);
      expect(peak).toBeLessThan(200 * 1024 * 1024);
      await get().hand.remove(result.artefacts[0]?.path ?? "");
    });
  });
}

function fileTools(get: () => Parts): void {
  describe("read, write, edit, glob and grep", () => {
    const text = async (name: string, input: unknown) => textOf(await get().call(name, input));

    it("writes and reads text, whole and by lines", async () => {
      expect(await text("write", { file_path: "t/a.txt", content: "one\ntwo\nthrée\n" })).toBe(
        "wrote 15 bytes to t/a.txt",
      );
      expect(await text("read", { file_path: "t/a.txt" })).toBe("one\ntwo\nthrée\n");
      expect(await text("read", { file_path: "t/a.txt", view_range: [2, 3] })).toBe("two\nthrée");
      expect(await text("read", { file_path: "t/a.txt", view_range: [3, 0] })).toBe("thrée\n");
      expect(await text("read", { file_path: `${get().hand.workdir}/t/a.txt`, view_range: [1, 1] })).toBe(
        "one",
      );
      expect(await text("write", { file_path: "t/empty", content: "" })).toBe("wrote 0 bytes to t/empty");
      expect(await text("read", { file_path: "t/empty" })).toBe("(no output)");
      expect(textOf(await get().call.bash("stat -c %a t t/a.txt"))).toBe("700\n600");
    });

    it("says what is wrong with a path", async () => {
      expect(await text("read", { file_path: "t/none" })).toBe("read: t/none: no such file or directory");
      expect(await text("read", { file_path: "t" })).toBe("read: t: is a directory");
      expect(await text("read", {})).toBe("read: file_path is required");
      expect(await text("read", { file_path: "t/a.txt", view_range: [9, 9] })).toBe(
        "read: t/a.txt has no line 9",
      );
      for (const name of ["read", "write", "edit"]) {
        const input = { file_path: "/etc/x", content: "", old_string: "a", new_string: "b" };
        expect(await text(name, input)).toBe(`path "/etc/x" is outside the session's working directory`);
      }
      expect(await text("glob", { pattern: "*", path: "../.." })).toMatch(
        /outside the session's working directory/,
      );
    });

    it("reads at most 256 KiB", async () => {
      await get().call.bash(
        "mkdir -p t; head -c 262145 /dev/zero | tr '\\0' x >t/big; seq 1 100000 >t/lines",
      );
      expect(await text("read", { file_path: "t/big" })).toMatch(
        /^read: t\/big is 262145 bytes, exceeds 262144-byte limit/,
      );
      expect(await text("read", { file_path: "t/big", view_range: [1, 1] })).toMatch(
        /exceeds 262144-byte limit/,
      );
      expect(await text("read", { file_path: "t/lines", view_range: [99_999, 0] })).toBe("99999\n100000\n");
      expect(await text("edit", { file_path: "t/big", old_string: "x", new_string: "y" })).toMatch(
        /^edit: t\/big is 262145 bytes/,
      );
    });

    it("edits what is unique, or all of it, and keeps the rest byte for byte", async () => {
      const { call } = get();
      await call.bash("printf 'a.b.a\\xff\\n' >t/e; chmod 755 t/e");
      const edit = (input: object) => text("edit", { file_path: "t/e", ...input });
      expect(await edit({ old_string: "a", new_string: "c" })).toBe(
        "edit: old_string appears 2 times in t/e (must be unique)",
      );
      expect(await edit({ old_string: "zz", new_string: "c" })).toBe("edit: old_string not found in t/e");
      expect(await edit({ old_string: "b", new_string: "$&" })).toBe("edited t/e (1 replacement(s))");
      expect(await edit({ old_string: "a", new_string: "cc", replace_all: true })).toBe(
        "edited t/e (2 replacement(s))",
      );
      expect(textOf(await call.bash("od -An -c t/e; stat -c %a t/e"))).toBe(
        "   c   c   .   $   &   .   c   c 377  \\n\n755",
      );
    });

    it("globs newest first, without .git, node_modules and what leads outside", async () => {
      const { call, hand } = get();
      await call.bash(
        "mkdir -p g/src/deep g/.git g/node_modules; cd g; touch -d @1 src/a.ts; touch -d @3 src/deep/b.ts; touch -d @2 .hidden.ts; touch .git/c.ts node_modules/d.ts; ln -s /etc/hosts out.ts; cd ..",
      );
      const at = (path: string) => `${hand.workdir}/g/${path}`;
      expect(await text("glob", { pattern: "**/*.ts", path: "g" })).toBe(
        [at("src/deep/b.ts"), at(".hidden.ts"), at("src/a.ts")].join("\n"),
      );
      expect(await text("glob", { pattern: "*.py", path: "g" })).toBe("no matches");
      expect(await text("glob", { pattern: "/etc/*" })).toMatch(/^glob: absolute pattern not permitted/);
      expect(await text("glob", { pattern: "../*" })).toMatch(/^glob: '..' is not permitted/);
      await call.bash("mkdir many; cd many; touch $(seq 1 250); cd ..");
      expect((await text("glob", { pattern: "*", path: "many" })).split("\n")).toHaveLength(200);
    });

    it("greps lines with path and number", async () => {
      const { call, hand } = get();
      await call.bash(
        "mkdir -p s/.git; printf 'alpha\\nbeta\\n' >s/x; echo beta >s/.git/y; echo beta >'s/z w'",
      );
      const found = (await text("grep", { pattern: "^be.a$", path: "s" })).split("\n").sort();
      expect(found).toEqual([`${hand.workdir}/s/x:2:beta`, `${hand.workdir}/s/z w:1:beta`]);
      expect(await text("grep", { pattern: "gamma", path: "s" })).toBe("no matches");
      expect(await text("grep", { pattern: "alpha", path: "s/x" })).toBe(`${hand.workdir}/s/x:1:alpha`);
      expect(await text("grep", { pattern: "(", path: "s" })).toMatch(/^grep: (rg failed|invalid regex)/);
      await call.bash("yes 0123456789 | head -n 20000 >s/long");
      expect(await text("grep", { pattern: "0", path: "s/long" })).toMatch(
        /\[output truncated at 102400 bytes\]$/,
      );
    });
  });
}

async function drain(pipe: HandPipe): Promise<string> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of pipe.chunks) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

async function readAll(hand: Hand, path: string, offset = 0): Promise<string> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of hand.readFile(path, { offset })) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

async function sh(hand: Hand, script: string): Promise<string> {
  const child = await hand.exec({ argv: ["/bin/bash", "-c", script] });
  child.stderr.abandon();
  return drain(child.stdout);
}

async function* slow(parts: readonly string[]): AsyncGenerator<Uint8Array> {
  for (const part of parts) yield Buffer.from(part);
}

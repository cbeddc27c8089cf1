import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";
import { afterEach, describe, expect, it } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { createLogger, type Logger } from "../../kit/log.ts";
import { eventually } from "../../test/kit/eventually.ts";
import { commandsWith } from "../../test/kit/process-list.ts";
import { testProgram } from "../../test/kit/test-program.ts";
import { LoopProcess } from "./loop-process.ts";

const environment = { PATH: process.env.PATH ?? "" };
const started: LoopProcess[] = [];
afterEach(async () => {
  for (const child of started.splice(0)) await child.end();
});

async function start(script: string, { mark = randomUUID(), log = createLogger("test", "silent") } = {}) {
  const argv = ["sh", "-c", script, mark];
  const child = LoopProcess.start({ name: "test", argv, environment }, systemClock, log);
  started.push(child);
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return { child, mark, line: async () => (await lines.next()).value as string };
}

/** Two that do not end when they are asked to, one of them in the background. */
const STUBBORN = `trap '' TERM HUP INT; (while :; do sleep 1; done) & echo up; while :; do sleep 1; done`;

describe("a loop's program", () => {
  it("has the environment that it was given and a home of its own, and no more", async () => {
    const { child, line } = await start("env | sort | tr '\\n' ' '; echo; pwd");
    // Shells add some by themselves.
    const names = (await line())
      .match(/\b\w+(?==)/g)
      ?.filter((name) => !["_", "PWD", "SHLVL", "OLDPWD"].includes(name));
    expect(names).toEqual(["HOME", "PATH", "TMPDIR"]);
    expect(await line()).toBe(child.scratch);
  });

  it("is killed with its whole group and its directory, whatever it ignores", async () => {
    const { child, mark, line } = await start(STUBBORN);
    expect(await line()).toBe("up");
    expect(commandsWith(mark).length).toBeGreaterThan(1);
    await child.end();
    await eventually(() => commandsWith(mark).length === 0);
    expect(existsSync(child.scratch)).toBe(false);
    expect(await child.ended).toBe("it was ended by SIGKILL");
  });

  it("is killed before its input ends, which it could take for an answer", async () => {
    const { child, line } = await start("echo up; read -r _; echo more");
    expect(await line()).toBe("up");
    const { process: program } = child;
    const kill = program.kill.bind(program);
    let inputAtKill: boolean | undefined;
    program.kill = (signal) => {
      inputAtKill ??= child.stdin.destroyed || child.stdin.writableEnded;
      return kill(signal);
    };
    await child.end();
    expect(inputAtKill).toBe(false);
    expect(await line()).toBeUndefined();
  });

  it("keeps its watcher when it ends its own group politely", async () => {
    const { child, mark, line } = await start(
      `trap '' TERM; (while :; do sleep 1; done) & echo up; kill 0; sleep 60`,
    );
    expect(await line()).toBe("up");
    await child.end();
    await eventually(() => commandsWith(mark).length === 0);
    expect(existsSync(child.scratch)).toBe(false);
  });

  it("leaves nothing running when it ends by itself", async () => {
    const { child, mark, line } = await start("(while :; do sleep 1; done) & echo up; exit 3");
    expect(await line()).toBe("up");
    expect(await child.ended).toBe("it ended with exit code 3");
    await eventually(() => commandsWith(mark).length === 0 && !existsSync(child.scratch));
  });

  it("goes with its directory when the harness is killed", async () => {
    const mark = randomUUID();
    const program = await testProgram("test/kit/loop-owner-program.ts");
    const owner = spawn(process.execPath, [program, "sh", "-c", STUBBORN, mark], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const scratch = await new Promise<string>((resolve) =>
      owner.stdout.once("data", (text) => resolve(`${text}`.trim())),
    );
    expect(existsSync(scratch)).toBe(true);
    owner.kill("SIGKILL");
    await eventually(() => commandsWith(mark).length === 0 && !existsSync(scratch));
  });

  it("that cannot be started says why", async () => {
    const program = { name: "test", argv: ["/nonexistent/program"], environment };
    const child = LoopProcess.start(program, systemClock, createLogger("test", "silent"));
    expect(await child.ended).toBe("it ended with exit code 127");
    await child.end();
  });

  it("speaks to operators on standard error, within a bound", async () => {
    const said: unknown[] = [];
    const log = {
      warn: (fields: object, text: string) => said.push({ ...fields, text }),
    } as unknown as Logger;
    const { child } = await start("echo one >&2; yes 0123456789 | head -c 200000 >&2", { log });
    await child.ended;
    await eventually(() => said.some((line) => JSON.stringify(line).includes("the rest of what")));
    expect(said[0]).toEqual({ loopProgram: "test", line: "one", text: "a loop's program says" });
    expect(JSON.stringify(said).length).toBeLessThan(1_000_000);
    expect(said.length).toBeLessThan(7_000);
  });
});

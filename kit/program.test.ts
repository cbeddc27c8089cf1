import { execFileSync, spawn } from "node:child_process";
import { closeSync, constants, openSync, readSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { afterEach, beforeEach, expect, test } from "vitest";
import { eventually } from "../test/kit/eventually.ts";

const BYTES = 1.5 * 1024 * 1024;
const PROGRAM = pathToFileURL(join(import.meta.dirname, "program.ts")).href;

let dir = "";
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "tendon-program-"));
  execFileSync("mkfifo", [join(dir, "out")]);
});
afterEach(() => rm(dir, { recursive: true, force: true }));

/** A program whose standard output is a named pipe that nobody reads yet. */
async function start(main: string) {
  const file = join(dir, "main.mts");
  await writeFile(file, `import { runMain } from ${JSON.stringify(PROGRAM)};\n${main}\n`);
  const reader = openSync(join(dir, "out"), constants.O_RDONLY | constants.O_NONBLOCK);
  const writer = openSync(join(dir, "out"), constants.O_WRONLY);
  const child = spawn(process.execPath, ["--import", "tsx", file], { stdio: ["ignore", writer, "pipe"] });
  closeSync(writer);
  let errors = "";
  child.stderr?.setEncoding("utf8").on("data", (text: string) => {
    errors += text;
  });
  const ended = new Promise<number | null>((resolve) => child.on("close", (code) => resolve(code)));
  return { reader, ended, errors: () => errors };
}

/** One read of at most `size` bytes; -1: nothing is there at the moment. */
function readOnce(fd: number, size: number): number {
  try {
    return readSync(fd, Buffer.alloc(size), 0, size, null);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EAGAIN") return -1;
    throw error;
  }
}

async function readAll(fd: number): Promise<number> {
  let total = 0;
  const check = () => {
    for (let got = readOnce(fd, 4096); got !== 0; got = readOnce(fd, 4096)) {
      if (got < 0) throw new Error(`no end after ${total} bytes`);
      total += got;
    }
    return true;
  };
  await eventually(check, { withinMs: 60_000, everyMs: 1 });
  return total;
}

const writes = (bytes: number) => `process.stdout.write("x".repeat(${bytes}));`;

test("a program that has ended still hands all of its output to a slow reader", async () => {
  const { reader, ended, errors } = await start(
    `await runMain("prog", async () => { ${writes(BYTES)} process.stderr.write("main is over\\n"); return 3; });`,
  );
  await eventually(() => expect(errors()).toContain("main is over"));
  expect(await readAll(reader)).toBe(BYTES);
  expect(await ended).toBe(3);
  closeSync(reader);
});

test("a program whose reader goes away early ends quietly", async () => {
  const { reader, ended, errors } = await start(
    `await runMain("prog", async () => { ${writes(BYTES)} process.stderr.write("main is over\\n"); return 0; });`,
  );
  await eventually(() => expect(errors()).toContain("main is over"));
  expect(readOnce(reader, 4096)).toBe(4096);
  closeSync(reader);
  expect(await ended).toBe(0);
  expect(errors()).toBe("main is over\n");
});

test("a program waits for a reader that takes nothing no longer than it may, and fails with a reason", async () => {
  const { reader, ended, errors } = await start(
    `await runMain("prog", async () => { ${writes(BYTES)} return 0; }, { stalledOutputMs: 300 });`,
  );
  expect(await ended).toBe(1);
  expect(errors()).toContain("prog: nobody read the rest of the output");
  closeSync(reader);
});

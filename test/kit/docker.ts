/**
 * A real Docker engine for tests: the machine's own where one runs, else one that the first test starts and the end of the
 * run stops, with a directory of its own for everything that it keeps. Several test processes share it.
 */
import { execFile, spawn } from "node:child_process";
import { closeSync, existsSync, openSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rename, rm, rmdir, writeFile } from "node:fs/promises";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { eventually } from "./eventually.ts";

const MACHINE_SOCKET = "/var/run/docker.sock";
const SHARED = join(tmpdir(), "tendon-test-docker");
const LOCK = `${SHARED}.lock`;
/** A lock is held for as long as an engine takes to start or stop. */
const LOCK_WITHIN_MS = 170_000;
const START_WITHIN_MS = 90_000;
const STOP_WITHIN_MS = 60_000;
/** An engine that runs answers at once, and on a busy machine within seconds. */
const ANSWER_WITHIN_MS = 20_000;

export interface TestEngine {
  /** For DOCKER_HOST. */
  readonly host: string;
  readonly socketPath: string;
  /** Runs `docker` on this engine and gives what it prints. Rejects with what it complains about. */
  docker(...args: string[]): Promise<string>;
  /** To be called once by whoever used it; what it made there is its own to remove. */
  release(): Promise<void>;
}

/** Why this machine cannot run an engine; undefined where it can. */
export function whyNoDocker(): string | undefined {
  if (existsSync(MACHINE_SOCKET)) return undefined;
  if (process.getuid?.() !== 0) return "starting an engine needs root";
  const missing = ["dockerd", "iptables"].filter((name) => !isInstalled(name));
  return missing.length === 0 ? undefined : `${missing.join(" and ")} not installed`;
}

export async function useDocker(): Promise<TestEngine> {
  if (!existsSync(join(SHARED, "pid")) && (await answers(MACHINE_SOCKET))) {
    return engineAt(MACHINE_SOCKET, async () => {});
  }
  await locked(async () => {
    await mkdir(join(SHARED, "users"), { recursive: true });
    if (!(await answers(join(SHARED, "docker.sock")))) await startEngine();
    // Its images are made once, so it is kept for the files that come later: until the run's main process lets go of it.
    await writeFile(join(SHARED, "users", `${process.ppid}`), "");
  });
  return engineAt(join(SHARED, "docker.sock"), async () => {});
}

/** For the end of a run, in its main process: stops the engine that its tests started, unless another run uses it. */
export async function releaseDocker(): Promise<void> {
  if (!existsSync(SHARED)) return;
  await locked(async () => {
    const users = join(SHARED, "users");
    const names = await readdir(users).catch(() => []);
    for (const name of names) {
      if (Number(name) === process.pid || !isAlive(Number.parseInt(name, 10)))
        await rm(join(users, name), { force: true });
    }
    if ((await readdir(users).catch(() => [])).length === 0) await stopEngine();
  });
}

export function engineAt(socketPath: string, release: () => Promise<void>): TestEngine {
  const host = `unix://${socketPath}`;
  return {
    host,
    socketPath,
    release,
    async docker(...args) {
      const { stdout } = await promisify(execFile)("docker", ["--host", host, ...args], {
        maxBuffer: 16 << 20,
      });
      return stdout;
    },
  };
}

async function startEngine(): Promise<void> {
  const at = (name: string) => join(SHARED, name);
  const log = openSync(at("dockerd.log"), "a");
  const places = ["--data-root", at("data"), "--exec-root", at("exec"), "--pidfile", at("dockerd.pid")];
  // Published ports, if any, are for this machine alone.
  const child = spawn("dockerd", ["--host", `unix://${at("docker.sock")}`, "--ip", "127.0.0.1", ...places], {
    stdio: ["ignore", log, log],
    detached: true,
  });
  closeSync(log);
  child.unref();
  await writeFile(at("pid"), `${child.pid}`);
  await eventually(() => answers(at("docker.sock")), { withinMs: START_WITHIN_MS, everyMs: 100 }).catch(
    async (error) => {
      const said = await readFile(at("dockerd.log"), "utf8").catch(() => "");
      throw new Error(`the engine did not start: ${error}\n${said.slice(-2_000)}`);
    },
  );
}

async function stopEngine(): Promise<void> {
  const pid = Number(await readFile(join(SHARED, "pid"), "utf8").catch(() => "0"));
  if (pid > 0 && isAlive(pid)) {
    process.kill(pid, "SIGTERM");
    await eventually(() => !isAlive(pid), { withinMs: STOP_WITHIN_MS, everyMs: 50 });
  }
  // An engine mounts its data on itself; one that was killed has left it so, and what is mounted cannot be removed.
  await promisify(execFile)("umount", ["--lazy", join(SHARED, "data")]).catch(() => {});
  await rm(SHARED, { recursive: true, force: true });
}

/** One process at a time. A lock whose holder is gone is taken over. */
async function locked(run: () => Promise<void>): Promise<void> {
  await eventually(
    async () => {
      try {
        await mkdir(LOCK);
      } catch {
        const holder = Number(await readFile(join(LOCK, "pid"), "utf8").catch(() => `${process.pid}`));
        if (!isAlive(holder)) await breakLock();
        return false;
      }
      await writeFile(join(LOCK, "pid"), `${process.pid}`);
      return true;
    },
    { withinMs: LOCK_WITHIN_MS, everyMs: 50 },
  );
  try {
    await run();
  } finally {
    await rm(join(LOCK, "pid"), { force: true });
    await rmdir(LOCK);
  }
}

/** Renamed first, so that of two who find it only one takes it away. */
async function breakLock(): Promise<void> {
  const aside = await mkdtemp(`${LOCK}-`);
  await rename(LOCK, aside).catch(() => {});
  await rm(aside, { recursive: true, force: true });
}

export function answers(socketPath: string): Promise<boolean> {
  return new Promise((resolve) => {
    const call = request({ socketPath, path: "/_ping", timeout: ANSWER_WITHIN_MS }, (response) => {
      response.resume();
      resolve(response.statusCode === 200);
    });
    call.on("error", () => resolve(false));
    call.on("timeout", () => call.destroy());
    call.end();
  });
}

/** Not a zombie either: nobody waits for a child that outlived its parent's interest. */
function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

function isInstalled(name: string): boolean {
  const path = (process.env.PATH ?? "").split(":");
  return [...path, "/usr/sbin", "/sbin"].some((dir) => existsSync(join(dir, name)));
}

/**
 * An engine of one test's own, which may be restarted and may run out of disk: in a network namespace of its own, with all
 * that it keeps on a small file system in memory.
 */
import { execFileSync, spawn } from "node:child_process";
import { closeSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { answers, engineAt, type TestEngine } from "./docker.ts";
import { eventually } from "./eventually.ts";

const START_WITHIN_MS = 90_000;

export interface PrivateEngineOptions {
  readonly diskMib: number;
  /** What the engine's configuration file says besides, such as runtimes. */
  readonly config?: Readonly<Record<string, unknown>>;
}

export class PrivateEngine {
  readonly engine: TestEngine;
  private readonly folder: string;
  private running: Promise<unknown> = Promise.resolve();
  private pid = 0;

  private constructor(folder: string) {
    this.folder = folder;
    this.engine = engineAt(join(folder, "docker.sock"), () => this.remove());
  }

  static async start({ diskMib, config = {} }: PrivateEngineOptions): Promise<PrivateEngine> {
    const folder = mkdtempSync(join(tmpdir(), "tendon-engine-"));
    const data = join(folder, "data");
    mkdirSync(data);
    execFileSync("mount", ["-t", "tmpfs", "-o", `size=${diskMib}m`, "tmpfs", data]);
    writeFileSync(join(folder, "daemon.json"), JSON.stringify(config));
    const engine = new PrivateEngine(folder);
    try {
      await engine.run();
      return engine;
    } catch (error) {
      await engine.remove();
      throw error;
    }
  }

  /** Starts it, also after `stop`. */
  async run(): Promise<void> {
    const at = (name: string) => join(this.folder, name);
    rmSync(at("dockerd.pid"), { force: true });
    const log = openSync(at("dockerd.log"), "a");
    const places = ["--data-root", at("data"), "--exec-root", at("exec"), "--pidfile", at("dockerd.pid")];
    const network = ["--bridge=none", "--iptables=false", "--shutdown-timeout", "1"];
    const socket = ["--host", `unix://${at("docker.sock")}`, "--config-file", at("daemon.json")];
    const args = ["--net", "dockerd", ...socket, ...places, ...network];
    const child = spawn("unshare", args, { stdio: ["ignore", log, log], detached: true });
    closeSync(log);
    this.pid = child.pid ?? 0;
    this.running = new Promise<void>((resolve) => {
      child.once("exit", () => {
        this.pid = 0;
        resolve();
      });
    });
    const isUp = () => answers(at("docker.sock"));
    await eventually(isUp, { withinMs: START_WITHIN_MS, everyMs: 100 }).catch((error) => {
      throw new Error(`${error}\n${readFileSync(at("dockerd.log"), "utf8").slice(-2_000)}`);
    });
  }

  /** As a restart of the machine's service would, and its containers with it; `run` starts it again. */
  async stop(): Promise<void> {
    if (this.pid > 0) process.kill(this.pid, "SIGTERM");
    await this.running;
  }

  private async remove(): Promise<void> {
    await this.stop();
    // Its data, and what a start that failed has left mounted.
    const mounts = readFileSync("/proc/self/mounts", "utf8").split("\n");
    const ours = mounts
      .map((line) => line.split(" ")[1] ?? "")
      .filter((path) => path.startsWith(this.folder));
    for (const path of ours.reverse()) execFileSync("umount", ["--lazy", path]);
    rmSync(this.folder, { recursive: true, force: true });
  }
}

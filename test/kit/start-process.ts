/** `npm start` as a person runs it: the script in a process group of its own, with a data directory of its own. */
import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { eventually } from "./eventually.ts";
import { freePort } from "./free-port.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
const startScript = join(root, "scripts/start.mjs");
const tendonFile = join(root, "dist/tendon.mjs");

export interface Ended {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface RunSetting {
  readonly env?: Readonly<Record<string, string>>;
  /** Written to standard input, which then ends; left out: it is /dev/null. */
  readonly input?: string;
  /** Words in front of the command line. */
  readonly prefix?: readonly string[];
  readonly withinMs?: number;
}

/** What a run may know of this machine: nothing of the tests' own settings. */
function baseEnv(): Record<string, string> {
  const { PATH = "", HOME = "", LANG = "C.UTF-8" } = process.env;
  return { PATH, HOME, LANG };
}

/**
 * For a start whose server has to be up: with `--port 0` the launcher looks for a port before the server takes it, and until
 * then another program that wants any port may get the same.
 */
export async function atOwnPort(): Promise<string[]> {
  return ["--port", String(await freePort())];
}

/** One installation in a folder that is made with the first process and goes with `dispose`. */
export class Installation {
  readonly dataDir: string;
  private readonly folder: string;
  private readonly started: ChildProcess[] = [];

  constructor() {
    this.folder = join(tmpdir(), `tendon-e2e-${randomBytes(6).toString("hex")}`);
    this.dataDir = join(this.folder, "data");
  }

  /** Starts `npm start` and does not wait. */
  start(args: readonly string[] = [], setting: RunSetting = {}): StartProcess {
    return new StartProcess(this.spawn([startScript, ...args], setting));
  }

  /** Runs `npm start -- args` to its end. */
  startToEnd(args: readonly string[], setting: RunSetting = {}): Promise<Ended> {
    return this.start(args, setting).ended(setting.withinMs);
  }

  /** Starts `tendon args` and does not wait. */
  startTendon(args: readonly string[], setting: RunSetting = {}): StartProcess {
    return new StartProcess(this.spawn([tendonFile, ...args], setting));
  }

  /** Runs `tendon args` to its end. */
  tendon(args: readonly string[], setting: RunSetting = {}): Promise<Ended> {
    return this.startTendon(args, setting).ended(setting.withinMs);
  }

  /** What `tendon args --json` prints; throws with what it said when it failed. */
  async json<T = Record<string, unknown>>(...args: string[]): Promise<T> {
    const { code, stdout, stderr } = await this.tendon([...args, "--json"]);
    if (code !== 0) throw new Error(`tendon ${args.join(" ")} ended with ${code}: ${stderr}`);
    return JSON.parse(stdout) as T;
  }

  /** Numbers and command lines of all processes that name the data directory in arguments or environment. */
  processes(): { pid: number; command: string }[] {
    return readdirSync("/proc")
      .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
      .flatMap((name) => {
        const command = readProc(name, "cmdline");
        const names = command.includes(this.dataDir) || readProc(name, "environ").includes(this.dataDir);
        return names && !isZombie(name)
          ? [{ pid: Number(name), command: command.replaceAll("\0", " ") }]
          : [];
      });
  }

  /** Ends everything that is left and removes the folder. Throws when something had been left running. */
  async dispose(): Promise<void> {
    for (const child of this.started)
      if (child.exitCode === null && child.signalCode === null) child.kill("SIGTERM");
    let left: { pid: number; command: string }[] = [];
    try {
      await eventually(() => this.processes().length === 0, { withinMs: 60_000 });
    } catch {
      left = this.processes();
      for (const { pid } of left) kill(pid, "SIGKILL");
      await eventually(() => this.processes().length === 0);
    }
    rmSync(this.folder, { recursive: true, force: true });
    if (left.length > 0) throw new Error(`left running: ${left.map(({ command }) => command).join("; ")}`);
  }

  private spawn(words: readonly string[], { env = {}, input, prefix = [] }: RunSetting): ChildProcess {
    mkdirSync(this.folder, { recursive: true, mode: 0o755 });
    const [command, ...args] = [...prefix, process.execPath, ...words];
    const child = spawn(command!, args, {
      cwd: this.folder,
      detached: true,
      env: { ...baseEnv(), TENDON_DATA_DIR: this.dataDir, ...env },
      stdio: [input === undefined ? "ignore" : "pipe", "pipe", "pipe"],
    });
    child.stdin?.on("error", () => {});
    child.stdin?.end(input);
    this.started.push(child);
    return child;
  }
}

export class StartProcess {
  readonly child: ChildProcess;
  stdout = "";
  stderr = "";
  private readonly exit: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;

  constructor(child: ChildProcess) {
    this.child = child;
    child.stdout?.setEncoding("utf8").on("data", (part: string) => {
      this.stdout += part;
    });
    child.stderr?.setEncoding("utf8").on("data", (part: string) => {
      this.stderr += part;
    });
    this.exit = new Promise((resolve) => child.once("close", (code, signal) => resolve({ code, signal })));
  }

  get pid(): number {
    return this.child.pid!;
  }

  /** The URL that it says it listens at, once it is ready. */
  async ready(withinMs = 90_000): Promise<string> {
    return eventually(
      () => {
        if (this.child.exitCode !== null) throw new Error(`it ended: ${this.stderr}`);
        return /listens on +(http\S+)/.exec(this.stdout)?.[1];
      },
      { withinMs },
    );
  }

  async ended(withinMs = 90_000): Promise<Ended> {
    let outcome: { code: number | null; signal: NodeJS.Signals | null } | undefined;
    void this.exit.then((exit) => {
      outcome = exit;
    });
    await eventually(() => outcome, { withinMs }).catch(() => {
      throw new Error(`it still runs after ${withinMs} ms: ${this.stdout}\n${this.stderr}`);
    });
    return { ...outcome!, stdout: this.stdout, stderr: this.stderr };
  }

  /** To everyone in its process group, as a terminal or a supervisor does. */
  signalGroup(signal: NodeJS.Signals): void {
    process.kill(-this.pid, signal);
  }
}

export function kill(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {
    // It went by itself.
  }
}

export function readProc(pid: string | number, file: string): string {
  try {
    return existsSync(`/proc/${pid}`) ? readFileSync(`/proc/${pid}/${file}`, "latin1") : "";
  } catch {
    return "";
  }
}

function isZombie(pid: string): boolean {
  const stat = readProc(pid, "stat");
  return stat.slice(stat.lastIndexOf(")") + 2).startsWith("Z");
}

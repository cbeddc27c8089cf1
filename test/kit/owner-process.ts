/** Runs the program that owns an embedded Postgres, as anyone, under any circumstances a shell can arrange. */
import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

export interface OwnerStarted {
  url: string;
  pid: number;
  adopted: boolean;
  tookMs: number;
}

export interface OwnerRefused {
  problem: string;
  message: string;
}

export interface OwnerProcess {
  process: ChildProcess;
  /** The one line it says. */
  said: Promise<Partial<OwnerStarted & OwnerRefused>>;
  /** Resolves with the exit code, or the name of the signal that ended it. */
  ended: Promise<number | string>;
  /** What it logged so far. */
  log(): string;
}

export interface OwnerSetting {
  /** The repository, as the program is to find it. */
  root?: string;
  /** Commands of a shell in a mount namespace of its own that run first (root only). */
  prepare?: string;
  /** Words in front of the program's command line. */
  prefix?: string[];
}

export const repository = fileURLToPath(new URL("../..", import.meta.url)).replace(/\/$/, "");

/** `file` is the bundled program, below the repository. */
export function startOwner(file: string, dataDir: string, setting: OwnerSetting = {}): OwnerProcess {
  const { root = repository, prepare, prefix = [] } = setting;
  const program = [...prefix, process.execPath, file.replace(repository, root), dataDir];
  const command =
    prepare === undefined
      ? program
      : ["unshare", "-m", "sh", "-ec", `${prepare}\nexec "$@"`, "sh", ...program];
  const child = spawn(command[0] ?? "", command.slice(1), {
    // A process group of its own, as a terminal or a supervisor would give it.
    detached: true,
    cwd: "/",
    stdio: ["ignore", "pipe", "pipe"],
    env: { PATH: process.env.PATH },
  });
  let log = "";
  child.stderr.setEncoding("utf8").on("data", (text) => {
    log += text;
  });
  const ended = new Promise<number | string>((resolve) => {
    child.on("exit", (code, signal) => resolve(code ?? signal ?? "unknown"));
  });
  const said = new Promise<Partial<OwnerStarted & OwnerRefused>>((resolve, reject) => {
    createInterface({ input: child.stdout }).once("line", (line) => resolve(JSON.parse(line)));
    child.on("error", reject);
    child.on("close", () => reject(new Error(`it ended without a word: ${log}`)));
  });
  // Not everyone who starts it asks what it said.
  said.catch(() => {});
  return { process: child, said, ended, log: () => log };
}

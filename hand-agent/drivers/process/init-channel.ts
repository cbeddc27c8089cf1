/** The agent's end of a hand's first process: starts it, sends requests, and hears what became of them. */
import { type ChildProcess, spawn } from "node:child_process";
import type { Writable } from "node:stream";
import { type Clock, within } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import { type ExitStatus, HandError } from "../driver.ts";
import { PipeLost } from "./fifo-pipe.ts";

/** How long a sandbox may take to start. Measured: 10–60 ms. */
const START_TIMEOUT_MS = 10_000;
const MAX_DIAGNOSTIC_CHARS = 4_000;

interface Waiter<T> {
  resolve(value: T): void;
  reject(error: Error): void;
}

interface Running {
  pid: Waiter<number>;
  exit: Waiter<ExitStatus>;
}

export interface RunRequest {
  readonly in: string;
  readonly out: string;
  readonly err: string;
  readonly cwd: string;
  readonly env: Readonly<Record<string, string>>;
  readonly argv: readonly string[];
}

export class InitChannel {
  /** Resolves with the reason once the sandbox has ended, however it ended. */
  readonly ended: Promise<string>;
  /** The launcher's process id on the host; the hand's first process is this one or a descendant. */
  readonly launcherPid: number;
  isOpen = true;
  private readonly child: ChildProcess;
  private readonly running = new Map<string, Running>();
  private readonly pipeWaiters: Waiter<void>[] = [];
  private ready: Waiter<void> | undefined;
  private diagnostics = "";
  private nextId = 1;

  private constructor(child: ChildProcess) {
    this.child = child;
    this.launcherPid = child.pid ?? -1;
    this.ended = new Promise((resolve) => {
      const end = (reason: string) => {
        if (!this.isOpen) return;
        this.isOpen = false;
        const error = new HandError(`the sandbox has ended: ${reason}`);
        this.ready?.reject(error);
        for (const run of this.running.values()) {
          run.pid.reject(error);
          run.exit.reject(error);
        }
        this.running.clear();
        for (const waiter of this.pipeWaiters.splice(0)) waiter.reject(error);
        resolve(reason);
      };
      child.on("error", (error) => end(messageOf(error)));
      child.on("close", (code, signal) => end(this.describeEnd(code, signal)));
    });
    child.stdin?.on("error", () => {}); // a write after the end: `ended` tells it
    child.stderr?.setEncoding("utf8").on("data", (text: string) => {
      this.diagnostics = (this.diagnostics + text).slice(0, MAX_DIAGNOSTIC_CHARS);
    });
    this.listen();
  }

  /** Starts the sandbox and resolves when its first process takes requests. A failure leaves nothing running. */
  static async start(
    argv: readonly string[],
    options: { clock: Clock; env: Record<string, string>; signal?: AbortSignal | undefined },
  ): Promise<InitChannel> {
    const [file = "", ...args] = argv;
    const child = spawn(file, args, {
      cwd: "/",
      detached: true,
      env: options.env,
      stdio: ["pipe", "ignore", "pipe", "pipe"],
    });
    const channel = new InitChannel(child);
    const ready = new Promise<void>((resolve, reject) => {
      channel.ready = { resolve, reject };
    });
    const abort = () => channel.ready?.reject(new HandError("provisioning was cancelled"));
    options.signal?.addEventListener("abort", abort, { once: true });
    try {
      if (options.signal?.aborted) abort();
      await within(
        options.clock,
        START_TIMEOUT_MS,
        ready,
        () => new HandError(`the sandbox did not start within ${START_TIMEOUT_MS} ms`),
      );
      return channel;
    } catch (error) {
      channel.kill();
      throw error;
    } finally {
      options.signal?.removeEventListener("abort", abort);
    }
  }

  /** Makes named pipes; answers come in the order of the requests. */
  makePipes(dir: string, names: readonly string[]): Promise<void> {
    return new Promise((resolve, reject) => {
      if (!this.send(["pipes", dir, `${names.length}`, ...names])) return reject(endedError());
      this.pipeWaiters.push({ resolve, reject });
    });
  }

  /** Resolves when the process exists. `lost` is for the caller to say that it is gone although no status came. */
  async run(request: RunRequest): Promise<{ pid: number; exit: Promise<ExitStatus>; lost: () => void }> {
    const id = `${this.nextId++}`;
    const env = Object.entries(request.env).map(([name, value]) => `${name}=${value}`);
    const fields = [id, request.in, request.out, request.err, request.cwd, `${env.length}`, ...env];
    let pidWaiter: Waiter<number> | undefined;
    const pid = new Promise<number>((resolve, reject) => {
      pidWaiter = { resolve, reject };
    });
    const exit = new Promise<ExitStatus>((resolve, reject) => {
      if (pidWaiter) this.running.set(id, { pid: pidWaiter, exit: { resolve, reject } });
    });
    exit.catch(() => {}); // whoever needs it awaits it too
    if (!this.send(["run", ...fields, `${request.argv.length}`, ...request.argv])) {
      this.running.delete(id);
      throw endedError();
    }
    return { pid: await pid, exit, lost: () => this.answered(["exit", id, `${128 + 9}`]) };
  }

  /** Ends the launcher and with it, where there is a process namespace, everything inside. */
  kill(): void {
    this.child.stdin?.destroy();
    if (this.child.pid === undefined || !this.isOpen) return;
    // The whole group: a launcher that is killed while it starts would leave the half-made sandbox behind.
    try {
      process.kill(-this.child.pid, "SIGKILL");
    } catch {
      // gone
    }
  }

  private send(fields: readonly string[]): boolean {
    const input = this.child.stdin as Writable;
    if (!this.isOpen || !input.writable) return false;
    for (const field of fields) {
      if (field.includes("\0")) throw new HandError("arguments and variables cannot hold a NUL character");
    }
    input.write(`${fields.join("\0")}\0`);
    return true;
  }

  private listen(): void {
    const answers = this.child.stdio[3] as NodeJS.ReadableStream | null;
    let rest = "";
    answers?.setEncoding("latin1");
    answers?.on("error", () => {});
    answers?.on("data", (text: string) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) this.answered(line.split(" "));
    });
  }

  private answered([kind, id = "", value = ""]: string[]): void {
    const run = this.running.get(id);
    if (kind === "ready") this.ready?.resolve();
    else if (kind === "pipes") {
      const waiter = this.pipeWaiters.shift();
      if (id === "0") waiter?.resolve();
      else waiter?.reject(new PipeLost("the sandbox could not make a named pipe"));
    } else if (kind === "pid") run?.pid.resolve(Number(value));
    else if (kind === "exit" && run) {
      this.running.delete(id);
      run.pid.reject(new HandError("the process could not be started"));
      run.exit.resolve({ code: Number(value) });
    }
  }

  private describeEnd(code: number | null, signal: NodeJS.Signals | null): string {
    const said = this.diagnostics.trim();
    return `${signal ?? `exit ${code}`}${said ? `: ${said}` : ""}`;
  }
}

function endedError(): HandError {
  return new HandError("the sandbox has ended");
}

/**
 * The process of one MCP server: JSON messages a line over its standard input and output. It is the first of a process
 * group of its own, and everything that it starts carries the hand's mark, so that `end` leaves nothing behind (X4).
 * Its environment is made here, from nothing: no variable of the agent reaches it.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { homedir } from "node:os";
import type { Clock } from "../../../kit/clock.ts";
import type { Logger } from "../../../kit/log.ts";
import type { ProcessInfo } from "../driver.ts";
import { ProcessTable } from "../process-table.ts";
import { Diagnostics } from "./diagnostics.ts";
import { JsonLines } from "./json-lines.ts";
import type { McpServerConfig } from "./server-config.ts";

/** A message above this ends the server: nobody can use it. */
export const MAX_MESSAGE_BYTES = 16 * 1024 * 1024;
/** What may wait for a server that does not read. */
const MAX_UNSENT_BYTES = 32 * 1024 * 1024;
/** In the configuration: the hand's own directory. */
const HAND_DIR = "$" + "{HAND_DIR}";
const PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/** For a server to end by itself once its input has ended; then its processes are killed. */
const END_GRACE_MS = 500;
const KILL_WITHIN_MS = 2_000;

export interface ServerProcessOptions {
  readonly server: McpServerConfig;
  /** Marks its processes. */
  readonly handId: string;
  /** The hand's own directory. */
  readonly handDir: string;
  readonly clock: Clock;
  readonly log: Logger;
  readonly onMessage: (message: Record<string, unknown>) => void;
}

export class ServerProcess {
  /** Resolves with why, for people, when it has ended by itself or was ended. Never rejects. */
  readonly ended: Promise<string>;
  private readonly options: ServerProcessOptions;
  private readonly child: ChildProcess;
  private tellEnd!: (why: string) => void;

  constructor(options: ServerProcessOptions) {
    this.options = options;
    this.ended = new Promise((resolve) => {
      this.tellEnd = resolve;
    });
    const { server, handDir, handId, clock, log } = options;
    const filled = (text: string) => text.replaceAll(HAND_DIR, handDir);
    this.child = spawn(server.command, server.args.map(filled), {
      cwd: server.cwd ?? handDir,
      env: {
        PATH,
        HOME: homeOrRoot(),
        LANG: "C.UTF-8",
        ...Object.fromEntries(Object.entries(server.env).map(([name, value]) => [name, filled(value)])),
        TENDON_HAND_ID: markOf(server, handId),
      },
      stdio: ["pipe", "pipe", "pipe"],
      detached: true,
    });
    const diagnostics = new Diagnostics({ server, handId, clock, log });
    this.child.stderr?.on("data", (chunk: Uint8Array) => diagnostics.push(chunk));
    const lines = new JsonLines(
      MAX_MESSAGE_BYTES,
      (line) => this.take(line),
      () => this.giveUp(`it sent a message of more than ${MAX_MESSAGE_BYTES} bytes`),
    );
    this.child.stdout?.on("data", (chunk: Uint8Array) => lines.push(chunk));
    this.child.on("error", ({ code }: NodeJS.ErrnoException) => {
      this.tellEnd(
        code === "ENOENT" ? "its program or working directory is not there" : `it could not be run: ${code}`,
      );
    });
    this.child.on("exit", (code, signal) => {
      this.tellEnd(signal === null ? `it ended with code ${code}` : `it was ended by ${signal}`);
    });
    for (const pipe of [this.child.stdin, this.child.stdout, this.child.stderr]) pipe?.on("error", () => {});
  }

  /** One that has ended gets nothing, and nobody is told: `ended` says it. */
  send(message: Record<string, unknown>): void {
    const { stdin } = this.child;
    if (stdin === null || !stdin.writable) return;
    stdin.write(`${JSON.stringify(message)}\n`);
    if (stdin.writableLength > MAX_UNSENT_BYTES) this.giveUp("it does not read what it is sent");
  }

  /** Its living processes. */
  processes(): Promise<ProcessInfo[]> {
    return this.table().listAll();
  }

  /** Ends it and whatever it has started, within 3 s. */
  async end(): Promise<{ left: ProcessInfo[] }> {
    const { clock } = this.options;
    this.child.stdin?.end();
    const stop = new AbortController();
    await Promise.race([this.ended, clock.sleep(END_GRACE_MS, stop.signal).catch(() => {})]);
    stop.abort();
    this.killGroup();
    const table = this.table();
    return table.kill(() => table.listAll(), KILL_WITHIN_MS);
  }

  private take(line: string): void {
    let message: unknown;
    try {
      message = JSON.parse(line);
    } catch {
      return; // servers that print to standard output, against the protocol, work all the same
    }
    if (typeof message === "object" && message !== null && !Array.isArray(message)) {
      this.options.onMessage(message as Record<string, unknown>);
    }
  }

  private giveUp(why: string): void {
    this.tellEnd(why);
    this.killGroup();
  }

  /** The group's number is the child's, and stays taken while one process of it lives. */
  private killGroup(): void {
    const { pid, exitCode, signalCode } = this.child;
    if (pid === undefined || exitCode !== null || signalCode !== null) return;
    try {
      process.kill(-pid, "SIGKILL");
    } catch {
      // gone
    }
  }

  private table(): ProcessTable {
    return tableOf(this.options.server, this.options.handId, this.options.clock);
  }
}

/** What an earlier life of the agent left of a hand. */
export async function endLeftovers(
  server: McpServerConfig,
  handId: string,
  clock: Clock,
): Promise<{ left: ProcessInfo[] }> {
  const table = tableOf(server, handId, clock);
  return table.kill(() => table.listAll(), KILL_WITHIN_MS);
}

export function processesOf(server: McpServerConfig, handId: string, clock: Clock): Promise<ProcessInfo[]> {
  return tableOf(server, handId, clock).listAll();
}

/** What the environment of a hand's processes has as `TENDON_HAND_ID`. */
function markOf({ name }: McpServerConfig, handId: string): string {
  return `mcp-${name}/${handId}`;
}

function tableOf(server: McpServerConfig, handId: string, clock: Clock): ProcessTable {
  return new ProcessTable({ handId: markOf(server, handId), scope: { kind: "marked" }, clock });
}

/** A service's user may be no more than a number, in no file and without a home. */
function homeOrRoot(): string {
  try {
    return homedir();
  } catch {
    return "/";
  }
}

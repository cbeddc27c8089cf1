/**
 * A program that a loop runs for one session: in a process group and a scratch directory of its own, both gone once it is
 * ended, and also when this harness is killed, whatever the program does.
 *
 * The group is watched from inside: its shell keeps one end of a pipe whose other end only this process holds. When that
 * closes, by `end` or by the death of the harness, the watcher kills the program, removes the scratch directory and kills the
 * group. What leaves its group (`setsid`) is not reached.
 *
 * A program that is not wanted any more never sees its input end before it is dead: it could take that for an answer, and go on
 * by itself. (One whose harness dies is killed as soon as its watcher runs.)
 */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Duplex, Readable, Writable } from "node:stream";
import { type Clock, within } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";

export interface LoopProgram {
  /** For the log. */
  readonly name: string;
  /** The program, looked for in PATH, and its arguments. */
  readonly argv: readonly string[];
  /** All of its environment but HOME and TMPDIR, which are the scratch directory. */
  readonly environment: Readonly<Record<string, string>>;
  /** Where it starts; by default the scratch directory. */
  readonly directory?: string;
  /** By default a new one. It goes with the program all the same. */
  readonly scratch?: string;
  /** Something elsewhere that goes with the scratch directory. */
  readonly leftover?: string;
}

/** A directory that only this user can read. */
export function makeScratch(): string {
  return mkdtempSync(join(tmpdir(), "tendon-loop-"));
}

/**
 * `$1` and `$2` are removed. Descriptor 3 stays open in the watcher alone, which does not go with a program that ends its
 * own group politely.
 */
const WATCHED = [
  `{ trap '' TERM HUP INT; read -r _ <&3; kill -9 "$$"; rm -rf -- "$1" "$2"; kill -9 "-$$"; } </dev/null >/dev/null 2>&1 &`,
  "shift 2; exec 3<&-",
  'exec "$@"',
].join("\n");

/** After it was killed; a process that waits for a disk that does not answer is left alone. */
const END_WAIT_MS = 5_000;
/** In which the watcher does its work; a program that has killed its watcher is killed from here. */
const WATCHER_WAIT_MS = 1_000;
const LOOK_EVERY_MS = 10;
const MAX_STDERR_LINE_CHARS = 2_000;
/** Of one process; what it writes beyond that is dropped. */
const MAX_STDERR_CHARS = 64 * 1024;

export class LoopProcess {
  readonly scratch: string;
  private readonly leftover: string;
  /** Resolves when the program itself has ended, with words for how. Never rejects. */
  readonly ended: Promise<string>;
  private readonly child: ChildProcess;
  private readonly watched: Duplex;
  private readonly clock: Clock;
  private over = false;
  private ending: Promise<void> | undefined;

  private constructor(child: ChildProcess, scratch: string, leftover: string, clock: Clock) {
    this.child = child;
    this.scratch = scratch;
    this.leftover = leftover;
    this.clock = clock;
    this.watched = child.stdio[3] as Duplex;
    this.watched.on("error", () => {});
    this.stdin.on("error", () => {});
    this.ended = new Promise((resolve) => {
      child.once("error", (error) => resolve(`it could not be started: ${messageOf(error)}`));
      child.once("exit", (code, signal) =>
        resolve(signal === null ? `it ended with exit code ${code}` : `it was ended by ${signal}`),
      );
    });
    // What the program left behind in its group ends with it.
    void this.ended.then(() => {
      this.over = true;
      return this.end();
    });
  }

  static start(program: LoopProgram, clock: Clock, log: Logger): LoopProcess {
    const { scratch = makeScratch() } = program;
    const { leftover = scratch } = program;
    const child = spawn("/bin/sh", ["-c", WATCHED, "tendon-loop", scratch, leftover, ...program.argv], {
      cwd: program.directory ?? scratch,
      env: { ...program.environment, HOME: scratch, TMPDIR: scratch },
      stdio: ["pipe", "pipe", "pipe", "pipe"],
      detached: true,
    });
    logStderr(child.stderr!, program.name, log);
    return new LoopProcess(child, scratch, leftover, clock);
  }

  get stdin(): Writable {
    return this.child.stdin!;
  }

  get stdout(): Readable {
    return this.child.stdout!;
  }

  get process(): ChildProcess {
    return this.child;
  }

  get isOver(): boolean {
    return this.over;
  }

  /** Kills the whole group and removes the scratch directory. May be called often; never rejects. */
  end(): Promise<void> {
    this.ending ??= this.endAll();
    return this.ending;
  }

  private async endAll(): Promise<void> {
    if (!this.over) this.child.kill("SIGKILL");
    this.watched.destroy();
    this.stdin.destroy();
    await within(this.clock, END_WAIT_MS, this.ended, () => new Error("it does not end")).catch(() => {});
    await this.endGroup();
    for (const path of [this.scratch, this.leftover]) {
      await rm(path, { recursive: true, force: true, maxRetries: 3 }).catch(() => {});
    }
  }

  private async endGroup(): Promise<void> {
    const { pid } = this.child;
    if (pid === undefined) return;
    const deadlineMs = this.clock.monotonicMs() + WATCHER_WAIT_MS;
    while (signalGroup(pid, 0)) {
      if (this.clock.monotonicMs() >= deadlineMs) return void signalGroup(pid, "SIGKILL");
      await this.clock.sleep(LOOK_EVERY_MS);
    }
  }
}

/** Whether there is such a group. */
function signalGroup(leader: number, signal: NodeJS.Signals | 0): boolean {
  try {
    process.kill(-leader, signal);
    return true;
  } catch {
    return false;
  }
}

/** What a program says for people goes to the harness's log, never into a session. */
function logStderr(stderr: Readable, program: string, log: Logger): void {
  let line = "";
  let chars = 0;
  const say = () => {
    if (line.trim() !== "") log.warn({ loopProgram: program, line: line.trimEnd() }, "a loop's program says");
    line = "";
  };
  stderr.setEncoding("utf8");
  stderr.on("error", () => {});
  stderr.on("data", (text: string) => {
    if (chars > MAX_STDERR_CHARS) return;
    const kept = text.slice(0, MAX_STDERR_CHARS - chars);
    chars += text.length;
    for (const part of kept.split(/(?<=\n)/)) {
      line = (line + part).slice(0, MAX_STDERR_LINE_CHARS);
      if (part.endsWith("\n")) say();
    }
    if (chars > MAX_STDERR_CHARS)
      log.warn({ loopProgram: program }, "the rest of what a loop's program says is dropped");
  });
  stderr.on("end", say);
}

/**
 * One program as a process of its own: started with its secrets in pipes and its log in a file, started again when it
 * crashes, and tied to this process by a lifeline, so that it ends with it whatever way that is.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import type { Stream, Writable } from "node:stream";
import { Backoff } from "../../kit/backoff.ts";
import { type Clock, within } from "../../kit/clock.ts";
import type { ProgramName } from "../program-files.ts";
import { type LogFile, lastLines } from "./log-file.ts";
import type { ChildSettings } from "./programs.ts";

export interface ChildOptions {
  readonly name: ProgramName;
  readonly file: string;
  readonly args?: readonly string[];
  /** Asked at every start: a restart may need less than the first one. */
  settings(): Promise<ChildSettings>;
  /** A program that must outlive this one: its lifeline is held here too, also when the launcher is gone. */
  readonly stopsBefore?: ChildProgram | undefined;
  readonly log: LogFile;
  readonly clock: Clock;
  /** A process was started or ended. */
  onChange(): void;
  /** It cannot be kept running; nothing is tried any more. */
  onFailed(failure: ChildFailure): void;
}

export interface ChildFailure {
  readonly name: ProgramName;
  /** How it ended the last time. */
  readonly how: string;
  readonly lines: readonly string[];
}

const BACKOFF = { firstMs: 300, maxMs: 15_000, resetAfterMs: 60_000 };
/** Ends within so long after a start count as failures to start. */
const STANDS_AFTER_MS = 60_000;
const MAX_FAILED_STARTS = 8;
/** While the platform has never been ready there is nothing worth keeping. */
const MAX_FAILED_FIRST_STARTS = 3;
/** Of a bad setting, and of refusals that only an operator can mend: the same again would fail the same. */
const HOPELESS_EXIT_CODES = [2, 3, 4];
const LIFELINE_FD = 3;
const FIRST_SECRET_FD = 4;

export class ChildProgram {
  readonly name: ProgramName;
  private readonly options: ChildOptions;
  private readonly backoff: Backoff;
  private child: ChildProcess | undefined;
  private ended: Promise<void> = Promise.resolve();
  private stopped = false;
  private failedStarts = 0;
  private hasStood = false;

  constructor(options: ChildOptions) {
    this.options = options;
    this.name = options.name;
    this.backoff = new Backoff(options.clock, BACKOFF);
  }

  get pid(): number | undefined {
    return this.child?.pid;
  }

  /** This end of the pipe that the program watches. */
  get lifeline(): Stream | undefined {
    return this.child?.stdio[LIFELINE_FD] ?? undefined;
  }

  /** The platform is ready: from now on a crash is something to recover from. */
  stands(): void {
    this.hasStood = true;
    this.failedStarts = 0;
  }

  async start(): Promise<void> {
    const { file, args = [], log, clock } = this.options;
    const { variables, secrets } = await this.options.settings();
    if (this.stopped) return;
    const names = Object.keys(secrets);
    const environment = { ...variables, TENDON_LIFELINE_FD: String(LIFELINE_FD) } as Record<string, string>;
    names.forEach((secret, index) => {
      environment[`${secret}_FILE`] = `/dev/fd/${FIRST_SECRET_FD + index}`;
    });
    const held = this.options.stopsBefore?.lifeline;
    const logOffset = log.sizeBytes();
    const logFd = openSync(log.path, "a", 0o600);
    const startedMs = clock.monotonicMs();
    // A group of its own: Ctrl-C at the terminal reaches the launcher alone, which stops everything in order.
    const child = spawn(process.execPath, [file, ...args], {
      detached: true,
      env: environment,
      stdio: ["ignore", logFd, logFd, "pipe", ...names.map(() => "pipe" as const), ...(held ? [held] : [])],
    });
    closeSync(logFd);
    names.forEach((secret, index) => {
      const pipe = child.stdio[FIRST_SECRET_FD + index] as Writable;
      pipe.on("error", () => {});
      pipe.end(secrets[secret]);
    });
    child.stdio[LIFELINE_FD]?.on("error", () => {});
    this.child = child;
    this.backoff.connected();
    this.ended = new Promise((resolve) => {
      const onEnd = (how: string, code: number | null) => {
        if (this.child !== child) return;
        this.child = undefined;
        resolve();
        this.options.onChange();
        if (!this.stopped)
          this.afterCrash({ how, code, logOffset, aliveMs: clock.monotonicMs() - startedMs });
      };
      child.once("error", (error) => onEnd(`could not be started: ${error.message}`, null));
      child.once("exit", (code, signal) =>
        onEnd(signal === null ? `ended with ${code}` : `was ended by ${signal}`, code),
      );
    });
    this.options.onChange();
  }

  /** Asks the program to stop, and ends it when it has not by then. Resolves when it is gone. */
  async stop(withinMs: number): Promise<void> {
    this.stopped = true;
    const child = this.child;
    if (child === undefined) return;
    child.kill("SIGTERM");
    await within(this.options.clock, withinMs, this.ended, () => new Error("too slow")).catch(() =>
      child.kill("SIGKILL"),
    );
    await this.ended;
  }

  private afterCrash(end: { how: string; code: number | null; logOffset: number; aliveMs: number }): void {
    if (end.aliveMs >= STANDS_AFTER_MS) this.failedStarts = 0;
    this.failedStarts += 1;
    const isHopeless = end.code !== null && HOPELESS_EXIT_CODES.includes(end.code);
    const most = this.hasStood ? MAX_FAILED_STARTS : MAX_FAILED_FIRST_STARTS;
    if (isHopeless || this.failedStarts >= most) {
      const lines = lastLines(this.options.log.path, end.logOffset);
      this.stopped = true;
      this.options.onFailed({ name: this.name, how: end.how, lines });
      return;
    }
    this.options.clock.after(this.backoff.nextDelayMs(), () => {
      if (!this.stopped) void this.start();
    });
  }
}

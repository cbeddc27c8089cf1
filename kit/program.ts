/** How a program runs until it is told to stop, and how it ends. Only a program's main file uses this. */
import { Socket } from "node:net";
import { systemClock } from "./clock.ts";
import { TendonError } from "./errors.ts";
import { armFailpoints } from "./failpoint.ts";
import type { Service } from "./lifecycle.ts";
import type { Logger } from "./log.ts";
import { SettingsError } from "./settings/settings.ts";

/** A failure that its user can mend: one line on stderr, no stack, and this exit code. */
export class StartupError extends Error {
  override readonly name = "StartupError";
  readonly exitCode: number;

  constructor(message: string, exitCode = 1, options?: ErrorOptions) {
    super(message, options);
    this.exitCode = exitCode;
  }
}

export interface ProgramOptions {
  readonly name: string;
  readonly log: Logger;
  /** Descriptor of a pipe whose other end the parent holds: when the parent dies, however it dies, the program stops too. */
  readonly lifelineFd?: number | undefined;
  /** TENDON_FAILPOINTS. */
  readonly failpoints?: string | undefined;
  readonly service: Service;
  /** What a second signal does: `stop`, which runs, is to take less time. Without it the second ends the process. */
  readonly hurry?: () => void;
}

/**
 * Starts the service and resolves when the program has stopped: by SIGINT, SIGTERM, the end of its lifeline, or `stop`.
 * The signal after that, or after the one that hurries the service, ends the process at once.
 */
export async function runProgram(options: ProgramOptions): Promise<void> {
  const { name, log, lifelineFd, service, hurry } = options;
  armFailpoints(options.failpoints, log);
  let requestStop: (why: string) => void = () => {};
  const stopRequested = new Promise<string>((resolve) => {
    requestStop = resolve;
  });
  let signals = 0;
  const onSignal = (signal: NodeJS.Signals) => {
    signals += 1;
    if (signals === 1) requestStop(signal);
    else if (signals === 2 && hurry !== undefined) hurry();
    else process.exit(128 + (signal === "SIGINT" ? 2 : 15));
  };
  process.on("SIGINT", onSignal);
  process.on("SIGTERM", onSignal);
  // A log reader that went away must not end the program.
  process.on("SIGPIPE", () => {});
  process.on("SIGHUP", onSignal);
  if (lifelineFd !== undefined) watchLifeline(lifelineFd, () => requestStop("the parent is gone"));
  process.on("unhandledRejection", (error) => crash(log, error));
  process.on("uncaughtException", (error) => crash(log, error));

  const starting = service.start();
  const why = await Promise.race([starting.then(() => stopRequested), stopRequested]);
  log.info({ why }, `${name} stops`);
  await service.stop();
  await starting.catch(() => {});
  log.info(`${name} has stopped`);
}

/** A bug: whoever dies is replaced by someone who reads the log, so nothing is worth going on for. */
function crash(log: Logger, error: unknown): void {
  log.fatal({ error: error instanceof Error ? error.stack : String(error) }, "a bug ends this program");
  process.exit(EXIT_BUG);
}

function watchLifeline(fd: number, onEnd: () => void): void {
  // Not a file stream: its read would hold a worker thread, and the process could not end before the pipe does.
  const pipe = new Socket({ fd, readable: true, writable: false });
  pipe.unref();
  pipe.on("error", onEnd);
  pipe.on("end", onEnd);
  pipe.resume();
}

/** How long whoever reads a program's output may take nothing of it once the program is over. */
const STALLED_OUTPUT_MS = 5_000;

/**
 * Runs a main function: a failure that its user can mend becomes lines on stderr and an exit code; only a bug shows its
 * stack. What was written by then still reaches its reader, as long as that takes some of it every `stalledOutputMs`.
 */
export async function runMain(
  name: string,
  main: () => Promise<number | undefined>,
  { stalledOutputMs = STALLED_OUTPUT_MS }: { stalledOutputMs?: number } = {},
): Promise<void> {
  try {
    process.exitCode = (await main()) ?? 0;
  } catch (error) {
    const { lines, exitCode } = explain(error);
    for (const line of lines) process.stderr.write(`${name}: ${line}\n`);
    process.exitCode = exitCode;
  }
  const taken = await outputTaken(process.stdout, stalledOutputMs);
  if (!taken) {
    process.stderr.write(
      `${name}: nobody read the rest of the output for ${stalledOutputMs} ms; it is lost\n`,
    );
    process.exitCode ||= 1;
  }
  await outputTaken(process.stderr, Math.min(stalledOutputMs, STALLED_OUTPUT_MS));
  // What is left in the event loop belongs to nobody any more.
  process.exit();
}

/** Resolves with false when the reader took nothing for too long. A reader that went away has taken all it wanted. */
async function outputTaken(stream: NodeJS.WriteStream, stalledMs: number): Promise<boolean> {
  let isGone = false;
  stream.on("error", () => {
    isGone = true;
  });
  let left = untaken(stream);
  let stalledSince = systemClock.monotonicMs();
  while (left > 0 && !isGone && !stream.destroyed) {
    await systemClock.sleep(OUTPUT_POLL_MS);
    const before = left;
    left = untaken(stream);
    if (left < before) stalledSince = systemClock.monotonicMs();
    else if (systemClock.monotonicMs() - stalledSince >= stalledMs) return false;
  }
  return true;
}

/** A write counts in `writableLength` until all of it is taken; the queue of the system's library below shrinks meanwhile. */
function untaken(stream: NodeJS.WriteStream): number {
  const { _handle: handle } = stream as { _handle?: { writeQueueSize?: number } | null };
  return stream.writableLength + (handle?.writeQueueSize ?? 0);
}

const OUTPUT_POLL_MS = 10;
const EXIT_BAD_CONFIG = 2;
const EXIT_BUG = 70;

function explain(error: unknown): { lines: readonly string[]; exitCode: number } {
  if (error instanceof SettingsError) return { lines: error.problems, exitCode: EXIT_BAD_CONFIG };
  if (error instanceof StartupError) return { lines: [error.message], exitCode: error.exitCode };
  if (error instanceof TendonError) return { lines: [error.message], exitCode: 1 };
  return {
    lines: [error instanceof Error ? (error.stack ?? error.message) : String(error)],
    exitCode: EXIT_BUG,
  };
}

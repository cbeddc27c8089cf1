/**
 * A hand that is an MCP server: one process of it, with the server's own tools, and neither a shell nor files.
 *
 *   The process is started when the hand is made; a hand that was parked or found again starts it with its next call.
 *   A process that ends by itself is started again by the next call, which says so.
 *   A call that is told to end has the server told (`notifications/cancelled`). A server that then does not answer may
 *   still be at it, and only its end is known to end the call (X4): it is ended at once, or, where other calls run in
 *   it, with the last of them.
 */
import { join } from "node:path";
import type { Clock } from "../../../kit/clock.ts";
import type { Logger } from "../../../kit/log.ts";
import { errorResult, type ToolResult } from "../../result.ts";
import {
  type DestroyReport,
  FileError,
  type Hand,
  HandError,
  type JsonValue,
  type OwnToolCall,
  type ProcessInfo,
} from "../driver.ts";
import { resultOfAnswer } from "./call-result.ts";
import { type Asked, McpAnswerError, McpServerEnded, McpSession, type Progress } from "./mcp-session.ts";
import type { McpServerConfig } from "./server-config.ts";
import { endLeftovers, processesOf } from "./server-process.ts";

export interface McpHandOptions {
  readonly id: string;
  readonly server: McpServerConfig;
  /** The hand's own directory. */
  readonly dir: string;
  readonly resumed: boolean;
  readonly clock: Clock;
  readonly log: Logger;
  /** The hand takes no more calls. */
  readonly onEnd: () => void;
  /** Removes the directory. */
  readonly remove: () => Promise<void>;
}

const DEFAULT_TIMEOUT_MS = 120_000;
/** For a server that was told to stop to say that it has; then it is ended. */
export const STOP_GRACE_MS = 400;
/** Lines of progress that wait for a reader; what comes meanwhile is left out. */
const MAX_WAITING_LINES = 64;
const ENDED_WITH_CALL = "it had been ended with a call";

export class McpHand implements Hand {
  readonly id: string;
  readonly handle: JsonValue;
  readonly isolation = "none";
  readonly workdir: string;
  readonly outputsDir: string;
  readonly roots: readonly string[] = [];
  readonly resumed: boolean;
  private readonly options: McpHandOptions;
  private session: Promise<McpSession> | undefined;
  /** Resolves when the session before is gone: two would work in one directory. */
  private ended: Promise<unknown> = Promise.resolve();
  /** Calls that run in the session. */
  private running = 0;
  /** Calls that were told to end and did not answer. */
  private readonly unanswered = new Set<Asked>();
  /** What the next call has to say first. */
  private news: string | undefined;
  private isOver = false;

  constructor(options: McpHandOptions) {
    this.options = options;
    this.id = options.id;
    this.handle = { version: 1, handId: options.id };
    this.workdir = options.dir;
    this.outputsDir = join(options.dir, "outputs");
    this.resumed = options.resumed;
  }

  /** The server, started if it does not run. Throws HandError. */
  async start(signal?: AbortSignal): Promise<McpSession> {
    for (let tries = 0; ; tries += 1) {
      if (this.isOver) throw this.over();
      const starting = this.session ?? this.ended.then(() => this.startSession(signal));
      this.session = starting;
      starting.catch(() => this.forget(starting));
      const session = await starting;
      if (session.endReason === undefined) return session;
      if (tries > 0)
        throw new HandError(`the MCP server ends as soon as it is started: ${session.endReason}`);
      await this.endSession(starting, session.endReason);
    }
  }

  async callTool(call: OwnToolCall): Promise<ToolResult> {
    const { name, clock, signal } = call;
    const timeoutMs = call.timeoutMs || DEFAULT_TIMEOUT_MS;
    const stop = new AbortController();
    const end = () => stop.abort();
    signal.addEventListener("abort", end, { once: true });
    if (signal.aborted) end();
    const stopTimer = clock.after(timeoutMs, end);
    this.running += 1;
    let result: ToolResult;
    try {
      result = await this.run(call, stop.signal, `timed out after ${timeoutMs}ms`);
    } catch (error) {
      if (!(error instanceof HandError)) throw error;
      result = errorResult(`${name}: ${error.message}`, "failed");
    } finally {
      this.running -= 1;
      stopTimer();
      signal.removeEventListener("abort", end);
    }
    if (this.running === 0 && this.unanswered.size > 0) await this.endSession(this.session, ENDED_WITH_CALL);
    return result;
  }

  private async run(call: OwnToolCall, stop: AbortSignal, timedOut: string): Promise<ToolResult> {
    const { name, input, signal } = call;
    if (stop.aborted) return errorResult(`${name}: cancelled before it started`, "cancelled");
    // The start is shared by all calls that wait for it: one of them that ends early does not end it.
    const session = await orAborted(this.start(), stop);
    if (session === "aborted") {
      const why = signal.aborted ? "cancelled" : timedOut;
      return errorResult(`${name}: ${why} before it started`, signal.aborted ? "cancelled" : "timed_out");
    }
    const news = this.news;
    this.news = undefined;
    const output = new ProgressOutput(call.onOutput);
    const asked = session.callTool(name, input, (progress) => output.push(progress));
    try {
      const answer = await orAborted(asked.answer, stop);
      if (answer !== "aborted") return withNews(resultOfAnswer(answer), news);
      return withNews(await this.windUp(call, session, asked, timedOut), news);
    } catch (error) {
      if (error instanceof McpAnswerError) return withNews(errorResult(`${name}: ${error.message}`), news);
      if (!(error instanceof McpServerEnded)) throw error;
      const text = `${name}: the MCP server ended during this call (${error.message}); what the call did is not known. The next call starts it again.`;
      return withNews(errorResult(text, "unknown"), news);
    } finally {
      await output.end();
    }
  }

  /** Ends a call that is not to go on; says what is known of its end. */
  private async windUp(
    call: OwnToolCall,
    session: McpSession,
    asked: Asked,
    timedOut: string,
  ): Promise<ToolResult> {
    const { name, signal, clock } = call;
    const isCancelled = signal.aborted;
    const what = isCancelled ? "cancelled" : timedOut;
    const outcome = isCancelled ? "cancelled" : "timed_out";
    session.cancel(asked, what);
    const settled = asked.answer.then(
      () => true,
      () => true,
    );
    const answered = await Promise.race([settled, clock.sleep(STOP_GRACE_MS).then(() => false)]);
    if (answered) return errorResult(`${name}: ${what}; the server has ended the call`, outcome);
    if (this.running > 1) {
      this.unanswered.add(asked);
      void settled.then(() => this.unanswered.delete(asked));
      const text = `${name}: ${what}. The server was told; it may still be at it, and is ended with the last of the other calls that run in it.`;
      const leftProcesses = await processesOf(this.options.server, this.id, clock);
      return { ...errorResult(text, outcome), leftProcesses };
    }
    const { left } = await this.endSession(this.session, ENDED_WITH_CALL);
    const text = `${name}: ${what}. The server was ended with it; the next call starts it again, and what it kept in memory is gone.`;
    return { ...errorResult(text, outcome), ...(left.length === 0 ? {} : { leftProcesses: left }) };
  }

  private async startSession(signal?: AbortSignal): Promise<McpSession> {
    const { server, dir, clock, log, id } = this.options;
    const session = await McpSession.start({ server, handId: id, handDir: dir, clock, log }, signal);
    void session.process.ended.then((why) => {
      log.info({ mcp: server.name, hand: id, why }, "an MCP server has ended");
    });
    if (!this.isOver) return session;
    await session.process.end();
    throw this.over();
  }

  private forget(session: Promise<McpSession>): void {
    if (this.session === session) this.session = undefined;
  }

  /** Ends this session, unless another is there by now, with all that it has started. */
  private async endSession(ending: Promise<McpSession> | undefined, why: string): Promise<DestroyReport> {
    if (ending === undefined || this.session !== ending) return { left: [] };
    this.session = undefined;
    this.unanswered.clear();
    this.news = `[the MCP server was started again (${why}): what it kept in memory is gone]`;
    const report = ending.then(
      (session) => session.process.end(),
      () => ({ left: [] }),
    );
    this.ended = report.catch(() => {});
    return report;
  }

  exec(): Promise<never> {
    return Promise.reject(this.isOver ? this.over() : this.lacks("no shell"));
  }
  openPipe(): Promise<never> {
    return Promise.reject(this.lacks("no processes of calls"));
  }
  stat(path: string): Promise<never> {
    return Promise.reject(this.noFiles(path));
  }
  // biome-ignore lint/correctness/useYield: refuses before the first byte
  async *readFile(path: string): AsyncGenerator<Uint8Array> {
    throw this.noFiles(path);
  }
  writeFile(path: string): Promise<never> {
    return Promise.reject(this.noFiles(path));
  }
  mkdir(path: string): Promise<never> {
    return Promise.reject(this.noFiles(path));
  }
  rename(from: string): Promise<never> {
    return Promise.reject(this.noFiles(from));
  }
  remove(path: string): Promise<never> {
    return Promise.reject(this.noFiles(path));
  }
  // biome-ignore lint/correctness/useYield: refuses before the first entry
  async *walk(path: string): AsyncGenerator<never> {
    throw this.noFiles(path);
  }

  /** The server's processes belong to the hand, not to its calls. */
  async callProcesses(): Promise<ProcessInfo[]> {
    return [];
  }
  async killCall(): Promise<{ left: ProcessInfo[] }> {
    return { left: [] };
  }

  async park(): Promise<DestroyReport> {
    return this.end();
  }

  async destroy(): Promise<DestroyReport> {
    const report = await this.end();
    await this.options.remove();
    return report;
  }

  private async end(): Promise<DestroyReport> {
    this.isOver = true;
    await this.endSession(this.session, "it was parked");
    const report = await endLeftovers(this.options.server, this.id, this.options.clock);
    this.options.onEnd();
    return report;
  }

  private over(): HandError {
    return new HandError("the hand is released");
  }
  private lacks(what: string): HandError {
    return new HandError(
      `the hand is the MCP server "${this.options.server.name}": it has tools of its own, and ${what}`,
    );
  }
  private noFiles(path: string): FileError {
    return new FileError("failed", path, this.lacks("no files").message);
  }
}

/** What a call reports while it runs, as lines of its output. A reader that is slow loses some of them, not the call. */
class ProgressOutput {
  private readonly write: OwnToolCall["onOutput"];
  private waiting = 0;
  private last: Promise<void> = Promise.resolve();

  constructor(write: OwnToolCall["onOutput"]) {
    this.write = write;
  }

  push({ progress, total, message }: Progress): void {
    if (this.waiting >= MAX_WAITING_LINES) return;
    this.waiting += 1;
    const count = total === undefined ? `${progress}` : `${progress}/${total}`;
    const line = message === undefined ? count : `${count} ${message.slice(0, 1_000)}`;
    this.last = this.last.then(async () => {
      await this.write(Buffer.from(`${line}\n`));
      this.waiting -= 1;
    });
  }

  end(): Promise<void> {
    return this.last.catch(() => {});
  }
}

function withNews(result: ToolResult, news: string | undefined): ToolResult {
  return news === undefined
    ? result
    : { ...result, content: [{ type: "text", text: news }, ...result.content] };
}

function orAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T | "aborted"> {
  return new Promise((resolve, reject) => {
    const abort = () => resolve("aborted");
    signal.addEventListener("abort", abort, { once: true });
    if (signal.aborted) abort();
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

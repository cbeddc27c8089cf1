/** A conversation at a terminal, or with lines from a pipe. */
import { createInterface, type Interface } from "node:readline";
import { TendonError } from "../../kit/errors.ts";
import { CALL_WITHIN } from "../command.ts";
import { TENDON } from "../command-name.ts";
import { showOn } from "../commands/session-log.ts";
import type { Api } from "../connect.ts";
import { findDefaultAgent } from "../default-agent.ts";
import { explainFailure } from "../explain.ts";
import type { Output } from "../output.ts";
import { followTurn } from "../turn.ts";
import { userInterrupt, userMessage } from "../user-events.ts";
import { ctrlCAction } from "./ctrl-c.ts";

export interface ChatOptions {
  readonly api: Api;
  /** Goes on with this one; left out: a new one, made with the first message. */
  readonly sessionId?: string | undefined;
  readonly agentId?: string | undefined;
  readonly environmentId?: string | undefined;
  readonly output: Output;
  /** Ends the chat. */
  readonly signal?: AbortSignal;
}

const HELP =
  "Type a message. Ctrl-C interrupts the agent, and twice at the prompt quits. /session tells the session's id, /quit ends.";

/** Resolves with 0, or with 1 when the last turn did not end well. */
export function runChat(options: ChatOptions): Promise<number> {
  return new Chat(options).run();
}

class Chat {
  private readonly options: ChatOptions;
  private readonly lines: Interface;
  private readonly isInteractive: boolean;
  /** An empty line was answered with how to quit, and nothing was typed since. */
  private isAskedAgain = false;
  private readonly quit = new AbortController();
  private sessionId: string | undefined;
  private position = 0n;
  /** Set while the agent works. */
  private turn: { interrupted: boolean } | undefined;
  private lastReason = "end_turn";

  constructor(options: ChatOptions) {
    this.options = options;
    this.sessionId = options.sessionId;
    const { json, isRich } = options.output;
    this.isInteractive = process.stdin.isTTY === true && process.stdout.isTTY === true && !json;
    const output = this.isInteractive ? { output: process.stdout } : {};
    this.lines = createInterface({
      input: process.stdin,
      // Editing a line takes control sequences; without them the terminal edits it.
      terminal: this.isInteractive && isRich,
      prompt: "› ",
      ...output,
    });
  }

  async run(): Promise<number> {
    const onInterrupt = () => this.onInterrupt();
    const onEnd = () => this.end();
    this.lines.on("SIGINT", onInterrupt);
    process.on("SIGINT", onInterrupt);
    this.options.signal?.addEventListener("abort", onEnd, { once: true });
    try {
      if (this.options.signal?.aborted) return 0;
      // The iterator first: it keeps lines that arrive while the rest is prepared.
      const typed = this.lines[Symbol.asyncIterator]();
      await this.prepare();
      this.prompt();
      for (
        let next = await typed.next();
        !next.done && !this.quit.signal.aborted;
        next = await typed.next()
      ) {
        this.isAskedAgain = false;
        await this.take(next.value.trim());
        if (this.quit.signal.aborted) break;
        this.prompt();
      }
      return this.lastReason === "end_turn" ? 0 : 1;
    } finally {
      this.lines.close();
      process.off("SIGINT", onInterrupt);
      this.options.signal?.removeEventListener("abort", onEnd);
    }
  }

  private async prepare(): Promise<void> {
    const { api, output } = this.options;
    if (this.isInteractive) output.write(`${HELP}\n`);
    if (this.sessionId === undefined) return;
    const { session } = await api.sessions.getSession({ sessionId: this.sessionId }, CALL_WITHIN);
    this.position = session!.head;
  }

  private async take(line: string): Promise<void> {
    const { output } = this.options;
    if (line === "") return;
    if (line === "/quit" || line === "/exit") return this.end();
    if (line === "/help") return output.write(`${HELP}\n`);
    if (line === "/session") return output.write(`${this.sessionId ?? "not made yet"}\n`);
    this.turn = { interrupted: false };
    try {
      await this.converse(line);
    } catch (error) {
      const told = error instanceof TendonError ? explainFailure(error, this.options.api.target) : undefined;
      // Somebody who types can try again; a script has failed.
      if (told === undefined || !this.isInteractive) throw error;
      output.note(told);
    } finally {
      this.turn = undefined;
    }
  }

  private async converse(text: string): Promise<void> {
    const { api, output } = this.options;
    const message = userMessage(text);
    if (this.sessionId === undefined) {
      const agentId = this.options.agentId ?? (await findDefaultAgent(api.agents));
      const request = { agentId, environmentId: this.options.environmentId ?? "", initialEvents: [message] };
      const { session } = await api.sessions.createSession(request, CALL_WITHIN);
      this.sessionId = session!.id;
    } else {
      const request = { sessionId: this.sessionId, events: [message] };
      const { receipts } = await api.sessions.emitEvents(request, CALL_WITHIN);
      this.position = receipts[0]!.position;
    }
    const request = {
      sessions: api.sessions,
      sessionId: this.sessionId,
      after: this.position,
      signal: this.quit.signal,
    };
    const end = await followTurn(request, showOn(output, false, "ends"));
    this.position = end.position;
    this.lastReason = end.reason;
    if (end.reason === "requires_action") output.note(ACTION_NEEDED.replace("SESSION", this.sessionId));
  }

  private onInterrupt(): void {
    const { turn, isInteractive, isAskedAgain } = this;
    const action = ctrlCAction({
      isInteractive,
      // While the session is being made there is nothing to interrupt yet.
      turn: turn === undefined ? "none" : turn.interrupted || !this.sessionId ? "interrupted" : "runs",
      typed: this.lines.line ?? "",
      isAskedAgain,
    });
    if (action === "quit") this.end();
    if (action === "interrupt") this.interrupt();
    if (action === "clear_line") {
      this.lines.write(null, { ctrl: true, name: "e" });
      this.lines.write(null, { ctrl: true, name: "u" });
    }
    this.isAskedAgain = action === "ask_again";
    if (action !== "ask_again") return;
    this.options.output.note("\n(Ctrl-C again quits)");
    this.prompt();
  }

  private interrupt(): void {
    this.turn!.interrupted = true;
    this.options.output.note("\n(interrupting; Ctrl-C again quits)");
    const request = { sessionId: this.sessionId!, events: [userInterrupt()] };
    this.options.api.sessions.emitEvents(request, CALL_WITHIN).catch((error: unknown) => {
      if (error instanceof TendonError) this.options.output.note(`could not interrupt: ${error.message}`);
    });
  }

  private end(): void {
    this.quit.abort();
    this.lines.close();
  }

  private prompt(): void {
    if (this.isInteractive) this.lines.prompt();
  }
}

const ACTION_NEEDED = `The agent waits for a client: a confirmation, or the result of a tool that a client answers. See: ${TENDON} session events SESSION --desc --limit 5`;

/** One bash process that takes commands, and what can be said for certain about each of them. See `shell-script.ts`. */
import { randomBytes } from "node:crypto";
import { messageOf } from "../../kit/errors.ts";
import type { Hand, HandPipe, RunningProcess } from "../drivers/driver.ts";
import { callScript, openingScript, parseAnswer, type ShellAnswer, type ShellModes } from "./shell-script.ts";

/** Of an unfinished line; longer ones are noise. */
const MAX_LINE_CHARS = 2_000;
const MAX_COMPLAINTS = 8;
const MAX_REASON_CHARS = 300;
export const NO_BASH = "there is no /bin/bash in this hand";

export type LiveEnd =
  | { readonly kind: "exited"; readonly code: number }
  /**
   * The shell itself ended: `exit`, `exec`, `set -e`, a signal. Without a code the sandbox went with it. `reason` is
   * what was said about it.
   */
  | { readonly kind: "terminated"; readonly code?: number; readonly reason?: string }
  /** The shell no longer executed what it was told: after the command, whose status is lost, or instead of it. */
  | { readonly kind: "deaf"; readonly started: boolean; readonly reason?: string };

export interface LiveCall {
  readonly callId: string;
  readonly traceParent?: string | undefined;
  readonly command: string;
  /** Where its output goes. */
  readonly pipe: string;
}

interface ShellOver {
  readonly code?: number;
  readonly reason?: string;
}

interface Current {
  readonly number: number;
  readonly callId: string;
  isStarted: boolean;
  readonly onStarted: () => void;
  readonly resolve: (end: LiveEnd) => void;
}

export class LiveShell {
  readonly process: RunningProcess;
  /** In words, once the shell has ended and everything that it had said was heard. */
  endedBy: string | undefined;
  /** Hexadecimal: `printf` must not take one for an option. */
  private readonly tokens = {
    token: randomBytes(9).toString("hex"),
    deaf: randomBytes(3).toString("hex"),
  };
  private modes: ShellModes | undefined;
  private readonly opened: Promise<void>;
  private onOpened = () => {};
  private readonly over: Promise<ShellOver>;
  /** How it ended, once it has. */
  private ending: ShellOver | undefined;
  private current: Current | undefined;
  private calls = 0;
  /** The call before had a TRACEPARENT. */
  private wasTraced = false;
  private complaints: string[] = [];
  private isDeaf = false;

  private constructor(process: RunningProcess) {
    this.process = process;
    this.opened = new Promise((resolve) => {
      this.onOpened = resolve;
    });
    const heard = [
      eachLine(process.stdout, (line) => this.heard(line)),
      eachLine(process.stderr, (line) => this.complained(line)),
    ];
    this.over = process.exit
      .then(
        ({ code }) => ({ code }),
        (error) => ({ reason: messageOf(error) }),
      )
      .then(async (end) => {
        await Promise.all(heard);
        return end;
      });
    void this.over.then((end) => {
      const { code, reason } = end;
      this.ending = end;
      this.endedBy = this.isDeaf
        ? (this.complaint() ?? "it no longer executed commands")
        : (reason ?? (code === 127 && !this.modes ? NO_BASH : `the shell exited with code ${code}`));
      this.onOpened();
      this.current?.resolve(this.endOf(this.current, end));
    });
  }

  /** Rejects with `HandError`. A shell that cannot work says so at its first call. */
  static async start(hand: Hand): Promise<LiveShell> {
    const live = new LiveShell(
      await hand.exec({ argv: ["/bin/bash", "--noprofile", "--norc"], stdin: true }),
    );
    live.process.write(openingScript(live.tokens)).catch(() => {}); // `over` tells
    return live;
  }

  /** One at a time. `onStarted` is called before the command's first effect. Never rejects; ends with the shell at the latest. */
  async run(call: LiveCall, onStarted: () => void): Promise<LiveEnd> {
    await this.opened;
    this.complaints = [];
    const ended = new Promise<LiveEnd>((resolve) => {
      const number = ++this.calls;
      this.current = { number, callId: call.callId, isStarted: false, onStarted, resolve };
    });
    const { current } = this;
    // The calls themselves do not wait for `over`: a promise keeps whoever waits for it, and this one is as old as the shell.
    if (current && this.ending) current.resolve(this.endOf(current, this.ending));
    if (this.modes) {
      const { traceParent = this.wasTraced ? "" : undefined } = call;
      this.wasTraced = call.traceParent !== undefined;
      const script = callScript(this.tokens, this.modes, { ...call, traceParent, number: this.calls });
      this.process.write(script).catch(() => {}); // `over` tells
    }
    const end = await ended;
    this.current = undefined;
    return end;
  }

  /** Not the background processes of its calls. */
  async stop(): Promise<void> {
    await this.process.kill();
    await this.over;
  }

  private endOf(current: Current, over: ShellOver): LiveEnd {
    if (!current.isStarted || this.isDeaf) return this.deafEnd(current);
    const reason = over.reason ?? this.complaint();
    return { kind: "terminated", ...over, ...(reason === undefined ? {} : { reason }) };
  }

  private deafEnd({ isStarted }: Current): LiveEnd {
    const reason = this.complaint() ?? (this.isDeaf ? undefined : this.endedBy);
    return { kind: "deaf", started: isStarted, ...(reason === undefined ? {} : { reason }) };
  }

  private heard(line: string): void {
    const answer = parseAnswer(this.tokens, line);
    if (!answer) this.complained(line);
    else if (answer.kind === "ended") this.heardEnd(answer);
    else if (this.current?.callId === answer.callId) {
      this.current.isStarted = true;
      this.current.onStarted();
    }
  }

  private heardEnd({ call, code, modes }: ShellAnswer & { kind: "ended" }): void {
    this.modes = modes;
    if (call === 0) this.onOpened();
    const { current } = this;
    if (!current) return;
    // An end without a beginning, or of another call, is not this command's.
    const isOurs = call === current.number && current.isStarted;
    current.resolve(isOurs ? { kind: "exited", code } : this.deafEnd(current));
  }

  private complained(line: string): void {
    if (line.includes(`\`)${this.tokens.deaf}'`)) {
      this.isDeaf = true;
      this.complaints.pop(); // the syntax error that is announced by this line
    } else if (/^\S*bash: /.test(line)) {
      this.complaints = [...this.complaints, line].slice(-MAX_COMPLAINTS);
    }
  }

  /** What bash last had to say about our own lines. */
  private complaint(): string | undefined {
    const line = this.complaints.at(-1)?.replace(/^\S*bash: (line \d+: )?/, "");
    return line && Buffer.from(line, "latin1").toString().slice(0, MAX_REASON_CHARS);
  }
}

async function eachLine(pipe: HandPipe, take: (line: string) => void): Promise<void> {
  let rest = "";
  for await (const chunk of pipe.chunks) {
    const lines = (rest + Buffer.from(chunk).toString("latin1")).split("\n");
    rest = (lines.pop() ?? "").slice(-MAX_LINE_CHARS);
    for (const line of lines) take(line);
  }
}

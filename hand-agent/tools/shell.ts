/**
 * The one shell of a hand: variables and working directory survive from call to call.
 *
 * 1. Calls queue; one runs at a time.
 * 2. A call's output comes through a pipe of its own (X6), never from the shell's own output, which carries only
 *    exit statuses. What a background process writes later goes to its own call's pipe and is dropped there.
 * 3. A call that is cancelled or runs out of time is killed with everything it started, and the shell with it (X4);
 *    the next call gets a new shell. Background processes of other calls live on.
 * 4. No process is started by the agent for a call: the shell is told what to run.
 */
import { randomBytes } from "node:crypto";
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Hand, HandPipe, ProcessInfo, RunningProcess } from "../drivers/driver.ts";

/** Within X4's three seconds, with room to say so. */
const KILL_WITHIN_MS = 2_800;
const MAX_QUEUED = 64;
/** Inherited by everything a call starts, also by what was forked without an exec. See the process table. */
const MARK_FD = 60;

export interface ShellCall {
  readonly callId: string;
  readonly command: string;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
  /** Starts with a new shell. */
  readonly restart: boolean;
  readonly onOutput: (chunk: Uint8Array) => Promise<void>;
}

export type ShellEnd =
  | { readonly kind: "exited"; readonly code: number }
  /** The shell itself ended: `exit`, `exec`, `set -e`, a signal; `reason` when the sandbox went with it. */
  | { readonly kind: "terminated"; readonly code?: number; readonly reason?: string }
  | { readonly kind: "timed_out" }
  | { readonly kind: "cancelled"; readonly started: boolean };

export interface ShellResult {
  readonly end: ShellEnd;
  /** Processes of the call that are still there: left running, or impossible to kill. */
  readonly left: readonly ProcessInfo[];
}

/** A shell process and the reader of its exit statuses. */
interface Live {
  readonly process: RunningProcess;
  /** Exit statuses carry it, so that nothing else on that channel is taken for one. */
  readonly token: string;
  onStatus: (callId: string, code: number) => void;
  onEnd: (end: ShellEnd) => void;
  ended?: ShellEnd;
}

export class QueueFullError extends Error {}

export class Shell {
  private readonly hand: Hand;
  private readonly clock: Clock;
  private live: Live | undefined;
  private tail: Promise<unknown> = Promise.resolve();
  private queued = 0;

  constructor(hand: Hand, clock: Clock) {
    this.hand = hand;
    this.clock = clock;
  }

  /** Runs the command after those that came before it. Rejects with `QueueFullError` or `HandError`. */
  async run(call: ShellCall): Promise<ShellResult> {
    return this.inTurn(call.signal, async () => {
      if (call.restart) await this.stop();
      return this.runNow(call);
    });
  }

  /** Ends the shell, not the background processes of earlier calls; the next call starts a new one. */
  async restart(signal: AbortSignal): Promise<void> {
    await this.inTurn(signal, async () => {
      await this.stop();
      return { end: { kind: "exited", code: 0 }, left: [] };
    });
  }

  private async inTurn(signal: AbortSignal, run: () => Promise<ShellResult>): Promise<ShellResult> {
    if (this.queued >= MAX_QUEUED)
      throw new QueueFullError(`${MAX_QUEUED} commands are waiting for this shell`);
    this.queued += 1;
    const before = this.tail;
    const turn = (async () => {
      await before;
      this.queued -= 1;
      return signal.aborted ? NOT_STARTED : run();
    })();
    this.tail = turn.catch(() => {});
    return Promise.race([turn, abortedBefore(signal, before)]);
  }

  private async runNow(call: ShellCall): Promise<ShellResult> {
    const live = await this.start();
    const pipe = await this.hand.openPipe(call.callId);
    const cut = new AbortController();
    const output = this.forward(pipe, call, cut.signal);
    const status = new Promise<ShellEnd>((resolve) => {
      live.onStatus = (callId, code) => {
        if (callId === call.callId) resolve({ kind: "exited", code });
      };
    });
    const ended = new Promise<ShellEnd>((resolve) => {
      live.onEnd = resolve;
      if (live.ended) resolve(live.ended);
    });
    const limit = new Limit(this.clock, call);
    live.process.write(commandLine(live.token, call, pipe.path)).catch(() => {}); // `ended` tells
    let end = await Promise.race([status, ended, limit.reached]);
    // A shell that exits right after its last status: the status counts.
    if (end.kind === "terminated") end = await Promise.race([status, end]);
    limit.stop();
    if (end.kind !== "exited") this.live = undefined;
    const isCut = end.kind === "timed_out" || end.kind === "cancelled";
    const killed = isCut
      ? await this.hand.killCall(call.callId, { withinMs: KILL_WITHIN_MS, also: live.process })
      : undefined;
    if (isCut) cut.abort();
    const { held } = pipe.finish();
    await output;
    return { end, left: killed ? killed.left : held ? await this.hand.callProcesses(call.callId) : [] };
  }

  /** After a cut nobody waits for a slow reader any more. */
  private async forward(pipe: HandPipe, call: ShellCall, cut: AbortSignal): Promise<void> {
    for await (const chunk of pipe.chunks) await settledOrCut(call.onOutput(chunk), cut);
  }

  private async start(): Promise<Live> {
    if (this.live) return this.live;
    const process = await this.hand.exec({ argv: ["/bin/bash", "--noprofile", "--norc"], stdin: true });
    process.stderr.abandon();
    const live: Live = {
      process,
      token: randomBytes(9).toString("base64url"),
      onStatus: () => {},
      onEnd: () => {},
    };
    void listen(live);
    void process.exit
      .then(
        ({ code }): ShellEnd => ({ kind: "terminated", code }),
        (error): ShellEnd => ({ kind: "terminated", reason: messageOf(error) }),
      )
      .then((end) => {
        if (this.live === live) this.live = undefined;
        live.ended = end;
        live.onEnd(end);
      });
    await process.write("exec 3>&1 1>/dev/null 2>/dev/null\n");
    this.live = live;
    return live;
  }

  private async stop(): Promise<void> {
    const { live } = this;
    this.live = undefined;
    if (!live) return;
    await live.process.kill();
    await live.process.exit.catch(() => {});
  }
}

const NOT_STARTED: ShellResult = { end: { kind: "cancelled", started: false }, left: [] };

/** Waits for `promise`, whatever becomes of it, but not beyond the cut. Leaves no listener behind. */
function settledOrCut(promise: Promise<void>, cut: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      cut.removeEventListener("abort", done);
      resolve();
    };
    if (cut.aborted) return resolve();
    cut.addEventListener("abort", done, { once: true });
    promise.then(done, done);
  });
}

/** Resolves as cancelled when that happens while others are still before this call. */
async function abortedBefore(signal: AbortSignal, before: Promise<unknown>): Promise<ShellResult> {
  let onAbort = () => {};
  const aborted = new Promise<true>((resolve) => {
    onAbort = () => resolve(true);
    signal.addEventListener("abort", onAbort, { once: true });
  });
  const isAborted = await Promise.race([aborted, before.then(() => false)]);
  signal.removeEventListener("abort", onAbort);
  return isAborted ? NOT_STARTED : new Promise(() => {});
}

/** What ends a command from outside: its time, or its caller. */
class Limit {
  readonly reached: Promise<ShellEnd>;
  stop: () => void = () => {};

  constructor(clock: Clock, { timeoutMs, signal }: ShellCall) {
    this.reached = new Promise((resolve) => {
      const onAbort = () => resolve({ kind: "cancelled", started: true });
      const stopTimer = clock.after(timeoutMs, () => resolve({ kind: "timed_out" }));
      this.stop = () => {
        stopTimer();
        signal.removeEventListener("abort", onAbort);
      };
      signal.addEventListener("abort", onAbort, { once: true });
      if (signal.aborted) onAbort();
    });
  }
}

/**
 * Not a loop inside the shell, which `break` would leave, nor a function, in which `declare` would be local. The
 * redirections last for the command; after it the shell has its own descriptors again, whatever the command did.
 */
function commandLine(token: string, { callId, command }: ShellCall, pipe: string): string {
  const redirect = `</dev/null >${quote(pipe)} 2>&1 ${MARK_FD}>&1 3>&-`;
  return [
    `\\export TENDON_CALL_ID=${quote(callId)}`,
    `\\eval ${quote(command)} ${redirect}`,
    `\\printf '%s %s %s\\n' ${token} ${quote(callId)} "$?" >&3\n`,
  ].join("\n");
}

function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

async function listen(live: Live): Promise<void> {
  let rest = "";
  for await (const chunk of live.process.stdout.chunks) {
    const lines = (rest + Buffer.from(chunk).toString("latin1")).split("\n");
    rest = (lines.pop() ?? "").slice(-1_000);
    for (const line of lines) {
      const [token, callId = "", code] = line.split(" ");
      if (token === live.token) live.onStatus(callId, Number(code));
    }
  }
}

/**
 * The one shell of a hand: variables and working directory survive from call to call.
 *
 * 1. Calls queue; one runs at a time.
 * 2. A call's output comes through a pipe of its own (X6), never from the shell's own output, which carries only
 *    answers. What a background process writes later goes to its own call's pipe and is dropped there.
 * 3. A call that is cancelled or runs out of time is killed with everything it started, and the shell with it (X4);
 *    the next call gets a new shell. Background processes of other calls live on.
 * 4. No process is started by the agent for a call: the shell is told what to run.
 * 5. A command counts as run only if the shell acknowledged its beginning, and as ended only if it answered its end.
 *    A shell that does neither any more is replaced, and the result says which of the two it was (X4).
 */
import { type Clock, within } from "../../kit/clock.ts";
import type { Hand, HandPipe, ProcessInfo } from "../drivers/driver.ts";
import { type LiveEnd, LiveShell } from "./live-shell.ts";
import { StallWatch } from "./stall-watch.ts";

/** Within X4's three seconds, with room to say so. */
const KILL_WITHIN_MS = 2_800;
const MAX_QUEUED = 64;
/** A shell at rest acknowledges within a millisecond; this is for machines under heavy load. */
const START_WITHIN_MS = 5_000;
/** A shell reads its input byte by byte: measured a million a second, slower under load. */
const READ_BYTES_PER_MS = 100;

export interface ShellCall {
  readonly callId: string;
  /** Stands in the command's environment as TRACEPARENT. */
  readonly traceParent?: string | undefined;
  readonly command: string;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
  /** Starts with a new shell. */
  readonly restart: boolean;
  readonly onOutput: (chunk: Uint8Array) => Promise<void>;
}

export type ShellEnd =
  | LiveEnd
  | { readonly kind: "timed_out" }
  /** It showed no progress for the hand's bound. */
  | { readonly kind: "stalled"; readonly afterMs: number }
  | { readonly kind: "cancelled"; readonly started: boolean };

export interface ShellResult {
  readonly end: ShellEnd;
  /** Processes of the call that are still there: left running, or impossible to kill. */
  readonly left: readonly ProcessInfo[];
  /** Why the shell of the calls before was gone, so that this one ran in a new shell. */
  readonly lostBefore?: string;
}

export class QueueFullError extends Error {}

export class Shell {
  private readonly hand: Hand;
  private readonly clock: Clock;
  private readonly stallMs: number;
  private live: LiveShell | undefined;
  private tail: Promise<unknown> = Promise.resolve();
  private queued = 0;

  constructor(hand: Hand, clock: Clock, stallMs: number) {
    this.hand = hand;
    this.clock = clock;
    this.stallMs = stallMs;
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
    const lostBefore = this.live?.endedBy;
    const live = await this.start();
    const pipe = await this.hand.openPipe(call.callId);
    const cut = new AbortController();
    const stall = this.watchForStall(call);
    const output = this.forward(pipe, call, cut.signal, stall);
    const limit = new Limit(this.clock, call);
    const notStarted = new Promise<"not started">((resolve) => {
      limit.stopStart = this.clock.after(startTimeoutMs(call), () => resolve("not started"));
    });
    const ended = live.run({ ...call, pipe: pipe.path }, () => limit.stopStart());
    const stalled = stall?.reached.then((): ShellEnd => ({ kind: "stalled", afterMs: this.stallMs }));
    const first = await Promise.race([ended, limit.reached, notStarted, ...(stalled ? [stalled] : [])]);
    limit.stop();
    stall?.stop();
    const isCut = first === "not started" || CUTS.has(first.kind);
    if (first === "not started" || first.kind !== "exited") this.live = undefined;
    const killed = isCut
      ? await this.hand.killCall(call.callId, { withinMs: KILL_WITHIN_MS, also: live.process })
      : undefined;
    if (isCut) cut.abort();
    else if (first.kind === "deaf") await live.stop();
    // Only now nothing can have been said any more: it may have begun in the last moment.
    const end = first === "not started" ? await this.endOfSilent(ended) : first;
    const { held } = await pipe.finish();
    await output;
    const left = killed ? killed.left : held ? await this.hand.callProcesses(call.callId) : [];
    return { end, left, ...(lostBefore === undefined ? {} : { lostBefore }) };
  }

  /** Of a shell that was killed. One that cannot be killed may still run it: never "not started" without knowing. */
  private endOfSilent(ended: Promise<LiveEnd>): Promise<LiveEnd> {
    const unknown: LiveEnd = { kind: "deaf", started: true, reason: "the shell could not be killed" };
    return within(this.clock, KILL_WITHIN_MS, ended, () => new Error("silent")).catch(() => unknown);
  }

  /** A call whose time limit comes first needs none. */
  private watchForStall({ callId, timeoutMs }: ShellCall): StallWatch | undefined {
    const { hand, clock, stallMs } = this;
    if (timeoutMs <= stallMs) return undefined;
    return new StallWatch({ clock, stallMs, cpuMs: async () => hand.callCpuMs?.(callId) });
  }

  /** After a cut nobody waits for a slow reader any more. */
  private async forward(
    pipe: HandPipe,
    call: ShellCall,
    cut: AbortSignal,
    stall: StallWatch | undefined,
  ): Promise<void> {
    for await (const chunk of pipe.chunks) {
      const taken = call.onOutput(chunk);
      await settledOrCut(stall?.during(taken) ?? taken, cut);
    }
  }

  private async start(): Promise<LiveShell> {
    if (this.live?.endedBy === undefined && this.live) return this.live;
    this.live = undefined;
    this.live = await LiveShell.start(this.hand);
    return this.live;
  }

  private async stop(): Promise<void> {
    const { live } = this;
    this.live = undefined;
    await live?.stop();
  }
}

/** Ends that come from outside: the command and its processes are killed. */
const CUTS = new Set<ShellEnd["kind"]>(["timed_out", "stalled", "cancelled"]);
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
  stopStart: () => void = () => {};

  constructor(clock: Clock, { timeoutMs, signal }: ShellCall) {
    this.reached = new Promise((resolve) => {
      const onAbort = () => resolve({ kind: "cancelled", started: true });
      const stopTimer = clock.after(timeoutMs, () => resolve({ kind: "timed_out" }));
      this.stop = () => {
        stopTimer();
        this.stopStart();
        signal.removeEventListener("abort", onAbort);
      };
      signal.addEventListener("abort", onAbort, { once: true });
      if (signal.aborted) onAbort();
    });
  }
}

/** How long a shell may take to acknowledge this call. */
function startTimeoutMs({ command }: ShellCall): number {
  return START_WITHIN_MS + command.length / READ_BYTES_PER_MS;
}

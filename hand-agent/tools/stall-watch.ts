/**
 * Tells a call that waits for nothing from one that works: no output came and its processes used no CPU time for a bound
 * of its own, apart from the call's time limit (R2). A compiler that says nothing works; a program that waits for an answer
 * which never comes does not.
 *
 * W1 Output is progress, and so is output that waits for a slow reader.
 * W2 Processes are looked at now and then, at most every 15 s, and not in the first eighth of the bound: short calls pay nothing.
 * W3 Where nobody knows the CPU time, nothing is taken for stalled.
 * W4 A machine that was asleep or overloaded judges nobody by the time that it missed.
 */
import type { Clock } from "../../kit/clock.ts";

export interface StallWatchOptions {
  readonly clock: Clock;
  readonly stallMs: number;
  /** CPU time of the call's processes so far; only its growth counts. */
  readonly cpuMs: () => Promise<number | undefined>;
}

/** Of one processor; what idles does not reach it, what works by fits and starts does. */
const WORKING_SHARE = 0.001;
/** Two ticks of the kernel's clock: less may be the look itself. */
const WORKING_MS = 20;
const LOOKS_IN_BOUND = 8;
const MAX_LOOK_EVERY_MS = 15_000;

export class StallWatch {
  /** Resolves when the call has shown no progress for the bound, at most a quarter of it later. */
  readonly reached: Promise<void>;
  private readonly options: StallWatchOptions;
  private resolveReached = () => {};
  private readonly stopLooking: () => void;
  private progressAtMs: number;
  private held = 0;
  private isLooking = false;
  private lookedAtMs: number;
  private readonly everyMs: number;
  /** Since it nothing was done that is worth the name. */
  private sample: { readonly cpuMs: number; readonly atMs: number } | undefined;

  constructor(options: StallWatchOptions) {
    this.options = options;
    this.reached = new Promise((resolve) => {
      this.resolveReached = resolve;
    });
    this.progressAtMs = options.clock.monotonicMs();
    this.lookedAtMs = this.progressAtMs;
    this.everyMs = Math.min(MAX_LOOK_EVERY_MS, options.stallMs / LOOKS_IN_BOUND);
    this.stopLooking = options.clock.every(this.everyMs, () => void this.look());
  }

  /** Output is being taken; while it waits for its reader the call cannot go on. */
  async during(taken: Promise<void>): Promise<void> {
    this.held += 1;
    try {
      await taken;
    } finally {
      this.held -= 1;
      this.progressed();
    }
  }

  stop(): void {
    this.stopLooking();
  }

  private progressed(sample?: { cpuMs: number; atMs: number }): void {
    this.progressAtMs = this.options.clock.monotonicMs();
    this.sample = sample;
  }

  private async look(): Promise<void> {
    if (this.isLooking) return;
    this.isLooking = true;
    try {
      const atMs = this.options.clock.monotonicMs();
      const isLate = atMs - this.lookedAtMs > 3 * this.everyMs;
      this.lookedAtMs = atMs;
      if (this.held > 0 || isLate) this.progressed();
      else await this.lookAtProcesses();
    } finally {
      this.isLooking = false;
    }
  }

  private async lookAtProcesses(): Promise<void> {
    const { clock, cpuMs, stallMs } = this.options;
    const progressAtMs = this.progressAtMs;
    const used = await cpuMs().catch(() => undefined);
    if (this.progressAtMs !== progressAtMs || this.held > 0) return; // output came meanwhile
    if (used === undefined) return this.progressed();
    const now = { cpuMs: used, atMs: clock.monotonicMs() };
    this.sample ??= now;
    // Less than before: a process has ended and took its time along. That is something that happened, too.
    const grown = Math.abs(used - this.sample.cpuMs);
    if (grown >= Math.max(WORKING_MS, (now.atMs - this.sample.atMs) * WORKING_SHARE)) this.progressed(now);
    else if (now.atMs - this.progressAtMs >= stallMs) {
      this.stop();
      this.resolveReached();
    }
  }
}

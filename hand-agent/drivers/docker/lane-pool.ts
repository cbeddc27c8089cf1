/**
 * The lanes of one container. A lane takes 50–80 ms to open, so some are opened ahead: as soon as one is taken the next is
 * on its way. Lanes that ran only operations of ours come back; those that ran a program of the hand do not.
 */
import { HandError } from "../driver.ts";
import type { Lane } from "./lane.ts";

/** Opened ahead. A bash call needs one for its output, its shell had one for good. */
const SPARE = 2;
/** The most that wait unused; calls side by side may have opened more. */
const MAX_IDLE = 6;
/** In use at a time: calls side by side, each with a program or two. Beyond it calls wait for each other. */
const MAX_LANES = 64;

export class LanePool {
  private readonly open: () => Promise<Lane>;
  private readonly kill: (lane: Lane) => void;
  private readonly idle: Lane[] = [];
  private readonly all = new Set<Lane>();
  private readonly waiting: { resolve(lane: Lane): void; reject(error: unknown): void }[] = [];
  private opening = 0;
  private isClosed = false;

  /** `kill` ends a lane inside the container, with the operation that it is in the middle of. */
  constructor(options: { open: () => Promise<Lane>; kill: (lane: Lane) => void }) {
    this.open = options.open;
    this.kill = options.kill;
  }

  /** Opens ahead what the first call will need. */
  warm(): void {
    this.fill();
  }

  /** A lane of one's own. Rejects with HandError. */
  take(): Promise<Lane> {
    if (this.isClosed) return Promise.reject(new HandError("the container has ended"));
    const lane = this.idle.pop();
    if (lane !== undefined) {
      this.fill();
      return Promise.resolve(lane);
    }
    const taken = new Promise<Lane>((resolve, reject) => this.waiting.push({ resolve, reject }));
    this.fill();
    return taken;
  }

  /** It is clean: nothing of what ran on it runs any more, and all that it said was heard. */
  giveBack(lane: Lane): void {
    lane.leave();
    if (!lane.isOpen || this.isClosed) {
      lane.close();
      return;
    }
    const next = this.waiting.shift();
    if (next !== undefined) next.resolve(lane);
    else if (this.idle.length < MAX_IDLE) this.idle.push(lane);
    else lane.close();
  }

  /** It is in the middle of an operation of ours that nobody wants any more. */
  drop(lane: Lane): void {
    if (lane.isOpen && !this.isClosed) this.kill(lane);
    lane.close();
  }

  close(): void {
    this.isClosed = true;
    for (const lane of [...this.all]) lane.close();
    for (const { reject } of this.waiting.splice(0)) reject(new HandError("the container has ended"));
  }

  private fill(): void {
    const wanted = this.waiting.length + Math.max(0, SPARE - this.idle.length) - this.opening;
    for (let i = 0; i < wanted && this.all.size + this.opening < MAX_LANES && !this.isClosed; i++)
      void this.openOne();
  }

  private async openOne(): Promise<void> {
    this.opening += 1;
    try {
      const lane = await this.open();
      this.all.add(lane);
      void lane.ended.then(() => this.forget(lane));
      if (this.isClosed) lane.close();
      else this.giveBack(lane);
    } catch (error) {
      // Whoever waits hears of it; one that was only opened ahead is tried again when somebody needs it.
      this.waiting.shift()?.reject(error);
    } finally {
      this.opening -= 1;
    }
  }

  private forget(lane: Lane): void {
    this.all.delete(lane);
    const at = this.idle.indexOf(lane);
    if (at >= 0) this.idle.splice(at, 1);
    if (this.waiting.length > 0) this.fill();
  }
}

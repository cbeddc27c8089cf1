/**
 * Ends what runs in hands whose server has been out of reach for too long (H5): their sessions are told by then that they
 * are lost. Files stay until the server says what is to become of them.
 */
import type { Clock } from "../kit/clock.ts";
import type { Logger } from "../kit/log.ts";
import { HandState } from "../proto/gen/tendon/v1/hand_pb.js";
import type { Executions } from "./executions.ts";
import type { Hands } from "./hands.ts";

const KEEP_OFFLINE_MS = 24 * 3_600_000;
const MAX_LOOK_EVERY_MS = 60_000;

export interface OfflineWatchOptions {
  readonly hands: Pick<Hands, "statuses" | "park">;
  readonly executions: Pick<Executions, "stopAll">;
  readonly clock: Clock;
  readonly log: Logger;
  /** Default: a day. */
  readonly keepOfflineMs?: number | undefined;
}

export class OfflineWatch {
  private readonly options: OfflineWatchOptions;
  private readonly keepMs: number;
  private readonly stopTimer: () => void;
  private offlineSinceMs: number | undefined;
  private looking: Promise<void> | undefined;

  constructor(options: OfflineWatchOptions) {
    this.options = options;
    this.keepMs = options.keepOfflineMs ?? KEEP_OFFLINE_MS;
    this.offlineSinceMs = options.clock.monotonicMs();
    const everyMs = Math.min(this.keepMs / 2, MAX_LOOK_EVERY_MS);
    this.stopTimer = options.clock.every(everyMs, () => this.look());
  }

  connected(): void {
    this.offlineSinceMs = undefined;
  }

  disconnected(): void {
    this.offlineSinceMs ??= this.options.clock.monotonicMs();
  }

  async stop(): Promise<void> {
    this.stopTimer();
    await this.looking;
  }

  private get isOver(): boolean {
    const { offlineSinceMs } = this;
    return offlineSinceMs !== undefined && this.options.clock.monotonicMs() - offlineSinceMs >= this.keepMs;
  }

  private look(): void {
    if (!this.isOver) return;
    this.looking ??= this.parkAll().finally(() => {
      this.looking = undefined;
    });
  }

  private async parkAll(): Promise<void> {
    const { hands, executions, log } = this.options;
    for (const { handId, state } of hands.statuses()) {
      if (state !== HandState.READY || !this.isOver) continue;
      log.warn({ handId }, "the server has been out of reach for too long: what runs in the hand is ended");
      try {
        await executions.stopAll("the server was out of reach for too long", handId);
        await hands.park(handId);
      } catch (error) {
        log.warn({ err: error, handId }, "a hand could not be parked; tried again");
      }
    }
  }
}

/**
 * Tells an MCP server that takes its time from one that hangs: while a call is silent, another request is sent beside it, and
 * whatever is answered to that is a sign of life. Both bounds together are below 45 s.
 */
import type { Clock } from "../../kit/clock.ts";

const SILENT_FOR_MS = 15_000;
export const PROBE_WITHIN_MS = 15_000;

export class Liveness {
  private readonly clock: Clock;
  private readonly probe: () => Promise<unknown>;
  private readonly onDead: () => void;
  private stopWaiting = () => {};
  private ended = false;

  /** `probe` resolves when something is answered, and rejects by itself when nothing is. */
  constructor(clock: Clock, probe: () => Promise<unknown>, onDead: () => void) {
    this.clock = clock;
    this.probe = probe;
    this.onDead = onDead;
    this.heard();
  }

  /** Something has come. */
  heard(): void {
    this.stopWaiting();
    if (!this.ended) this.stopWaiting = this.clock.after(SILENT_FOR_MS, () => this.ask());
  }

  end(): void {
    this.ended = true;
    this.stopWaiting();
  }

  private ask(): void {
    this.probe().then(
      () => this.heard(),
      () => {
        if (!this.ended) this.onDead();
      },
    );
  }
}

/** Work that is done again and again. Rounds never overlap, and one that fails is followed by the next. */
import type { Clock } from "./clock.ts";
import { messageOf } from "./errors.ts";
import type { Service } from "./lifecycle.ts";
import type { Logger } from "./log.ts";

export interface RoundsOptions {
  readonly name: string;
  readonly everyMs: number;
  readonly round: () => Promise<unknown>;
  /** Written to the log when a round rejects. */
  readonly failed: string;
  readonly clock: Clock;
  readonly log: Logger;
}

export class Rounds implements Service {
  readonly name: string;
  private readonly options: RoundsOptions;
  private stopCalling: (() => void) | undefined;
  private running: Promise<void> | undefined;

  constructor(options: RoundsOptions) {
    this.name = options.name;
    this.options = options;
  }

  /** The first round comes after `everyMs`. */
  async start(): Promise<void> {
    this.stopCalling = this.options.clock.every(this.options.everyMs, () => {
      this.running ??= this.run().finally(() => {
        this.running = undefined;
      });
    });
  }

  /** Waits for the round that runs. */
  async stop(): Promise<void> {
    this.stopCalling?.();
    await this.running;
  }

  private async run(): Promise<void> {
    const { round, log, failed } = this.options;
    try {
      await round();
    } catch (error) {
      log.warn({ error: messageOf(error) }, failed);
    }
  }
}

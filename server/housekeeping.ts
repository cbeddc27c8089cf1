/** Forgets what nobody can need any more. Any replica does it; doing it twice does no harm. */
import type { Clock } from "../kit/clock.ts";
import { messageOf } from "../kit/errors.ts";
import type { Service } from "../kit/lifecycle.ts";
import type { Logger } from "../kit/log.ts";
import type { RequestIdStore } from "./store/request-ids.ts";

export interface HousekeepingDeps {
  readonly requestIds: RequestIdStore;
  readonly clock: Clock;
  readonly log: Logger;
}

const EVERY_MS = 10 * 60_000;

/** A request may be repeated this long; whoever repeats it later makes something new. */
const REQUEST_IDS_KEPT_MS = 7 * 86_400_000;

export class Housekeeping implements Service {
  readonly name = "housekeeping";
  private readonly deps: HousekeepingDeps;
  private stopCalling: (() => void) | undefined;
  private running: Promise<void> | undefined;

  constructor(deps: HousekeepingDeps) {
    this.deps = deps;
  }

  async start(): Promise<void> {
    this.stopCalling = this.deps.clock.every(EVERY_MS, () => {
      this.running ??= this.run().finally(() => {
        this.running = undefined;
      });
    });
  }

  async stop(): Promise<void> {
    this.stopCalling?.();
    await this.running;
  }

  private async run(): Promise<void> {
    try {
      await this.deps.requestIds.prune(REQUEST_IDS_KEPT_MS);
    } catch (error) {
      this.deps.log.warn({ error: messageOf(error) }, "old request ids could not be forgotten");
    }
  }
}

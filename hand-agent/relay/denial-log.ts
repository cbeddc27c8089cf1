/** What a relay refused: counted in full, logged in part, so that a program that tries for ever does not fill the log. */
import type { Clock } from "../../kit/clock.ts";
import type { Logger } from "../../kit/log.ts";
import { hostText, type Target } from "../../kit/network/host-name.ts";
import type { RelayRefusal } from "./refusal.ts";

const LINES_PER_PERIOD = 20;
const PERIOD_MS = 60_000;

export class DenialLog {
  private readonly options: { handId: string; clock: Clock; log: Logger };
  private readonly reasons = new Map<string, number>();
  private periodStartMs = Number.NEGATIVE_INFINITY;
  private lines = 0;
  private unlogged = 0;

  constructor(options: { handId: string; clock: Clock; log: Logger }) {
    this.options = options;
  }

  /** Host, port and reason only: paths and what is in them are the program's own. */
  note({ reason }: RelayRefusal, target: Target | undefined): void {
    this.reasons.set(reason, (this.reasons.get(reason) ?? 0) + 1);
    const { handId, clock, log } = this.options;
    if (clock.monotonicMs() - this.periodStartMs >= PERIOD_MS) {
      if (this.unlogged > 0)
        log.info({ hand: handId, count: this.unlogged }, "more was refused by the relay");
      this.periodStartMs = clock.monotonicMs();
      this.lines = 0;
      this.unlogged = 0;
    }
    if (this.lines >= LINES_PER_PERIOD) {
      this.unlogged += 1;
      return;
    }
    this.lines += 1;
    const where = target === undefined ? {} : { host: hostText(target.host), port: target.port };
    log.info({ hand: handId, reason, ...where }, "refused by the relay");
  }

  counts(): Readonly<Record<string, number>> {
    return Object.fromEntries(this.reasons);
  }
}

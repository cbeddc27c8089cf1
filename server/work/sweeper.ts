/** Looks for what no worker says: leases that ran out, calls that nobody answers, items that are long over. */
import { messageOf } from "../../kit/errors.ts";
import type { Service } from "../../kit/lifecycle.ts";
import { LOST, overdueEnding } from "./rules.ts";
import type { WorkDeps } from "./service.ts";
import type { WaitingPolls } from "./waiting-polls.ts";

const LOOK_EVERY_MS = 1_000;
const CLEAN_EVERY_MS = 60_000;
const AT_ONCE = 100;
const PRUNE_AT_ONCE = 1_000;
const OFFERED_FOR_H = 24;
const HOUR_MS = 3_600_000;
const STOPPED_FOR_MS = 7 * 24 * HOUR_MS;
const POLLED_FOR_MS = 60_000;

export class WorkSweeper implements Service {
  readonly name = "work sweeper";
  private readonly deps: WorkDeps;
  private readonly polls: WaitingPolls;
  private readonly stops: (() => void)[] = [];
  private readonly running = new Set<Promise<void>>();
  private startedMs = 0;

  constructor(deps: WorkDeps, polls: WaitingPolls) {
    this.deps = deps;
    this.polls = polls;
  }

  async start(): Promise<void> {
    this.startedMs = this.deps.clock.monotonicMs();
    this.stops.push(
      this.alone(LOOK_EVERY_MS, () => this.lapse()),
      this.alone(CLEAN_EVERY_MS, () => this.clean()),
    );
  }

  async stop(): Promise<void> {
    this.polls.end();
    for (const stop of this.stops.splice(0)) stop();
    await Promise.all(this.running);
  }

  private async lapse(): Promise<void> {
    const { work, sessionLog, clock, leaseTtlMs } = this.deps;
    const upForMs = clock.monotonicMs() - this.startedMs;
    for (const workId of await work.lapsed({ upForMs, graceMs: leaseTtlMs, limit: AT_ONCE })) {
      const lapsed = await work.lapse(workId, LOST);
      if (lapsed?.advance !== undefined) sessionLog.announce(lapsed.advance);
      if (lapsed?.isQueued) this.polls.wake(lapsed.work.environmentId);
    }
  }

  private async clean(): Promise<void> {
    const { work, sessionLog } = this.deps;
    const ending = overdueEnding(OFFERED_FOR_H);
    for (const { sessionId, callId } of await work.overdue(OFFERED_FOR_H * HOUR_MS, AT_ONCE)) {
      const ended = await work.endCall({ sessionId, callId, lease: undefined, ending });
      if (ended?.kind === "stored") sessionLog.announce(ended.advance);
    }
    await work.prune({ stoppedForMs: STOPPED_FOR_MS, polledForMs: POLLED_FOR_MS, limit: PRUNE_AT_ONCE });
  }

  /** Rounds of one kind never overlap, and one that fails is followed by the next. */
  private alone(everyMs: number, round: () => Promise<void>): () => void {
    let isRunning = false;
    return this.deps.clock.every(everyMs, () => {
      if (isRunning) return;
      isRunning = true;
      const run = round()
        .catch((error: unknown) =>
          this.deps.log.warn(
            { error: messageOf(error) },
            "the work queue could not be looked after; tried again",
          ),
        )
        .finally(() => {
          isRunning = false;
          this.running.delete(run);
        });
      this.running.add(run);
    });
  }
}

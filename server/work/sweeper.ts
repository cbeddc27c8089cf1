/** Looks for what no worker says: leases that ran out, calls that nobody answers, items that are long over. */
import type { Service } from "../../kit/lifecycle.ts";
import { Rounds } from "../../kit/rounds.ts";
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
  private readonly rounds: readonly Rounds[];
  private startedMs = 0;

  constructor(deps: WorkDeps, polls: WaitingPolls) {
    this.deps = deps;
    this.polls = polls;
    const { clock, log } = deps;
    const failed = "the work queue could not be looked after; tried again";
    this.rounds = [
      new Rounds({
        name: "work leases",
        everyMs: LOOK_EVERY_MS,
        round: () => this.lapse(),
        failed,
        clock,
        log,
      }),
      new Rounds({
        name: "work over",
        everyMs: CLEAN_EVERY_MS,
        round: () => this.clean(),
        failed,
        clock,
        log,
      }),
    ];
  }

  async start(): Promise<void> {
    this.startedMs = this.deps.clock.monotonicMs();
    await Promise.all(this.rounds.map((rounds) => rounds.start()));
  }

  async stop(): Promise<void> {
    this.polls.end();
    await Promise.all(this.rounds.map((rounds) => rounds.stop()));
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
}

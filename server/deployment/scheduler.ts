/** Starts what is due. Every replica looks; that a time has one run is for the database to say. */
import type { Clock } from "../../kit/clock.ts";
import { isTendonError, messageOf } from "../../kit/errors.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import { Rounds } from "../../kit/rounds.ts";
import type { DeploymentRunStore } from "../store/deployment-runs.ts";
import type { DeploymentRecord, DeploymentStore, PlannedRun } from "../store/deployments.ts";
import { dueRun } from "./planning.ts";
import type { Runs } from "./runs.ts";

export interface SchedulerDeps {
  readonly deployments: Pick<DeploymentStore, "due" | "eraseTokens">;
  readonly deploymentRuns: Pick<DeploymentRunStore, "prune">;
  readonly runs: Pick<Runs, "scheduled">;
  readonly clock: Clock;
  readonly log: Logger;
}

const LOOK_EVERY_MS = 1_000;
const PRUNE_EVERY_MS = 10 * 60_000;
/** That are read: each may have a megabyte. */
const AT_ONCE = 20;
const MAX_BATCHES = 100;
/** That are made side by side. */
const BESIDE = 4;
const PRUNE_AT_ONCE = 5_000;
const ERASE_AT_ONCE = 500;
/** A bug that meets the same run so often is told of. */
const MAX_TRIES = 3;

export class Scheduler implements Service {
  readonly name = "deployment scheduler";
  private readonly deps: SchedulerDeps;
  private readonly rounds: readonly Rounds[];
  /** Of runs that a bug met, by deployment; only of what was due in the last round. */
  private tries = new Map<string, number>();
  private isStopping = false;

  constructor(deps: SchedulerDeps) {
    this.deps = deps;
    const { clock, log, deployments, deploymentRuns } = deps;
    this.rounds = [
      new Rounds({
        name: "deployments due",
        everyMs: LOOK_EVERY_MS,
        round: () => this.round(),
        failed: "deployments that are due could not be looked for; tried again",
        clock,
        log,
      }),
      new Rounds({
        name: "old deployment runs",
        everyMs: PRUNE_EVERY_MS,
        round: () => deploymentRuns.prune(PRUNE_AT_ONCE),
        failed: "old runs of deployments could not be forgotten; tried again",
        clock,
        log,
      }),
      new Rounds({
        name: "tokens of archived deployments",
        everyMs: PRUNE_EVERY_MS,
        round: () => deployments.eraseTokens(ERASE_AT_ONCE),
        failed: "tokens of archived deployments could not be erased; tried again",
        clock,
        log,
      }),
    ];
  }

  async start(): Promise<void> {
    await Promise.all(this.rounds.map((rounds) => rounds.start()));
  }

  /** What has begun ends; the rest is for others. */
  async stop(): Promise<void> {
    this.isStopping = true;
    await Promise.all(this.rounds.map((rounds) => rounds.stop()));
  }

  /** Until nothing is due, as far as one round goes. */
  async round(): Promise<void> {
    const { deployments, clock } = this.deps;
    const tries = new Map<string, number>();
    for (let batch = 0; batch < MAX_BATCHES && !this.isStopping; batch++) {
      const due = await deployments.due(new Date(clock.nowMs()), AT_ONCE);
      const areWell = await this.runAll(due, tries);
      // What has failed stays due: it is the next round's.
      if (due.length < AT_ONCE || !areWell) break;
    }
    this.tries = tries;
  }

  private async runAll(due: readonly DeploymentRecord[], tries: Map<string, number>): Promise<boolean> {
    let areWell = true;
    for (let at = 0; at < due.length && !this.isStopping; at += BESIDE) {
      const group = due.slice(at, at + BESIDE).map((deployment) => this.run(deployment, tries));
      areWell = (await Promise.all(group)).every(Boolean) && areWell;
    }
    return areWell;
  }

  /** False when it is to be tried again. */
  private async run(deployment: DeploymentRecord, tries: Map<string, number>): Promise<boolean> {
    const { clock, log, runs } = this.deps;
    const planned = deployment.planned as PlannedRun;
    const before = this.tries.get(deployment.id) ?? 0;
    try {
      const due = dueRun(deployment.id, deployment.spec, planned, clock.nowMs());
      await runs.scheduled(deployment, { kind: "schedule", planned, ...due }, before + 1 >= MAX_TRIES);
      return true;
    } catch (error) {
      if (!isTendonError(error)) tries.set(deployment.id, before + 1);
      const facts = { deployment: deployment.id, error: messageOf(error) };
      log.warn(facts, "a deployment that is due could not be run; tried again");
      return false;
    }
  }
}

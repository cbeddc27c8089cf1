/** How long things may take between the server, its hand agents and those who call hands. */

export interface HandTiming {
  /** Both sides send a sign of life so often. */
  readonly heartbeatEveryMs: number;
  /** A connection that was silent for so long is gone (H3). */
  readonly heartbeatTimeoutMs: number;
  /** For the first message of a stream to arrive. */
  readonly greetingTimeoutMs: number;
  /** How long a call waits for a hand when its environment does not say. */
  readonly provisionTimeoutMs: number;
  /** How often those who wait for a hand look again; changes seen by this replica wake them at once. */
  readonly lookAgainMs: number;
  /** How long ReleaseHand waits for the agent before it answers that the rest happens later. */
  readonly releaseWaitMs: number;
  /** A reader of output that takes nothing for so long, while it holds up the execution, is cut loose (X5). */
  readonly readerStallMs: number;
  /** An execution may be so much later than its own time limit before the server looks into it. */
  readonly executionGraceMs: number;
  /** An agent that was not heard from for so long is not waited for: what it ran counts as unknown. */
  readonly agentOfflineMs: number;
  /** An agent that was not heard from for so long has lost its hands. */
  readonly keepOfflineMs: number;
  /** How often the sweeper looks. */
  readonly sweepEveryMs: number;
  /** How often results are looked for of executions whose agent talks to another replica, or to none. */
  readonly pollResultsMs: number;
  /** A bound call that its agent was not told of by then was left behind by whoever bound it. */
  readonly unsentAfterMs: number;
  /** A stored result waits at most so long for other replicas to bring the output before it. */
  readonly feedStallMs: number;
  /** A hand without calls is parked after so long when its environment does not say. */
  readonly idleTimeoutMs: number;
  /** How often idle hands are looked for. */
  readonly parkEveryMs: number;
  /** Where places are scarce, only a hand that was unused for so long makes room: its session may just be about to go on. */
  readonly spareUnusedMs: number;
  /** How long an agent may take to end a hand's processes. */
  readonly parkWaitMs: number;
  /** A hand that stayed parked for so long is released. */
  readonly keepParkedMs: number;
  /** A copy in which nothing moved for so long is ended. */
  readonly copyStallMs: number;
  /** A hand that nobody owns is named to its agent so often; the second time it is destroyed (H1). */
  readonly reaperPeriodMs: number;
}

export const HAND_TIMING: HandTiming = {
  heartbeatEveryMs: 5_000,
  heartbeatTimeoutMs: 15_000,
  greetingTimeoutMs: 10_000,
  provisionTimeoutMs: 60_000,
  lookAgainMs: 1_000,
  releaseWaitMs: 10_000,
  readerStallMs: 2_000,
  executionGraceMs: 60_000,
  agentOfflineMs: 300_000,
  keepOfflineMs: 24 * 3_600_000,
  sweepEveryMs: 5_000,
  pollResultsMs: 1_000,
  unsentAfterMs: 2_000,
  feedStallMs: 3_000,
  idleTimeoutMs: 30 * 60_000,
  parkEveryMs: 5_000,
  spareUnusedMs: 2_000,
  parkWaitMs: 15_000,
  keepParkedMs: 7 * 24 * 3_600_000,
  copyStallMs: 120_000,
  reaperPeriodMs: 60_000,
};

/** Half-open connections are found by both sides within this (H3). */
export const HALF_OPEN_BOUND_MS = 30_000;

/** Throws when the times do not fit together; such a configuration would cut healthy connections or miss dead ones. */
export function checkHandTiming(timing: HandTiming): void {
  const holds: [boolean, string][] = [
    [
      timing.heartbeatTimeoutMs >= 2 * timing.heartbeatEveryMs,
      "one lost heartbeat must not end a connection",
    ],
    [
      timing.heartbeatTimeoutMs + 2 * timing.heartbeatEveryMs <= HALF_OPEN_BOUND_MS,
      "a half-open connection must be found within 30 s",
    ],
    [timing.agentOfflineMs <= timing.keepOfflineMs, "a hand outlives the executions that ran in it"],
    [timing.readerStallMs < timing.heartbeatTimeoutMs, "a slow reader must not look like a dead connection"],
  ];
  for (const [ok, why] of holds) if (!ok) throw new Error(`the times of hands do not fit together: ${why}`);
}

/** Default of a call's time limit, and the most it may be. */
export const DEFAULT_CALL_TIMEOUT_MS = 120_000;
export const MAX_CALL_TIMEOUT_MS = 24 * 3_600_000;

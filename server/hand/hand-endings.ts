/** Ends hands: lost ones are told of (H2), released ones are destroyed by their agents, now or when they come back. */
import { type FailureOrigin, isTendonError, messageOf } from "../../kit/errors.ts";
import { ExecutionOutcome } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { ExecutionRecord } from "../store/executions.ts";
import type { HandRecord, LeaseClaim } from "../store/hands.ts";
import type { AgentLinks } from "./agent-link.ts";
import type { Conclusions } from "./conclusions.ts";
import type { HandDeps } from "./deps.ts";
import { lostEvent, releasedEvent } from "./hand-events.ts";
import { failureResult } from "./results.ts";

export class HandEndings {
  private readonly deps: HandDeps;
  private readonly links: AgentLinks;
  private readonly conclusions: Conclusions;

  constructor(deps: HandDeps, links: AgentLinks, conclusions: Conclusions) {
    this.deps = deps;
    this.links = links;
    this.conclusions = conclusions;
  }

  /**
   * The hand's workspace is gone or out of reach for good. What ran in it is unknown, unless `neverStarted` says which
   * executions the agent's journal does not have.
   */
  async lose(
    hand: HandRecord,
    detail: string,
    failure: FailureOrigin,
    neverStarted: (execution: ExecutionRecord) => boolean = () => false,
  ): Promise<void> {
    const change = await this.deps.store.hands.end({
      handId: hand.handId,
      state: "lost",
      stateDetail: detail,
      // An agent that comes back with it after all has to remove it: the session was told that it is gone.
      destroyPending: true,
      event: lostEvent(hand, detail, failure),
    });
    this.conclusions.announce(change?.advance);
    const open = await this.deps.store.executions.openOfHand(hand.handId);
    for (const execution of open.filter(neverStarted)) {
      await this.conclusions.finish(execution, handLostResult(detail));
    }
    await this.conclusions.giveUp(
      open.filter((execution) => !neverStarted(execution)),
      `its hand was lost (${detail})`,
    );
    this.links.changed();
  }

  /** Gives the hand back, with `onlyUnused` only while it is a guess that nothing has used; waits a while for its agent to confirm. */
  async release(
    hand: HandRecord,
    why: string,
    lease: LeaseClaim | undefined,
    { onlyUnused = false } = {},
  ): Promise<HandRecord> {
    const detail = hand.handAgentId === undefined ? why : `${why}; its agent removes the workspace`;
    const change = await this.deps.store.hands.end({
      handId: hand.handId,
      state: "released",
      stateDetail: detail,
      destroyPending: true,
      event: releasedEvent(hand, why, onlyUnused),
      lease,
      onlyUnused,
    });
    if (change === undefined) return (await this.deps.store.hands.find(hand.handId)) ?? hand;
    this.conclusions.announce(change.advance);
    this.links.changed();
    const destroyed = await this.destroy(change.hand);
    if (destroyed) await this.deps.store.hands.setDetail(hand.handId, why);
    return { ...change.hand, stateDetail: destroyed ? why : detail, destroyPending: !destroyed };
  }

  /** Has the agent remove what is left of an ended hand; false when that has to wait for the agent. */
  async destroy(hand: HandRecord): Promise<boolean> {
    if (hand.handAgentId === undefined) return true;
    try {
      const link = await this.links.locate(hand.handAgentId);
      if (link === undefined) return false;
      const answer = await link.command(
        { case: "release", value: { handId: hand.handId } },
        this.deps.timing.releaseWaitMs,
      );
      if (answer.reason !== "") {
        this.deps.logger.warn(
          { hand: hand.handId, reason: answer.reason, detail: answer.message },
          "a hand agent could not destroy a hand; it is asked again",
        );
        return false;
      }
      await this.deps.store.hands.destroyed(hand.handId);
      this.links.changed();
      return true;
    } catch (error) {
      if (!isTendonError(error)) throw error;
      this.deps.logger.info(
        { hand: hand.handId, error: messageOf(error) },
        "the release of a hand waits for its agent",
      );
      return false;
    }
  }
}

/** For the first call after the slot's hand was given back: by its owner, or because it was parked for too long (H2). */
export const NOTICE_AFTER_RELEASE =
  "Note: the environment that earlier calls ran in was released, with all files in it. This call ran in a new, empty one.";

/** The same after it was handed over. */
export const NOTICE_AFTER_HAND_OVER =
  "Note: the environment that earlier calls ran in was handed over to another session, with all files in it. This call ran in a new, empty one.";

export function handLostResult(detail: string) {
  return failureResult({
    outcome: ExecutionOutcome.NOT_STARTED,
    part: "hand_agent",
    reason: "HAND_LOST",
    text: `The call did not run: the environment it was meant for was lost (${detail}), with all files in it. The next call gets a new, empty environment.`,
  });
}

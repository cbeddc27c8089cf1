/**
 * A session whose hand agent has gone while it runs a call waits, and its log says why (R3): neither its brain nor anybody
 * else can do anything before the agent is back or the call counts as unknown.
 */
import { messageOf } from "../../kit/errors.ts";
import type { HandEvent } from "../store/hands.ts";
import type { Conclusions } from "./conclusions.ts";
import type { HandDeps } from "./deps.ts";
import { durationText } from "./rules.ts";

/** An agent that dials again at once was not away. Together with what it takes to notice and to look: within a lease's time. */
const OFFLINE_MS = 5_000;
/** Its replica notes so often that it is there (`sweepEveryMs`) that this long without a note is an absence. */
const SILENT_MS = 20_000;
/** What was noted while no server ran says nothing: agents get this long to come to one that has just started. */
const START_GRACE_MS = 10_000;
const BATCH = 100;

export class UnheardCalls {
  private readonly deps: HandDeps;
  private readonly conclusions: Conclusions;
  private readonly startedMs: number;

  constructor(deps: HandDeps, conclusions: Conclusions) {
    this.deps = deps;
    this.conclusions = conclusions;
    this.startedMs = deps.clock.monotonicMs();
  }

  /** Safe to do again, and on every replica. */
  async tell(): Promise<void> {
    const { clock, store, timing, logger } = this.deps;
    if (clock.monotonicMs() - this.startedMs < START_GRACE_MS) return;
    const calls = await store.executions.unheard({
      offlineMs: OFFLINE_MS,
      silentMs: SILENT_MS,
      limit: BATCH,
    });
    for (const call of calls) {
      try {
        const event = unreachableEvent(call, timing.agentOfflineMs);
        this.conclusions.announce(await store.executions.tellUnheard(call, event));
      } catch (error) {
        const facts = { execution: call.executionKey, error: messageOf(error) };
        logger.warn(facts, "a log could not be told that a hand agent is away; it is tried again");
      }
    }
  }
}

function unreachableEvent(call: { executionId: string; handAgentId: string }, waitMs: number): HandEvent {
  const message =
    `The hand agent ${call.handAgentId}, where a call of this session runs, is out of reach. The call goes on when it is back; ` +
    `once it has been away for ${durationText(waitMs)} and the call's own time is over, the outcome counts as unknown.`;
  const error = {
    type: "unknown_error",
    message,
    retry_status: { type: "retrying" },
    part: "hand_agent",
    reason: "HAND_AGENT_OFFLINE",
    tool_use_id: call.executionId,
  };
  return { type: "session.error", payload: JSON.stringify({ error }) };
}

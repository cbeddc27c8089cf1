/** Why a call did not run, in words for the model. */
import { ExecutionOutcome } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { HandRecord } from "../store/hands.ts";
import type { CallFailure } from "./results.ts";

export function noHand(failed: { part: CallFailure["part"]; reason: string; message: string }): CallFailure {
  const waited = failed.reason === "NO_HAND_AGENT";
  return {
    outcome: ExecutionOutcome.NOT_STARTED,
    part: failed.part,
    reason: failed.reason,
    text: waited
      ? `The call did not run: there is no environment to run it in (${failed.message}). An operator has to start a hand agent; trying again later may help.`
      : `The call did not run: its environment could not be made (${failed.message}).`,
  };
}

export function noHandInSlot(slot: string): CallFailure {
  return {
    outcome: ExecutionOutcome.NOT_STARTED,
    part: "server",
    reason: "NOT_FOUND",
    text: `The call did not run: there is no hand in the slot "${slot}".`,
  };
}

/** Parked ones count: their files are kept. */
export function tooManyHandsText(most: number): string {
  const hands = most === 1 ? "the one hand" : `all ${most} hands`;
  return `the workspace has ${hands} that it may have at a time, parked ones among them; release one, or raise the limit`;
}

export function tooManyHands(most: number): CallFailure {
  return {
    outcome: ExecutionOutcome.NOT_STARTED,
    part: "server",
    reason: "LIMIT_EXCEEDED",
    text: `The call did not run: its environment could not be made (${tooManyHandsText(most)}).`,
  };
}

export function unknownTool(name: string, known: ReadonlySet<string>): CallFailure {
  return {
    outcome: ExecutionOutcome.NOT_STARTED,
    part: "server",
    reason: "UNKNOWN_TOOL",
    text: `The call did not run: this hand has no tool "${name}". It has: ${[...known].sort().join(", ")}.`,
  };
}

export function agentOffline(hand: HandRecord): CallFailure {
  return {
    outcome: ExecutionOutcome.NOT_STARTED,
    part: "tunnel",
    reason: "HAND_AGENT_OFFLINE",
    text: `The call did not run: the machine that hosts its environment (hand ${hand.handId}) cannot be reached. The environment's files are kept; trying again later may help.`,
  };
}

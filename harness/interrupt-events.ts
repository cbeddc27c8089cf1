/** What an interrupt comes to in the log. Pure, except that ids come from outside. */
import type { FailureOrigin } from "../kit/errors.ts";
import type { EventInput } from "../proto/gen/tendon/v1/event_pb.js";
import {
  brainEvent,
  errorResult,
  INTERRUPTED,
  INTERRUPTED_TEXT,
  idleEvents,
  LEFT_RUNNING_TEXT,
} from "./brain-events.ts";
import { isRunnable } from "./next-step.ts";
import { ENDS, outcomeEnd } from "./outcome/outcome-events.ts";
import type { SessionState } from "./session-state.ts";

/** The end of what was going on, and of an outcome that was defined before; where nothing was, that it was heard. */
export function interruptEvents(
  state: SessionState,
  leavesCalls: boolean,
  newId: () => string,
): EventInput[] {
  const interrupts = state.interrupts.map(({ eventId }) => eventId);
  const stop = state.interrupts.findLast(({ keepsQueued }) => keepsQueued);
  const isOver = state.status === "idle" && state.openCalls.size === 0 && !state.atBudget;
  const ended = endedOutcome(state, newId);
  const isAwaited =
    state.announcedCalls !== undefined ||
    state.waiting.some(({ position }) => position < (stop?.position ?? 0n));
  const consumed = { event_ids: interrupts, turn: state.turn };
  const marker = brainEvent(newId(), "brain.inputs_consumed", consumed);
  if (isOver && ended.length === 0 && !isAwaited) return [marker];
  const info = {
    interrupted: { event_id: interrupts[0] },
    ...(stop !== undefined && { keeps_queued: true }),
  };
  return [
    ...interruptedResults(state, leavesCalls, newId),
    ...ended,
    marker,
    ...idleEvents({ type: "end_turn" }, null, state, newId, info),
  ];
}

/** One that was defined after the interrupt is what the client wants instead. */
function endedOutcome(state: SessionState, newId: () => string): EventInput[] {
  const definedAt = state.outcome?.position ?? 0n;
  const isEarlier = state.interrupts.some(({ position }) => position > definedAt);
  return isEarlier ? outcomeEnd(state, ENDS.interrupted, newId) : [];
}

export function interruptedResults(
  { openCalls }: SessionState,
  leavesCalls: boolean,
  newId: () => string,
  failure: FailureOrigin = INTERRUPTED,
): EventInput[] {
  return [...openCalls.values()].map((call) => {
    const isLeft = leavesCalls && call.kind === "hand" && isRunnable(call);
    return errorResult(newId(), call, isLeft ? LEFT_RUNNING_TEXT : INTERRUPTED_TEXT, failure);
  });
}

/** The end of a turn that has reached a bound of its own. Pure, except that ids come from outside. */
import type { EventInput } from "../proto/gen/tendon/v1/event_pb.js";
import { brainEvent, exhaustedEvents, type SessionFailure } from "./brain-events.ts";
import type { NextStep, StepSettings } from "./next-step.ts";
import { ENDS, outcomeEnd } from "./outcome/outcome-events.ts";
import type { SessionState } from "./session-state.ts";

type Why = Extract<NextStep, { kind: "give_up" }>["why"];

export interface GiveUpBounds extends StepSettings {
  /** Of all histories that a harness holds. */
  readonly maxBytes: number;
}

const MIB = 1024 * 1024;

export function gaveUpEvents(
  why: Why,
  bounds: GiveUpBounds,
  state: SessionState,
  newId: () => string,
): EventInput[] {
  const exhausted = exhaustedEvents(giveUpError(why, bounds), state, newId);
  if (why !== "history") return exhausted;
  // The turn may not even have begun, and what judges it cannot be asked either.
  const running = state.status === "running" ? [] : [brainEvent(newId(), "session.status_running", {})];
  const isJudged = state.outcome?.evaluation !== undefined;
  return [...running, ...(isJudged ? outcomeEnd(state, ENDS.tooLarge, newId) : []), ...exhausted];
}

function giveUpError(
  why: Why,
  { maxRounds, maxCutOffs, maxCompactions, maxBytes }: GiveUpBounds,
): SessionFailure {
  switch (why) {
    case "history": {
      const message = `The session's history, with its files, is larger than the ${Math.floor(maxBytes / MIB)} MiB that this harness may hold (TENDON_HARNESS_HISTORY_MIB), so no model was asked. A harness with more memory can go on with it, or a fork that ends before the large files.`;
      return { type: "unknown_error", message, part: "harness", reason: "HISTORY_TOO_LARGE" };
    }
    case "compactions": {
      const message = `The context was summarised ${maxCompactions} times in a row, and still leaves no room for an answer.`;
      return {
        type: "compaction_limit_reached_error",
        message,
        part: "model",
        reason: "TOO_MANY_COMPACTIONS",
      };
    }
    case "rounds": {
      const message = `The turn has run ${maxRounds} rounds of tool calls, which is the most that one turn may.`;
      return { type: "tool_use_limit_reached_error", message, part: "model", reason: "TOO_MANY_ROUNDS" };
    }
    case "cut_offs": {
      const message = `The model's last ${maxCutOffs} answers were each cut off inside a tool call, so none of those calls ran.`;
      return { type: "tool_use_limit_reached_error", message, part: "model", reason: "TOO_MANY_CUT_OFFS" };
    }
  }
}

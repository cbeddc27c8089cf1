/**
 * A loop without a model: it follows the steps that the agent's `loop_settings` list, one for each answer, and can fail on
 * command. For tests of everything around a loop, and for agents whose steps are known beforehand.
 *
 *   {"steps": [{"say": "…", "calls": [{"name": "bash", "input": {…}}]}, {"fail": "…"}, {"throw": true}]}
 *
 * `say` and `calls` may stand together; a missing step says "Done."; `fail` fails as an overloaded model does.
 */
import {
  countOf,
  isObject,
  type Json,
  objectsOf,
  parseObject,
  payloadOf,
  stringOf,
} from "../../event-payload.ts";
import { type Loop, type LoopOutcome, type LoopTurn, NO_USAGE, type ProposedEvent } from "../loop.ts";

export const scriptedLoop: Loop = {
  name: "scripted",
  model: () => "scripted",
  async run(turn) {
    const steps = objectsOf(parseObject(turn.agent.spec?.loopSettings ?? "").steps);
    return outcomeOf(steps[requestsSoFar(turn) - 1] ?? { say: "Done." }, turn);
  },
};

/** Requests that were answered or failed, and the running one; those that died with their holder are asked again. */
function requestsSoFar({ history }: LoopTurn): number {
  const died = history.filter(
    (event) =>
      event.type === "span.model_request_end" && payloadOf(event).is_error === true && event.internal === "",
  );
  return history.filter(({ type }) => type === "span.model_request_start").length - died.length;
}

function outcomeOf(step: Json, turn: LoopTurn): LoopOutcome {
  if (step.throw === true) throw new Error("the script says so");
  if (typeof step.fail === "string") {
    const failure = {
      type: "model_overloaded_error" as const,
      message: step.fail,
      maxAttempts: countOf(step.max_attempts) || Number.POSITIVE_INFINITY,
      retryAfterMs: undefined,
      began: false,
    };
    return { kind: "failed", failure };
  }
  const events: ProposedEvent[] = [];
  if (typeof step.say === "string") {
    events.push({ kind: "message", eventId: turn.newEventId(), texts: [step.say], blocks: [] });
  }
  for (const call of objectsOf(step.calls)) {
    events.push({
      kind: "call",
      eventId: turn.newEventId(),
      modelName: stringOf(call.name),
      inputText: JSON.stringify(isObject(call.input) ? call.input : {}),
      problem: undefined,
      blocks: [],
    });
  }
  return {
    kind: "response",
    response: { events, stop: { kind: "done", reason: "scripted" }, usage: NO_USAGE },
  };
}

/**
 * What an agent is told of its outcome, as a user's message: loops know nothing of outcomes. Pure: the words of an event
 * follow from that event alone, so a request that is planned again has the same bytes.
 */
import { create } from "@bufbuild/protobuf";
import { type Event, EventSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import { type Json, payloadOf, stringOf } from "../event-payload.ts";
import { definedOutcome, EVALUATION_END, isTold, OUTCOME_DEFINED } from "./outcome-state.ts";

/** The event as loops see it; undefined when it says nothing to an agent. Other events stay as they are. */
export function loopEvent(event: Event): Event | undefined {
  if (event.type === OUTCOME_DEFINED) return spoken(event, definition(event));
  if (event.type !== EVALUATION_END) return event;
  return isTold(event) ? spoken(event, judgement(event), { from_evaluation: true }) : undefined;
}

/** It only looks like a user's message: what a grader said may repeat what it was shown, and permits nothing. */
export function isFromEvaluation(payload: Json): boolean {
  return payload.from_evaluation === true;
}

function spoken(event: Event, text: string, more: Json = {}): Event {
  const payload = JSON.stringify({ content: [{ type: "text", text }], ...more });
  return create(EventSchema, { ...event, type: "user.message", payload, internal: "" });
}

function definition(event: Event): string {
  const { description, rubric } = definedOutcome(event);
  return `Work towards this outcome:

<outcome>
${description}
</outcome>

When you end your turn the work is judged by this rubric. Whoever judges sees your task, what you said and did, and what you left in /mnt/session/outputs; nothing else:

<rubric>
${rubric ?? "(its text is not known here)"}
</rubric>

Do all of it that you can before you end your turn. You are told then what is missing.`;
}

function judgement(event: Event): string {
  const { result, explanation } = payloadOf(event);
  const said = stringOf(explanation);
  if (result === "needs_revision")
    return `The work was judged. It does not meet the rubric yet:

${said}

Mend what is missing, and end your turn when that is done.`;
  return `The work was judged for the last time. It still does not meet the rubric:

${said}

Do no more work on it. Say briefly what was reached, what was not, and where things stand.`;
}

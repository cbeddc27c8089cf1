/** `tendon session outcomes`: what a session was to reach, and each evaluation of the work. */
import type { Command } from "commander";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { CALL_WITHIN, onAction } from "../command.ts";
import type { Api } from "../connect.ts";
import type { Json } from "../event-payload.ts";
import { stringOf } from "../event-payload.ts";
import { type EvaluationView, OUTCOME_TYPES, type OutcomeView, outcomesOf } from "../outcome-fold.ts";
import { printable } from "../table.ts";

/** At most what one page may hold. */
const PAGE_EVENTS = 1_000;
const MS_PER_S = 1_000;

export function addSessionOutcomes(session: Command): void {
  const command = session
    .command("outcomes <session>")
    .description("show what a session was to reach, and how each evaluation judged the work")
    .addHelpText(
      "after",
      `
Example:
  tendon session outcomes sesn_01… --json | jq '.outcomes[].evaluations[] | {iteration, result, criteria}'`,
    );
  onAction(command, async ({ args, api, output }) => {
    const outcomes = outcomesOf(await outcomeEvents(api, String(args[0])));
    output.value({ outcomes }, () => outcomesText(outcomes));
  });
}

async function outcomeEvents({ sessions }: Api, sessionId: string): Promise<Event[]> {
  const found: Event[] = [];
  for (let after = 0n; ; ) {
    const request = { sessionId, afterPosition: after, limit: PAGE_EVENTS, types: [...OUTCOME_TYPES] };
    const { events, hasMore } = await sessions.getEvents(request, CALL_WITHIN);
    found.push(...events);
    const last = events.at(-1);
    if (!hasMore || last === undefined) return found;
    after = last.position;
  }
}

function outcomesText(outcomes: readonly OutcomeView[]): string {
  if (outcomes.length === 0) return "no outcome was defined in this session";
  return outcomes.map(outcomeText).join("\n\n");
}

function outcomeText({
  outcome_id: id,
  description,
  max_iterations: most,
  evaluations,
}: OutcomeView): string {
  const lines = evaluations.map((evaluation) => evaluationText(evaluation, most));
  const none = "  not judged yet";
  return [`${id}  ${indented(description, "  ")}`, ...(lines.length === 0 ? [none] : lines)].join("\n");
}

function evaluationText(evaluation: EvaluationView, most: number): string {
  const { iteration, model, result, explanation, criteria, heartbeats } = evaluation;
  const state = result ?? `is being judged, ${heartbeats} signs of life`;
  const facts = [durationOf(evaluation), model && `by ${model}`, tokensText(evaluation.usage)].filter(
    Boolean,
  );
  const more = facts.length === 0 ? "" : ` (${printable(facts.join(", "))})`;
  const head = `  ◆ evaluation ${iteration + 1} of at most ${most}: ${printable(state)}${more}`;
  const why = criteria.length > 0 ? criteria.map(criterionText) : explanation === "" ? [] : [explanation];
  return [head, ...why.map((text) => `    ${indented(text, "    ")}`)].join("\n");
}

function criterionText({ criterion, met, explanation }: Json): string {
  return `- ${met === true ? "met" : "not met"}: ${stringOf(criterion)}\n  ${stringOf(explanation)}`;
}

function durationOf({ started_at_ms: from, ended_at_ms: to }: EvaluationView): string {
  return from === null || to === null ? "" : `${((to - from) / MS_PER_S).toFixed(1)} s`;
}

function tokensText({ input_tokens: read, output_tokens: written }: Json): string {
  const isUsed = typeof read === "number" && typeof written === "number" && read + written > 0;
  return isUsed ? `${read} tokens in, ${written} out` : "";
}

/** Further lines stand below the first one. */
function indented(text: string, by: string): string {
  return printable(text).trimEnd().replaceAll("\n", `\n${by}`);
}

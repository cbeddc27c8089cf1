/** Outcomes at a rig: how a client defines one, and a model that works and judges. */
import { GRADER_SYSTEM } from "../../harness/outcome/grader-request.ts";
import type { RecordedRequest } from "./fake-messages-api.ts";
import { type MessagesRequest, type Turn, turn } from "./fake-messages-api.ts";
import type { ScriptedSession } from "./scripted-session.ts";

export const RUBRIC = "It is blue.\nIt is round.";

export const definition = (description: string, more: object = {}) => ({
  type: "user.define_outcome" as const,
  description,
  rubric: { type: "text" as const, content: RUBRIC },
  ...more,
});

export function define(session: ScriptedSession, description: string, more: object = {}): string {
  const { type, ...payload } = definition(description, more);
  return session.send({ type, payload })[0]!;
}

export function isGraders({ system }: Pick<MessagesRequest, "system">): boolean {
  return system.some(({ text }) => text === GRADER_SYSTEM);
}

export function wasGraders({ json }: RecordedRequest): boolean {
  return JSON.stringify(json?.system ?? "").includes(JSON.stringify(GRADER_SYSTEM).slice(1, -1));
}

/** Of a request, all that its messages say. */
export const wordsOf = (request: { readonly body: Buffer }) =>
  (JSON.parse(request.body.toString()).messages as { content: string | { text?: string }[] }[])
    .flatMap(({ content }) => (typeof content === "string" ? content : content.map(({ text }) => text ?? "")))
    .join("\n");

/** A verdict in which each criterion is met, or not, in this order. */
export function verdict(...met: boolean[]): Turn {
  const names = RUBRIC.split("\n");
  const criteria = met.map((isMet, at) => ({
    criterion: names[at] ?? `criterion ${at}`,
    met: isMet,
    explanation: isMet ? "It is." : `Not yet: mend ${names[at]}`,
  }));
  const said = { applies: true, criteria, explanation: met.every((one) => one) ? "Good." : "Not good yet." };
  return turn([`I looked.\n<verdict>\n${JSON.stringify(said)}\n</verdict>`]);
}

export function notApplicable(): Turn {
  const said = { applies: false, criteria: [], explanation: "The rubric is about something else." };
  return turn([`<verdict>${JSON.stringify(said)}</verdict>`]);
}

export interface Ended {
  readonly outcome_id: string;
  readonly outcome_evaluation_start_id: string;
  readonly iteration: number;
  readonly result: string;
  readonly explanation: string;
  readonly usage: { readonly input_tokens: number; readonly output_tokens: number };
}

export function ends(session: ScriptedSession): Ended[] {
  return session.payloads("span.outcome_evaluation_end") as unknown as Ended[];
}

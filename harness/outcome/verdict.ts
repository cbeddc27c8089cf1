/** What a grader's answer says. Pure. */
import { isObject, type Json, objectsOf, stringOf } from "../event-payload.ts";
import type { TextAnswer } from "../text-model.ts";

type Answer = Extract<TextAnswer, { kind: "answer" }>;

export interface JudgedCriterion {
  readonly criterion: string;
  readonly met: boolean;
  readonly explanation: string;
}

export interface Verdict {
  /** `failed`: the rubric does not fit the task, or contradicts itself. */
  readonly result: "satisfied" | "needs_revision" | "failed";
  readonly criteria: readonly JudgedCriterion[];
  /** For people and for the agent; names every criterion. */
  readonly explanation: string;
}

/** The form that the grader is asked for. */
export const VERDICT_FORM = `<verdict>
{"applies": true, "criteria": [{"criterion": "…", "met": false, "explanation": "…"}], "explanation": "…"}
</verdict>`;

const MAX_CRITERIA = 100;
const MAX_CRITERION_CHARS = 500;
const MAX_EXPLANATION_CHARS = 4_000;

/**
 * Undefined when the answer is in no form that can be relied on: one that was cut short may end in what it only repeats.
 * What counts is each criterion, not a sum of them.
 */
export function verdictOf({ text, stop }: Pick<Answer, "text" | "stop">): Verdict | undefined {
  const said = stop.kind === "done" ? jsonIn(text) : undefined;
  if (said === undefined || typeof said.applies !== "boolean") return undefined;
  const why = cut(stringOf(said.explanation), MAX_EXPLANATION_CHARS);
  if (!said.applies) return why === "" ? undefined : { result: "failed", criteria: [], explanation: why };
  const listed = objectsOf(said.criteria);
  if (listed.length === 0 || listed.length > MAX_CRITERIA) return undefined;
  const criteria = listed.flatMap((one): JudgedCriterion[] => {
    const criterion = cut(stringOf(one.criterion), MAX_CRITERION_CHARS);
    if (criterion === "" || typeof one.met !== "boolean") return [];
    return [{ criterion, met: one.met, explanation: cut(stringOf(one.explanation), MAX_EXPLANATION_CHARS) }];
  });
  if (criteria.length < listed.length) return undefined;
  const result = criteria.every(({ met }) => met) ? "satisfied" : "needs_revision";
  return { result, criteria, explanation: explained(why, criteria) };
}

function explained(why: string, criteria: readonly JudgedCriterion[]): string {
  const lines = criteria.map(
    ({ criterion, met, explanation }) => `- ${met ? "met" : "not met"}: ${criterion}\n  ${explanation}`,
  );
  return [why, lines.join("\n")].filter((part) => part !== "").join("\n\n");
}

/** The last verdict that it names, else the outermost object. In one pass, however long the answer is. */
function jsonIn(answer: string): Json | undefined {
  const end = answer.lastIndexOf("</verdict>");
  const begin = end < 0 ? -1 : answer.lastIndexOf("<verdict>", end);
  const named = begin < 0 ? answer : answer.slice(begin, end);
  const text = named.slice(named.indexOf("{"), named.lastIndexOf("}") + 1);
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

function cut(text: string, maxChars: number): string {
  const trimmed = text.trim();
  const short = trimmed.length > maxChars ? `${trimmed.slice(0, maxChars)}…` : trimmed;
  // What is cut in the middle of a character, or came so, would not be kept as it is.
  return short.replace(/\p{Surrogate}/gu, "\uFFFD");
}

/** What a judge's answer says (pure). Only the whole form counts: whatever else was written decides nothing. */
import { isObject } from "../event-payload.ts";
import type { TextAnswer } from "../text-model.ts";

export interface JudgeAnswer {
  readonly verdict: "allow" | "deny" | "ask";
  /** In a sentence, for people. */
  readonly why: string;
}

/** Nobody needs more to know why. */
const MAX_WHY_CHARS = 500;
const VERDICTS: readonly unknown[] = ["allow", "deny", "ask"];
const MEMBERS = new Set(["verdict", "reason"]);

/** Undefined when the answer is not one JSON object of the form, alone and whole. */
export function judgeAnswer({
  text,
  stop,
}: Pick<Extract<TextAnswer, { kind: "answer" }>, "text" | "stop">): JudgeAnswer | undefined {
  if (stop.kind !== "done") return undefined;
  const answer = parsed(text);
  if (!isObject(answer) || Object.keys(answer).some((name) => !MEMBERS.has(name))) return undefined;
  const { verdict, reason = "" } = answer;
  if (!VERDICTS.includes(verdict) || typeof reason !== "string") return undefined;
  // Of a name that stands there twice, however it is written, only one would be seen.
  if (namesIn(text) !== Object.keys(answer).length) return undefined;
  const why = reason.slice(0, MAX_WHY_CHARS).replace(/\p{Surrogate}/gu, "\uFFFD");
  return { verdict: verdict as JudgeAnswer["verdict"], why };
}

/** In JSON text. */
function namesIn(text: string): number {
  const texts = text.match(/"(?:[^"\\]|\\.)*"\s*:?/g) ?? [];
  return texts.filter((one) => one.endsWith(":")).length;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

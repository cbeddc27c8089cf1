/** What the model is asked when the talk has to give way to a summary, and what is taken of its answer. Pure. */
import type { ProposedResponse } from "../loop.ts";
import type { ContextStep } from "./context-policy.ts";
import { type ModelRequest, plan, planText, type RequestParts } from "./plan.ts";
import { transcript } from "./transcript.ts";

const MAX_SUMMARY_CHARS = 400_000;

const TASK = `This conversation has grown so long that it will not fit much longer. Write notes from which you will carry on: they will stand in its place, and nothing else of it will be shown to you again.

Do not call tools, and do not go on with the task now. Keep what is still of use, exact where exactness matters:
1. What the user wants, with every constraint and preference, in their own words where these matter.
2. What was done and decided so far, and why.
3. The state of things outside: files, processes, names, paths, ids, commands and numbers as they are.
4. What went wrong, and what helped.
5. What you are in the middle of, and what comes next.

Write plain text between <summary> and </summary>.`;

/** The text of the question that a summary is asked for with. */
export function summaryQuestion(instructions: string): string {
  return instructions.trim() === "" ? TASK : `${TASK}\n\n${instructions.trim()}`;
}

export function summaryRequest(
  parts: RequestParts,
  { wholeTalk, maxBytes }: Extract<ContextStep, { kind: "summarise" }>,
  instructions: string,
): ModelRequest {
  const question = summaryQuestion(instructions);
  if (wholeTalk) return plan(parts, question);
  const talk = transcript(parts.built.messages, maxBytes);
  return planText(
    parts,
    `${question}\n\nThis is the conversation, shortened where it was too long:\n\n<conversation>\n${talk}\n</conversation>`,
  );
}

/** The summary that an answer holds; undefined when it holds none. */
export function summaryOf({ events, stop }: ProposedResponse): string | undefined {
  if (stop.kind === "refusal") return undefined;
  const text = events.flatMap((event) => (event.kind === "message" ? event.texts : [])).join("");
  const [, inner] = /<summary>([\s\S]*?)(?:<\/summary>|$)/.exec(text) ?? [];
  // A model that goes on with its work has written no notes.
  if (inner === undefined && events.some(({ kind }) => kind === "call")) return undefined;
  const summary = (inner ?? text).trim();
  if (summary === "") return undefined;
  return summary.length > MAX_SUMMARY_CHARS ? `${summary.slice(0, MAX_SUMMARY_CHARS)} …` : summary;
}

export function extractOf({ built }: RequestParts, maxBytes: number): string {
  return `No summary could be made. These are parts of the conversation as it was:\n\n${transcript(built.messages, maxBytes)}`;
}

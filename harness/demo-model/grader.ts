/**
 * What the demo answers when it is asked for a verdict: a pure function of the question. Every line of the rubric is a
 * criterion; of "contains: TEXT" it looks whether a result or an output holds TEXT, of others only whether anything was done.
 */
import { GRADER_SYSTEM } from "../outcome/grader-request.ts";

const OPENING = GRADER_SYSTEM.slice(0, GRADER_SYSTEM.indexOf("\n"));
/** Where a part of what a worker said and did begins. */
const PART = /\n\n(?=(?:user|agent|agent calls [^\n]*|result|the call failed|thread [^\n]*): )/;

export function asksForVerdict(system: string): boolean {
  return system.startsWith(OPENING);
}

export function demoVerdict(question: string): string {
  const results = section(question, "work")
    .split(PART)
    .filter((part) => part.startsWith("result: "));
  const outputs = section(question, "outputs");
  const seen = [...results, ...(outputs === "(none)" ? [] : [outputs])].join("\n");
  const lines = section(question, "rubric")
    .split("\n")
    .map((line) => line.trim().replace(/^[-*] /, ""));
  const criteria = lines.filter((line) => line !== "").map((line) => judged(line, seen));
  const unmet = criteria.filter(({ met }) => !met).length;
  const explanation =
    unmet === 0 ? "All of it is there." : `${unmet} of ${criteria.length} criteria are not met.`;
  return `<verdict>\n${JSON.stringify({ applies: true, criteria, explanation })}\n</verdict>`;
}

function judged(criterion: string, seen: string) {
  const wanted = /^contains:\s*(.+)$/i.exec(criterion)?.[1];
  if (wanted === undefined) {
    const met = seen !== "";
    return { criterion, met, explanation: met ? "Something was done." : "Nothing was done." };
  }
  if (seen.includes(wanted)) return { criterion, met: true, explanation: "A result or an output holds it." };
  // A line that the demo understands.
  const quoted = wanted.replaceAll("'", `'\\''`);
  const explanation = `No result and no output holds it. This would do:\nrun: printf '%s\\n' '${quoted}'`;
  return { criterion, met: false, explanation };
}

function section(question: string, name: string): string {
  return new RegExp(`<${name}-([0-9a-f]+)>\\n([\\s\\S]*?)\\n</${name}-\\1>`).exec(question)?.[2] ?? "";
}

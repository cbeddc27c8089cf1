import { describe, expect, it } from "vitest";
import { verdictOf as read } from "./verdict.ts";

const verdictOf = (text: string) => read({ text, stop: { kind: "done", reason: "end_turn" } });
const said = (value: object) => `Some thoughts {not json}.\n<verdict>\n${JSON.stringify(value)}\n</verdict>`;
const criterion = (met: boolean) => ({ criterion: "It is blue.", met, explanation: "as seen" });

describe("a grader's answer", () => {
  it("is satisfied only where each criterion is met, whatever it sums up", () => {
    const answer = said({
      applies: true,
      criteria: [criterion(true), criterion(false)],
      explanation: "Perfect.",
    });
    expect(verdictOf(answer)).toEqual({
      result: "needs_revision",
      criteria: [criterion(true), criterion(false)],
      explanation: "Perfect.\n\n- met: It is blue.\n  as seen\n- not met: It is blue.\n  as seen",
    });
    expect(verdictOf(said({ applies: true, criteria: [criterion(true)] }))?.result).toBe("satisfied");
  });

  it("may say that the rubric does not fit, if it says why", () => {
    expect(verdictOf(said({ applies: false, explanation: "Two colours at once." }))).toEqual({
      result: "failed",
      criteria: [],
      explanation: "Two colours at once.",
    });
    expect(verdictOf(said({ applies: false }))).toBeUndefined();
  });

  it("is read without its tags, and by the last ones where there are several", () => {
    const one = { applies: true, criteria: [criterion(true)], explanation: "" };
    expect(verdictOf(JSON.stringify(one))?.result).toBe("satisfied");
    const other = { ...one, criteria: [criterion(false)] };
    expect(verdictOf(`${said(one)} No: ${said(other)}`)?.result).toBe("needs_revision");
  });

  it.each([
    ["nothing", ""],
    ["words", "Looks fine to me."],
    ["half of an object", '<verdict>{"applies": true, "criteria": ['],
    ["no criteria", said({ applies: true, criteria: [] })],
    [
      "a criterion without a word on it",
      said({ applies: true, criteria: [criterion(true), { criterion: "x" }] }),
    ],
    [
      "too many criteria",
      said({ applies: true, criteria: Array.from({ length: 101 }, () => criterion(true)) }),
    ],
  ])("that holds %s is none", (_, answer) => {
    expect(verdictOf(answer)).toBeUndefined();
  });

  it("that was cut short decides nothing, though a whole verdict stands in what it repeats", () => {
    const text = `The work claims ${said({ applies: true, criteria: [criterion(true)] })}, which`;
    for (const kind of ["limit", "refusal", "paused"] as const)
      expect(read({ text, stop: { kind, reason: kind } })).toBeUndefined();
  });

  it("is read in one pass, however often it begins a verdict", () => {
    const begun = "<verdict>{".repeat(200_000);
    expect(verdictOf(begun)).toBeUndefined();
    const whole = said({ applies: true, criteria: [criterion(true)] });
    expect(verdictOf(`${begun}${whole}`)?.result).toBe("satisfied");
  });

  it("is cut where it is long, and holds no half characters", () => {
    const long = { ...criterion(false), criterion: `${"x".repeat(499)}🙂`, explanation: "y".repeat(10_000) };
    const verdict = verdictOf(said({ applies: true, criteria: [long], explanation: "" }))!;
    expect(verdict.criteria[0]!.criterion).toBe(`${"x".repeat(499)}\uFFFD…`);
    expect(verdict.criteria[0]!.explanation).toHaveLength(4_001);
  });
});

import { describe, expect, it } from "vitest";
import { judgeAnswer } from "./judge-answer.ts";

const done = { kind: "done", reason: "end_turn" } as const;
const read = (text: string) => judgeAnswer({ text, stop: done });

describe("a judge's answer", () => {
  it.each(["allow", "deny", "ask"] as const)("that is the form says %s", (verdict) => {
    expect(read(` {"verdict": "${verdict}", "reason": "so"}\n`)).toEqual({ verdict, why: "so" });
    expect(read(JSON.stringify({ verdict }))).toEqual({ verdict, why: "" });
  });

  it.each([
    "",
    "allow",
    `"allow"`,
    `["allow"]`,
    `Sure. {"verdict":"allow"}`,
    `{"verdict":"allow"} as the tool said`,
    '```json\n{"verdict":"allow"}\n```',
    `{"verdict":"ALLOW"}`,
    `{"verdict":["allow"]}`,
    `{"reason":"allow"}`,
    `{"verdict":"allow","reason":7}`,
    `{"verdict":"allow","and":"more"}`,
    `{"verdict":"deny","verdict":"allow"}`,
    `{"verdict":"allow"}{"verdict":"allow"}`,
    String.raw`{"verdict":"deny","reason":"so","\u0076erdict":"allow"}`,
    `{"verdict":"allow","reason":"bad","reason":"fine"}`,
  ])("that is anything else decides nothing: %s", (text) => {
    expect(read(text)).toBeUndefined();
  });

  it("that was cut, or refused, decides nothing", () => {
    const text = `{"verdict":"allow"}`;
    expect(judgeAnswer({ text, stop: { kind: "limit", reason: "max_tokens" } })).toBeUndefined();
    expect(judgeAnswer({ text, stop: { kind: "refusal", reason: "refusal" } })).toBeUndefined();
  });

  it("may quote what looks like a name in its reason", () => {
    const reason = `it says "verdict": \\ "allow": {`;
    expect(read(JSON.stringify({ reason, verdict: "deny" }))).toEqual({ verdict: "deny", why: reason });
  });

  it("is kept short, without half characters", () => {
    const cut = read(JSON.stringify({ verdict: "ask", reason: `${"x".repeat(499)}🙂` }))!;
    expect(cut.why).toBe(`${"x".repeat(499)}\uFFFD`);
    const reason = "because ".repeat(1_000);
    expect(read(JSON.stringify({ verdict: "ask", reason }))!.why.length).toBeLessThanOrEqual(500);
  });
});

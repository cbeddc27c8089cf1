import { describe, expect, it } from "vitest";
import type { ProposedEvent, ResponseStop } from "../loop.ts";
import { NO_USAGE } from "../loop.ts";
import { summaryOf } from "./summary-request.ts";

const said = (...texts: string[]): ProposedEvent => ({ kind: "message", eventId: "e", texts, blocks: [] });
const call: ProposedEvent = {
  kind: "call",
  eventId: "c",
  modelName: "bash",
  inputText: "{}",
  problem: undefined,
  blocks: [],
};
const of = (events: ProposedEvent[], kind: ResponseStop["kind"] = "done") =>
  summaryOf({ events, stop: { kind, reason: kind }, usage: NO_USAGE });

describe("the summary in an answer", () => {
  it("is what stands between the marks, also where the answer was cut before the second", () => {
    expect(of([said("Here it is:\n<summary>\n a \nb</summary> Anything else?")])).toBe("a \nb");
    expect(of([said("<summary>a"), said(" b")], "limit")).toBe("a b");
  });

  it("is the whole text of a model that forgets the marks, but not the words of one that goes on with its work", () => {
    expect(of([said(" what was done ")])).toBe("what was done");
    expect(of([said("I will look at it."), call])).toBeUndefined();
    expect(of([said("<summary>a</summary>"), call])).toBe("a");
  });

  it("is none in refusals, and where there is no text", () => {
    expect(of([said("<summary>a</summary>")], "refusal")).toBeUndefined();
    expect(of([said("<summary> </summary>")])).toBeUndefined();
    expect(of([call])).toBeUndefined();
  });

  it("has a bound", () => {
    expect(of([said("x".repeat(1_000_000))])?.length).toBeLessThan(500_000);
  });
});

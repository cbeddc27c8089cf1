import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { EventSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import { graderQuestion } from "../outcome/grader-request.ts";
import type { Evaluation, Outcome } from "../outcome/outcome-state.ts";
import { verdictOf } from "../outcome/verdict.ts";
import { asksForVerdict, demoVerdict } from "./grader.ts";

const outcome: Outcome = {
  eventId: "sevt_1",
  outcomeId: "outc_1",
  position: 1n,
  description: "run: echo 41",
  rubric: "- contains: 42\n- contains: it's\n\nSomething was done.",
  maxIterations: 3,
  iteration: 0,
  isBegun: true,
  isPaused: false,
  awaitsThreads: false,
  evaluation: undefined,
};

function verdictOver(result: string, outputs: readonly object[] = []) {
  const evaluation: Evaluation = {
    startId: "sevt_9",
    position: 9n,
    model: "m",
    outputs: { files: outputs },
    used: [],
    unreadable: 0,
    tooLong: 0,
  };
  const event = (position: bigint, type: string, payload: object) =>
    create(EventSchema, { id: `sevt_${position}`, position, type, payload: JSON.stringify(payload) });
  const history = [
    event(2n, "user.message", { content: [{ type: "text", text: "42, it's\n\nresult: it's 42" }] }),
    event(3n, "agent.tool_use", { name: "bash", input: { command: "echo 42 it's" } }),
    event(4n, "agent.tool_result", { content: [{ type: "text", text: result }] }),
    event(10n, "agent.tool_result", { content: [{ type: "text", text: "42 it's, too late" }] }),
  ];
  const { system, text } = graderQuestion(outcome, evaluation, history);
  expect(asksForVerdict(system)).toBe(true);
  return verdictOf({ text: demoVerdict(text), stop: { kind: "done", reason: "end_turn" } })!;
}

it("judges each line of the rubric by results and outputs, and says what would do", () => {
  const verdict = verdictOver("41");
  expect(verdict.criteria.map(({ criterion, met }) => [criterion, met])).toEqual([
    ["contains: 42", false],
    ["contains: it's", false],
    ["Something was done.", true],
  ]);
  expect(verdict.explanation).toContain("\nrun: printf '%s\\n' 'it'\\''s'\n");
  expect(verdictOver("it's 42").result).toBe("satisfied");
  const files = [{ path: "a.txt", bytes: 7, text: "it's 42" }];
  expect(verdictOver("nothing", files).result).toBe("satisfied");
});

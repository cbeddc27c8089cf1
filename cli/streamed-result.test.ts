import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { ExecutionOutcome, ExecutionResultSchema } from "../proto/gen/tendon/v1/hand_pb.js";
import { failureLine, StreamedTail, unstreamedText } from "./streamed-result.ts";

function rest(streamed: string, ...texts: string[]): string {
  const tail = new StreamedTail();
  for (let at = 0; at < streamed.length; at += 1000) tail.push(Buffer.from(streamed.slice(at, at + 1000)));
  return unstreamedText(JSON.stringify(texts.map((text) => ({ type: "text", text }))), tail);
}

const RESET = "[the next command gets a new shell: working directory and variables are reset]";

test("of a result whose output was streamed only the rest is left", () => {
  expect(rest("a\nb\n", "a\nb")).toBe("");
  expect(rest("a\n\u001b[31mb\u001b[0m\n\n", `a\nb\n${RESET}`)).toBe(RESET);
  expect(rest("b\n", "[the hand was resumed]", "b")).toBe("[the hand was resumed]");
  expect(rest("b\n", `b\nbash: bash command timed out after 5ms\n[killed]\n${RESET}`)).toBe(
    `bash: bash command timed out after 5ms\n[killed]\n${RESET}`,
  );
  expect(rest("\n\n", `(no output)\n${RESET}`)).toBe(RESET);
});

test("a result without streamed output is told as a whole", () => {
  expect(rest("", "all of it\nand more")).toBe("all of it\nand more");
});

test("notes are found where the streamed output is not in the result as it was", () => {
  const long = "x".repeat(200_000);
  expect(rest(long, `xxx[cut]xxx\n${RESET}`)).toBe(RESET);
  expect(rest(long, "xxx[cut]xxx")).toBe("");
  expect(rest("odd\rline\n", `other\n${RESET}`)).toBe(RESET);
});

test("a failure is told by what happened and why", () => {
  const line = (init: MessageInitShape<typeof ExecutionResultSchema>) =>
    failureLine(create(ExecutionResultSchema, { isError: true, ...init }));
  const { COMPLETED, TIMED_OUT, NOT_STARTED, UNKNOWN } = ExecutionOutcome;
  expect(line({ outcome: COMPLETED, exit: { code: 3 } })).toBe("the command failed, exit code 3");
  expect(line({ outcome: COMPLETED })).toBe("the call failed");
  expect(line({ outcome: TIMED_OUT, exit: { code: -1, signal: "SIGKILL" } })).toBe(
    "the call timed out, SIGKILL",
  );
  expect(line({ outcome: TIMED_OUT, failure: { part: "sandbox", reason: "STALLED" } })).toBe(
    "the call was ended: it showed no progress, sandbox STALLED",
  );
  expect(line({ outcome: NOT_STARTED, failure: { part: "hand_agent", reason: "INTERNAL" } })).toBe(
    "the call was not started, hand_agent INTERNAL",
  );
  expect(line({ outcome: UNKNOWN })).toBe("the outcome of the call is unknown");
});

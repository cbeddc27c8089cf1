import { expect, test } from "vitest";
import { ctrlCAction } from "./ctrl-c.ts";

const resting = { isInteractive: true, turn: "none", typed: "", isAskedAgain: false } as const;

test("Ctrl-C interrupts the agent, and again quits", () => {
  expect(ctrlCAction({ ...resting, turn: "runs" })).toBe("interrupt");
  expect(ctrlCAction({ ...resting, turn: "interrupted" })).toBe("quit");
});

test("at the prompt it clears what was typed; on an empty line it quits only when it is said again", () => {
  expect(ctrlCAction({ ...resting, typed: "rm -rf", isAskedAgain: true })).toBe("clear_line");
  expect(ctrlCAction(resting)).toBe("ask_again");
  expect(ctrlCAction({ ...resting, isAskedAgain: true })).toBe("quit");
});

test("without a terminal it ends a chat that rests", () => {
  expect(ctrlCAction({ ...resting, isInteractive: false })).toBe("quit");
});

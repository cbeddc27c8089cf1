import { expect, test } from "vitest";
import { hasTurnBegun, type TurnEvent } from "./begun-turn.ts";

const event = (type: string, payload: object = {}): TurnEvent => ({ type, payload: JSON.stringify(payload) });
const message = event("user.message");
const rested = event("session.status_idle", { stop_reason: { type: "end_turn" } });
const asks = event("session.status_idle", {
  stop_reason: { type: "requires_action", event_ids: ["a", "b"] },
});
const confirmed = event("user.tool_confirmation", { tool_use_id: "a", result: "allow" });
const answered = event("user.custom_tool_result", { custom_tool_use_id: "b", content: [] });
const interrupt = event("user.interrupt");
const keeping = event("user.interrupt", { keeps_queued: true });

/** In the order in which they came. */
const begun = (...events: TurnEvent[]) => hasTurnBegun(events.reverse(), false);
const goesOn = (...events: TurnEvent[]) => hasTurnBegun(events.reverse(), true);

test("what is said to a session that rests begins a turn, and what was said before it rested does not", () => {
  expect(begun(message)).toBe(true);
  expect(begun(message, rested, message)).toBe(true);
  expect(begun(rested, event("user.define_outcome"))).toBe(true);
  expect(begun(message, rested)).toBe(false);
  expect(begun(rested, interrupt)).toBe(false);
});

test("one that waits for answers goes on once it has all of them", () => {
  expect(goesOn(asks, confirmed)).toBe(false);
  expect(goesOn(asks, message, confirmed)).toBe(false);
  expect(goesOn(asks, confirmed, answered)).toBe(true);
  // Answers to what it asked before.
  expect(goesOn(asks, confirmed, answered, asks)).toBe(false);
});

test("one that waits for answers and is interrupted goes on with what is said to it, unless that is to wait on", () => {
  expect(goesOn(asks, interrupt)).toBe(false);
  expect(goesOn(asks, interrupt, message)).toBe(true);
  expect(goesOn(asks, message, interrupt)).toBe(true);
  expect(goesOn(asks, message, keeping)).toBe(false);
  expect(goesOn(asks, message, keeping, message)).toBe(true);
});

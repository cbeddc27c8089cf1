import { expect, test } from "vitest";
import { slotFrom } from "./hand-slot.ts";

test("a slot that is left out is the default slot", () => {
  expect(slotFrom({})).toEqual({ slot: "" });
  expect(slotFrom({ slot: "gpu" })).toEqual({ slot: "gpu" });
  expect(slotFrom({ tool: "bash" }, "hand")).toEqual({ slot: "" });
});

test("a slot under the name that another tool has for it is a mistake, never the default slot", () => {
  expect(slotFrom({ hand: "gpu" })).toEqual({ problem: 'This tool calls the slot "slot", not "hand".' });
  expect(slotFrom({ slot: "gpu" }, "hand")).toEqual({
    problem: 'This tool calls the slot "hand", not "slot".',
  });
  expect(slotFrom({ slot: "gpu", to_session: "sesn_1" }, "to_slot")).toEqual({ slot: "" });
});

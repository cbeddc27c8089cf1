/** How tools of the brain speak of a session's hands: by the slots that they have (pure). */
import type { Json } from "../event-payload.ts";

/** The schema of a member that names a slot. */
export const SLOT_SCHEMA = {
  type: "string",
  description: "Name of the hand's slot, as hand_list shows it; leave out for the default slot.",
};

/** Names of the same thing in other tools, which a model may mix up. */
const MISTAKEN: Readonly<Record<string, string>> = { slot: "hand", hand: "slot" };

/** The slot that a member of the input names, or what is wrong with it. */
export function slotFrom(input: Json, member = "slot"): { slot: string } | { problem: string } {
  // Left out it would mean the default slot: what was meant for another hand must not reach, or remove, that one.
  const mistaken = MISTAKEN[member];
  if (mistaken !== undefined && input[member] === undefined && input[mistaken] !== undefined) {
    return { problem: `This tool calls the slot "${member}", not "${mistaken}".` };
  }
  const value = input[member] ?? "";
  if (typeof value !== "string") return { problem: `"${member}" must be a text: the name of a slot.` };
  const isName = /^([a-z0-9][a-z0-9_-]{0,31})?$/.test(value) && !value.includes("__") && value !== "mcp";
  if (isName) return { slot: value };
  const rule = 'up to 32 of a-z, 0-9, "_" and "-", beginning with a letter or digit, without "__", not "mcp"';
  return { problem: `${JSON.stringify(value.slice(0, 100))} is no name of a slot: ${rule}.` };
}

export function slotText(slot: string): string {
  return slot === "" ? "the default slot" : `the slot "${slot}"`;
}

/** `hand_release`: gives a hand back. */
import type { Json } from "../event-payload.ts";
import { type BrainCall, type BrainTool, type BrainToolResult, refusal } from "./brain-tool.ts";
import { SLOT_SCHEMA, slotFrom, slotText } from "./hand-slot.ts";
import { CALL_WITHIN_MS, handInSlot, handOfLaterEvent } from "./session-hands.ts";

export const handRelease: BrainTool = {
  name: "hand_release",
  description:
    "Give back a hand (an execution environment) that is not needed any more: its processes are ended and its files are removed for good.",
  inputSchema: JSON.stringify({ type: "object", properties: { slot: SLOT_SCHEMA } }),
  run: release,
};

async function release(input: Json, call: BrainCall, signal: AbortSignal): Promise<BrainToolResult> {
  const read = slotFrom(input);
  if ("problem" in read) return refusal(read.problem);
  const { slot } = read;
  const before = await handOfLaterEvent(call, "hand.released", slot, signal);
  if (before !== undefined) return released(before.handId, slot);
  const hand = await handInSlot(call, slot, signal);
  if (hand === undefined) return refusal(`There is no hand in ${slotText(slot)} now.`);
  const request = { handId: hand.id, lease: call.lease.proof };
  await call.server.hands.releaseHand(request, { signal, deadlineMs: CALL_WITHIN_MS });
  return released(hand.id, slot);
}

function released(handId: string, slot: string): BrainToolResult {
  return { text: `${handId} in ${slotText(slot)} is released: its files and processes are gone.` };
}

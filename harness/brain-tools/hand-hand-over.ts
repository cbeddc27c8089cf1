/** `hand_hand_over`: passes a hand to another session, with everything in it. */
import { isTendonError } from "../../kit/errors.ts";
import type { Json } from "../event-payload.ts";
import { type BrainCall, type BrainTool, type BrainToolResult, refusal } from "./brain-tool.ts";
import { SLOT_SCHEMA, slotFrom, slotText } from "./hand-slot.ts";
import { CALL_WITHIN_MS, handInSlot, handOfLaterEvent } from "./session-hands.ts";

export const handHandOver: BrainTool = {
  name: "hand_hand_over",
  description:
    "Pass a hand (an execution environment) of this session on to another session, with its files and running processes. It is gone from here afterwards; no call may run in it meanwhile.",
  inputSchema: JSON.stringify({
    type: "object",
    properties: {
      slot: SLOT_SCHEMA,
      to_session: { type: "string", description: "Id of the session that gets it." },
      to_slot: {
        type: "string",
        description: "Slot that it gets there, which must be free; leave out for the default slot.",
      },
    },
    required: ["to_session"],
  }),
  run: handOver,
};

async function handOver(input: Json, call: BrainCall, signal: AbortSignal): Promise<BrainToolResult> {
  const from = slotFrom(input);
  if ("problem" in from) return refusal(from.problem);
  const to = slotFrom(input, "to_slot");
  if ("problem" in to) return refusal(to.problem);
  const toSessionId = input.to_session;
  if (typeof toSessionId !== "string" || toSessionId === "" || toSessionId.length > 70) {
    return refusal('"to_session" must be the id of a session.');
  }
  const { server, eventId, lease } = call;
  const done = { from: from.slot, to: toSessionId, toSlot: to.slot };
  const before = await handOfLaterEvent(call, "hand.handed_over", from.slot, signal);
  if (before?.payload.to_session_id === toSessionId) return handedOver(before.handId, done);
  const hand = await handInSlot(call, from.slot, signal);
  if (hand === undefined) return refusal(`There is no hand in ${slotText(from.slot)} now.`);
  const request = { requestId: eventId, handId: hand.id, toSessionId, toSlot: to.slot, lease: lease.proof };
  try {
    await server.hands.handOver(request, { signal, deadlineMs: CALL_WITHIN_MS });
  } catch (error) {
    // Of the other one: it is not this session that is over.
    if (isTendonError(error, "SESSION_ARCHIVED")) return refusal(error.message);
    throw error;
  }
  return handedOver(hand.id, done);
}

function handedOver(
  handId: string,
  { from, to, toSlot }: { from: string; to: string; toSlot: string },
): BrainToolResult {
  return { text: `${handId} of ${slotText(from)} is now the hand of ${to} in ${slotText(toSlot)}.` };
}

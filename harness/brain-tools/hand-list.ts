/** `hand_list`: which hands the session has, and which it could have. */
import { type Hand, HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { Json } from "../event-payload.ts";
import { type BrainCall, type BrainTool, type BrainToolResult, refusal } from "./brain-tool.ts";
import { SLOT_SCHEMA, slotFrom, slotText } from "./hand-slot.ts";
import { CALL_WITHIN_MS, livingHands } from "./session-hands.ts";

export const handList: BrainTool = {
  name: "hand_list",
  description:
    "List the hands (execution environments) of this session: their slots, states and tools, and the slots that have no hand yet. With a slot: how the tools of that one hand are called.",
  inputSchema: JSON.stringify({ type: "object", properties: { slot: SLOT_SCHEMA } }),
  run: (input, call, signal) =>
    input.slot === undefined ? listAll(call, signal) : showOne(input, call, signal),
};

async function listAll(call: BrainCall, signal: AbortSignal): Promise<BrainToolResult> {
  const { server, sessionId } = call;
  const within = { signal, deadlineMs: CALL_WITHIN_MS };
  const [hands, { session }] = await Promise.all([
    livingHands(call, signal),
    server.sessions.getSession({ sessionId }, within),
  ]);
  const slots = { "": session?.environmentId ?? "", ...session?.slotEnvironmentIds };
  const taken = new Set(hands.map(({ slot }) => slot));
  const lines = hands.map(handLine);
  for (const [slot, environmentId] of Object.entries(slots)) {
    if (taken.has(slot)) continue;
    lines.push(
      `- ${slotText(slot)}: no hand yet; the first call makes one, from environment ${environmentId}`,
    );
  }
  return { text: lines.join("\n") };
}

async function showOne(input: Json, call: BrainCall, signal: AbortSignal): Promise<BrainToolResult> {
  const read = slotFrom(input);
  if ("problem" in read) return refusal(read.problem);
  const hand = (await livingHands(call, signal)).find(({ slot }) => slot === read.slot);
  if (hand === undefined) return refusal(`There is no hand in ${slotText(read.slot)} now.`);
  const tools = hand.tools.map(
    ({ name, description, inputSchema }) => `## ${name}\n${description}\nInput schema: ${inputSchema}`,
  );
  return { text: [handLine(hand), ...tools].join("\n\n") };
}

/** One line about a hand, as all tools that speak of hands show it. */
export function handLine({ id, slot, state, stateDetail, environmentId, tools }: Hand): string {
  const detail = stateDetail === "" ? "" : ` (${stateDetail})`;
  const names = tools.map(({ name }) => name).join(", ");
  const offers = names === "" ? "" : `; tools: ${names}`;
  return `- ${slotText(slot)}: ${id}, ${HandState[state].toLowerCase()}${detail}, environment ${environmentId}${offers}`;
}

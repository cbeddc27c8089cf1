/** `hand_list`: which hands the session has, and which it could have. */
import { type Hand, HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { BrainCall, BrainTool, BrainToolResult } from "./brain-tool.ts";

const CALL_WITHIN_MS = 15_000;
const MAX_HANDS = 100;

export const handList: BrainTool = {
  name: "hand_list",
  description:
    "List the execution environments (hands) of this session: their slots, states and tools, and the slots that have none yet.",
  inputSchema: `{"type":"object","properties":{}}`,
  run: (_input, call, signal) => list(call, signal),
};

async function list({ server, sessionId }: BrainCall, signal: AbortSignal): Promise<BrainToolResult> {
  const within = { signal, deadlineMs: CALL_WITHIN_MS };
  const [{ hands, nextPageToken }, { session }] = await Promise.all([
    server.hands.listHands({ sessionId, pageSize: MAX_HANDS }, within),
    server.sessions.getSession({ sessionId }, within),
  ]);
  const slots = { "": session?.environmentId ?? "", ...session?.slotEnvironmentIds };
  const taken = new Set(hands.map(({ slot }) => slot));
  const lines = hands.map(handLine);
  for (const [slot, environmentId] of Object.entries(slots)) {
    if (!taken.has(slot)) {
      lines.push(
        `- ${slotText(slot)}: no hand yet; the first call makes one from environment ${environmentId}`,
      );
    }
  }
  if (nextPageToken !== "") lines.push(`[There are more than ${MAX_HANDS} hands.]`);
  return { text: lines.join("\n") };
}

/** One line about a hand, as all tools that speak of hands show it. */
export function handLine({ id, slot, state, stateDetail, environmentId, tools }: Hand): string {
  const detail = stateDetail === "" ? "" : ` (${stateDetail})`;
  const names = tools.map(({ name }) => name).join(", ");
  const offers = names === "" ? "" : `; tools: ${names}`;
  return `- ${slotText(slot)}: ${id}, ${HandState[state].toLowerCase()}${detail}, environment ${environmentId}${offers}`;
}

export function slotText(slot: string): string {
  return slot === "" ? "default slot" : `slot "${slot}"`;
}

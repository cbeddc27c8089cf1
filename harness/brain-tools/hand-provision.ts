/** `hand_provision`: makes a hand now, in a slot that the session declares or in a new one. */
import { isTendonError, TendonError } from "../../kit/errors.ts";
import type { Json } from "../event-payload.ts";
import { type BrainCall, type BrainTool, type BrainToolResult, refusal } from "./brain-tool.ts";
import { handLine } from "./hand-list.ts";
import { SLOT_SCHEMA, slotFrom } from "./hand-slot.ts";
import { CALL_WITHIN_MS } from "./session-hands.ts";

/** Longer than an environment may take for it: the server ends the attempt. */
const PROVISION_WITHIN_MS = 3_700_000;

export const handProvision: BrainTool = {
  name: "hand_provision",
  description:
    "Make a hand (an execution environment with files and processes of its own) and wait until it is ready. A slot that has one keeps it. Tools of a hand in a slot that you have no tools of are called with hand_execute. Hands that a slot of yours declares are also made by their first call.",
  inputSchema: JSON.stringify({
    type: "object",
    properties: {
      slot: {
        ...SLOT_SCHEMA,
        description: "Name of the hand's slot, old or new; leave out for the default slot.",
      },
      environment: {
        type: "string",
        description:
          "Id of one of this session's environments, as hand_list shows them. Left out: the slot's own, else that of the default slot.",
      },
    },
  }),
  run: provision,
};

async function provision(input: Json, call: BrainCall, signal: AbortSignal): Promise<BrainToolResult> {
  const read = slotFrom(input);
  if ("problem" in read) return refusal(read.problem);
  const { server, sessionId, eventId, lease } = call;
  const { session } = await server.sessions.getSession({ sessionId }, { signal, deadlineMs: CALL_WITHIN_MS });
  const own = new Set([session?.environmentId ?? "", ...Object.values(session?.slotEnvironmentIds ?? {})]);
  const environmentId = input.environment ?? "";
  // What an environment may reach was chosen by whoever made the session.
  if (typeof environmentId !== "string" || (environmentId !== "" && !own.has(environmentId))) {
    return refusal(`"environment" must be one of this session's environments: ${[...own].join(", ")}.`);
  }
  const request = { requestId: eventId, sessionId, slot: read.slot, environmentId, lease: lease.proof };
  const answer = await server.hands
    .provision(request, { signal, deadlineMs: PROVISION_WITHIN_MS })
    .catch((error) => {
      // Waiting makes no room: it may be this session that has all of them.
      if (isTendonError(error, "LIMIT_EXCEEDED") && error.metadata.limit === "hands") return error;
      throw error;
    });
  if (answer instanceof TendonError) return refusal(`The hand was not made: ${answer.message}.`);
  const { hand } = answer;
  if (hand === undefined) return refusal("The hand could not be made.");
  const other =
    environmentId !== "" && hand.environmentId !== environmentId
      ? `\nThis hand was there already, from another environment. Release it first to get one from ${environmentId}.`
      : "";
  return { text: `${handLine(hand)}${other}` };
}

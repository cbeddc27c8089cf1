/**
 * `hand_execute`: a tool of any hand of the session, also of one that came after the first model request. The list of tools
 * that the model is shown stays as it was, and with it the cached beginning of every request.
 *
 * It is no call of its own: the log has the call that it stands for, with the hand's slot, the tool's own name and input, and
 * `"via":"hand_execute"`. So it is bound, shown, permitted and answered as every other call of a hand (X1, X3).
 */

import { memberText } from "../../kit/json-slices.ts";
import { isObject, parseObject } from "../event-payload.ts";
import { type BrainTool, refusal } from "./brain-tool.ts";
import { SLOT_SCHEMA, slotFrom } from "./hand-slot.ts";

export const HAND_EXECUTE = "hand_execute";

export const handExecute: BrainTool = {
  name: HAND_EXECUTE,
  description:
    "Call a tool of a hand (an execution environment) of this session that you have no tool of your own for: one that was provisioned or handed over to you later. hand_list shows the hands, and how their tools are called.",
  inputSchema: JSON.stringify({
    type: "object",
    properties: {
      hand: SLOT_SCHEMA,
      tool: { type: "string", description: "Name of the tool, as the hand has it." },
      input: { type: "object", description: "Its input." },
    },
    required: ["tool", "input"],
  }),
  // An event that says otherwise was written by nobody who knew this tool.
  run: async () => refusal("This call names no hand, so it did not run."),
};

/** The call that a `hand_execute` stands for. */
export interface ReachedCall {
  readonly slot: string;
  readonly name: string;
  /** JSON text of one object, as the model wrote it. */
  readonly inputText: string;
}

/** `inputText` is JSON text of one object. */
export function reachedCall(inputText: string): ReachedCall | { problem: string } {
  const input = parseObject(inputText);
  const read = slotFrom(input, "hand");
  if ("problem" in read) return read;
  const { tool: name } = input;
  if (typeof name !== "string" || !/^[A-Za-z0-9_-]{1,128}$/.test(name)) {
    return { problem: '"tool" must be the name of a tool of the hand.' };
  }
  if (input.input !== undefined && !isObject(input.input)) {
    return { problem: '"input" must be an object: the input of the tool.' };
  }
  return { slot: read.slot, name, inputText: memberText(inputText, "input") ?? "{}" };
}

/** A tool use of the log as a call that waits for its result. Pure. */
import { memberText } from "../kit/json-slices.ts";
import type { Event } from "../proto/gen/tendon/v1/event_pb.js";
import {
  countOf,
  isObject,
  objectsOf,
  objectText,
  parseObject,
  payloadOf,
  stringOf,
} from "./event-payload.ts";
import type { OpenCall } from "./session-state.ts";

/** By `runs_in`. */
const RUN_ELSEWHERE: Readonly<Record<string, OpenCall["kind"]>> = { brain: "brain", proxy: "web" };

export function callOf(event: Event, kind: OpenCall["kind"]): OpenCall {
  const payload = payloadOf(event);
  const { name, hand, input, evaluated_permission: permission } = payload;
  const isReached = payload.via !== undefined;
  return {
    eventId: event.id,
    kind: kind === "hand" ? (RUN_ELSEWHERE[stringOf(payload.runs_in)] ?? kind) : kind,
    slot: stringOf(hand),
    server: stringOf(payload.mcp_server_name),
    name: stringOf(name),
    input: writtenInput(event, isReached) ?? JSON.stringify(isObject(input) ? input : {}),
    isReached,
    permission: permission === "ask" || permission === "deny" ? permission : "allow",
    answerTimeoutMs: countOf(payload.answer_timeout_ms),
    confirmation: undefined,
  };
}

/** The input byte for byte as the model wrote it; that of a reached call is part of what it wrote. */
function writtenInput(event: Event, isReached: boolean): string | undefined {
  if (isReached) return memberText(event.payload, "input");
  const block = objectsOf(parseObject(event.internal).blocks).find(({ type }) => type === "tool_use");
  return block === undefined ? undefined : objectText(stringOf(block.input_text));
}

/** What users, operators and other threads say, as blocks of a message. Pure. */
import type { Event } from "../../../proto/gen/tendon/v1/event_pb.js";
import { payloadOf, stringOf } from "../../event-payload.ts";
import { inputBlocks, textBlock } from "./blocks.ts";

/** Never empty. A thread's message says who speaks: to the model all of them are its user. */
export function spokenBlocks(event: Event): string[] {
  const payload = payloadOf(event);
  const blocks = inputBlocks(payload);
  if (event.type !== "agent.thread_message_received") return blocks;
  const agent = JSON.stringify(stringOf(payload.from_agent_name));
  const who =
    payload.from_parent === true
      ? `the agent ${agent}, which has made this thread`
      : `thread ${stringOf(payload.from_session_thread_id)}, agent ${agent}`;
  return [textBlock(`[Message from ${who}:]`), ...blocks];
}

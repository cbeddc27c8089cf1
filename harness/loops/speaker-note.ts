/** Who says what the model gets as its user's words, when it is not a user. Pure. */
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { payloadOf, stringOf } from "../event-payload.ts";

/** Undefined for words of users and operators. To a model all who speak are its user. */
export function speakerNote(event: Event): string | undefined {
  if (event.type !== "agent.thread_message_received") return undefined;
  const payload = payloadOf(event);
  const agent = JSON.stringify(stringOf(payload.from_agent_name));
  const who =
    payload.from_parent === true
      ? `the agent ${agent}, which has made this thread`
      : `thread ${stringOf(payload.from_session_thread_id)}, agent ${agent}`;
  return `[Message from ${who}:]`;
}

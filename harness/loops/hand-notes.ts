/** What the model is told about its hands, besides results. Pure. */
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { payloadOf, stringOf } from "../event-payload.ts";

function environmentNamed(slot: string): string {
  return slot === "" ? "The execution environment" : `The execution environment "${slot}"`;
}

export function handedOverNote(event: Event): string {
  const { slot, to_session_id: toSessionId } = payloadOf(event);
  const which = environmentNamed(stringOf(slot));
  return stringOf(toSessionId) === ""
    ? `[${which} was handed over to you by another session, with the files and processes that it has.]`
    : `[${which} was handed over to another session, with its files and processes. The next tool call gets a new, empty one.]`;
}

export function lostNote(event: Event): string {
  const { slot, detail } = payloadOf(event);
  const which = environmentNamed(stringOf(slot));
  const why = stringOf(detail) === "" ? "" : ` (${stringOf(detail)})`;
  return `[${which} was lost${why}: its files and processes are gone. The next tool call gets a new, empty one.]`;
}

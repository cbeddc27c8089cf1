/** What users, operators and other threads say, as blocks of a message. Pure. */
import type { Event } from "../../../proto/gen/tendon/v1/event_pb.js";
import { payloadOf } from "../../event-payload.ts";
import { speakerNote } from "../speaker-note.ts";
import { inputBlocks, textBlock } from "./blocks.ts";

/** Never empty. */
export function spokenBlocks(event: Event): string[] {
  const blocks = inputBlocks(payloadOf(event));
  const note = speakerNote(event);
  return note === undefined ? blocks : [textBlock(note), ...blocks];
}

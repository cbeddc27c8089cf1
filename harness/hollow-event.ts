/**
 * An event without the bytes of its images and documents, for a brain whose requests show none of them any more. All else
 * stays, so that what is counted, named or cut short comes out as before. Pure.
 */
import { create } from "@bufbuild/protobuf";
import { type Event, EventSchema } from "../proto/gen/tendon/v1/event_pb.js";
import { isObject, payloadOf } from "./event-payload.ts";

/** Of each file's data, so that it stays longer than any note that takes its place. */
const KEPT_CHARS = 4_096;

/** The same event where that has nothing to spare. */
export function hollowEvent(event: Event): Event {
  if (event.payload.length <= KEPT_CHARS) return event;
  const payload = payloadOf(event);
  const { content: given } = payload;
  if (!Array.isArray(given)) return event;
  const content = given.map(hollowBlock);
  const isSame = content.every((block, i) => block === given[i]);
  return isSame ? event : create(EventSchema, { ...event, payload: JSON.stringify({ ...payload, content }) });
}

function hollowBlock(block: unknown): unknown {
  if (!isObject(block) || (block.type !== "image" && block.type !== "document")) return block;
  const { source } = block;
  if (!isObject(source) || typeof source.data !== "string" || source.data.length <= KEPT_CHARS) return block;
  return { ...block, source: { ...source, data: source.data.slice(0, KEPT_CHARS) } };
}

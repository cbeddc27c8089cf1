/**
 * Files that a client named as the source of an image or a document: their bytes, which the server put beside the event, in
 * place of their ids. Loops see them as if the client had sent them. Pure.
 */
import { create } from "@bufbuild/protobuf";
import { type Event, EventSchema } from "../proto/gen/tendon/v1/event_pb.js";
import { isObject, type Json, parseObject, payloadOf } from "./event-payload.ts";

/** Other events stay as they are. */
export function withGivenFiles(event: Event): Event {
  if (!event.type.startsWith("user.") || event.internal === "") return event;
  const { files } = parseObject(event.internal);
  if (!isObject(files)) return event;
  const payload = payloadOf(event);
  if (!Array.isArray(payload.content)) return event;
  const content = payload.content.map((block: unknown) => (isObject(block) ? shown(block, files) : block));
  return create(EventSchema, { ...event, payload: JSON.stringify({ ...payload, content }), internal: "" });
}

function shown(block: Json, files: Json): Json {
  const { source } = block;
  if (!isObject(source) || source.type !== "file" || typeof source.file_id !== "string") return block;
  const file = Object.hasOwn(files, source.file_id) ? files[source.file_id] : undefined;
  if (!isObject(file)) return block;
  const { media_type, data, text } = file;
  const inline =
    typeof text === "string"
      ? { type: "text", media_type, data: text }
      : { type: "base64", media_type, data };
  return { ...block, source: inline };
}

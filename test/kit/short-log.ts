/** A session's log in short, for tests of what is made of it. */
import { create } from "@bufbuild/protobuf";
import { type Event, EventSchema } from "../../proto/gen/tendon/v1/event_pb.js";

export type ShortEvent = readonly [type: string, payload?: object, internal?: object];

/** Ids are `e` and the position. */
export function shortLog(...events: readonly ShortEvent[]): Event[] {
  return events.map(([type, payload = {}, internal], i) =>
    create(EventSchema, {
      id: `e${i + 1}`,
      position: BigInt(i + 1),
      type,
      payload: JSON.stringify(payload),
      internal: internal === undefined ? "" : JSON.stringify(internal),
    }),
  );
}

/** A call of the model's, by the model's own id for it. */
export const shortCall = (id: string, name = "web_fetch"): ShortEvent => [
  "agent.tool_use",
  { name },
  { v: 1, blocks: [{ type: "tool_use", id, name, input_text: "{}" }] },
];

/** `tool_use_id`: of the call's event. */
export const shortResult = (tool_use_id: string, ...content: object[]): ShortEvent => [
  "agent.tool_result",
  { tool_use_id, content, is_error: false },
];

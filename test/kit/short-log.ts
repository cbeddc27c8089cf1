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

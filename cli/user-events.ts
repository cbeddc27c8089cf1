/** The events that a person at a terminal sends. Each has an id of its own, so that sending it again does no harm. */
import { create } from "@bufbuild/protobuf";
import { newId } from "../kit/ids.ts";
import { type EventInput, EventInputSchema } from "../proto/gen/tendon/v1/event_pb.js";

export function userMessage(text: string): EventInput {
  return clientEvent("user.message", JSON.stringify({ content: [{ type: "text", text }] }));
}

export function userInterrupt(): EventInput {
  return clientEvent("user.interrupt", "{}");
}

/** What the session is to reach, judged by the rubric. */
export function defineOutcome(
  description: string,
  rubric:
    | { readonly type: "text"; readonly content: string }
    | { readonly type: "file"; readonly file_id: string },
  maxIterations: number | undefined,
): EventInput {
  const limit = maxIterations === undefined ? {} : { max_iterations: maxIterations };
  const payload = { description, rubric, ...limit };
  return clientEvent("user.define_outcome", JSON.stringify(payload));
}

/** `payload` is JSON text of one object. */
export function clientEvent(type: string, payload: string, id = newId("event")): EventInput {
  return create(EventInputSchema, { id, type, payload });
}

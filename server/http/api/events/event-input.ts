/** Events that clients send: what they wrote is kept byte for byte (pure). */
import { create } from "@bufbuild/protobuf";
import { invalidField } from "../../../../kit/errors.ts";
import { elementsOf, membersOf, memberText, objectText } from "../../../../kit/json-slices.ts";
import { type EventInput, EventInputSchema } from "../../../../proto/gen/tendon/v1/event_pb.js";
import type { Fields } from "../fields.ts";
import type { RequestBody } from "../request-body.ts";
import { BESIDE } from "./event-json.ts";

const BEFORE_SYSTEM = new Set(["user.message", "user.tool_result", "user.custom_tool_result"]);

/** Of `POST …/events`. */
export function sentEvents({ fields, text }: RequestBody): EventInput[] {
  fields.only("events");
  const events = fields.objects("events") ?? [];
  if (events.length === 0) throw invalidField("events", "must hold at least one event");
  const texts = elementsOf(memberText(text, "events") ?? "[]");
  checkSystemMessage(events);
  return events.map((event, at) => eventInput(event, texts[at]!));
}

/** `text` is that of `event`. */
export function eventInput(event: Fields, text: string): EventInput {
  const type = event.requiredText("type");
  const payload = objectText(membersOf(text).filter(({ name }) => !BESIDE.has(name)));
  return create(EventInputSchema, { id: event.text("id") ?? "", type, payload });
}

/** At most one, the last, and directly after what it goes with. */
function checkSystemMessage(events: readonly Fields[]): void {
  const at = events.findIndex((event) => event.value.type === "system.message");
  if (at < 0) return;
  const path = `events[${at}].type`;
  if (at !== events.length - 1) throw invalidField(path, "a system.message must be the last event");
  const before = events[at - 1]?.value.type;
  if (typeof before === "string" && BEFORE_SYSTEM.has(before)) return;
  throw invalidField(path, `a system.message must directly follow ${[...BEFORE_SYSTEM].join(" or ")}`);
}

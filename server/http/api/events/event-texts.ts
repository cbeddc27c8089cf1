/** Texts of events, also of those whose payload is too large to come with the others. */
import type { Event } from "../../../../proto/gen/tendon/v1/event_pb.js";
import { SessionService } from "../../../../proto/gen/tendon/v1/session_service_pb.js";
import { membersOf } from "../agents/roster.ts";
import type { ServiceCaller } from "../service-caller.ts";
import { eventText } from "./event-json.ts";
import { agentOf } from "./own-words.ts";

/** Whether its text follows from the event alone. */
export function isWhole({ type, payloadOmitted }: Event): boolean {
  return payloadOmitted === undefined && type !== "session.updated";
}

export async function wholeEventText(
  services: ServiceCaller,
  sessionId: string,
  event: Event,
): Promise<string> {
  if (isWhole(event)) return eventText(event);
  const payload =
    event.payloadOmitted === undefined ? event.payload : await readPayload(services, sessionId, event.id);
  if (event.type !== "session.updated") return eventText(event, payload);
  return eventText(event, payload, await membersOf(services, [agentOf(payload)?.spec]));
}

async function readPayload(services: ServiceCaller, sessionId: string, eventId: string): Promise<string> {
  const chunks: Uint8Array[] = [];
  const request = { sessionId, eventId };
  for await (const { chunk } of services.stream(SessionService.method.readPayload, request)) {
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString();
}

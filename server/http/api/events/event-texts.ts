/** Texts of events, also of those whose payload is too large to come with the others. */
import type { Event } from "../../../../proto/gen/tendon/v1/event_pb.js";
import { SessionService } from "../../../../proto/gen/tendon/v1/session_service_pb.js";
import type { ServiceCaller } from "../service-caller.ts";
import { eventText } from "./event-json.ts";

export async function wholeEventText(
  services: ServiceCaller,
  sessionId: string,
  event: Event,
): Promise<string> {
  if (event.payloadOmitted === undefined) return eventText(event);
  const chunks: Uint8Array[] = [];
  const request = { sessionId, eventId: event.id };
  for await (const { chunk } of services.stream(SessionService.method.readPayload, request)) {
    chunks.push(chunk);
  }
  return eventText(event, Buffer.concat(chunks).toString());
}

/** What the server says of a session's hands, for the tools that work on them. */
import type { Hand } from "../../proto/gen/tendon/v1/hand_pb.js";
import { payloadOf } from "../event-payload.ts";
import type { BrainCall } from "./brain-tool.ts";

export const CALL_WITHIN_MS = 15_000;
const PAGE = 100;
/** A session that holds more hands than this is not shown the rest. */
const MAX_PAGES = 10;
const MAX_EVENTS = 1_000;

/** Living hands of the session, newest first. */
export async function livingHands(
  call: Pick<BrainCall, "server" | "sessionId">,
  signal: AbortSignal,
): Promise<Hand[]> {
  const { server, sessionId } = call;
  const found: Hand[] = [];
  let pageToken = "";
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const request = { sessionId, pageSize: PAGE, pageToken };
    const answer = await server.hands.listHands(request, { signal, deadlineMs: CALL_WITHIN_MS });
    found.push(...answer.hands);
    pageToken = answer.nextPageToken;
    if (pageToken === "") break;
  }
  return found;
}

export async function handInSlot(
  call: BrainCall,
  slot: string,
  signal: AbortSignal,
): Promise<Hand | undefined> {
  return (await livingHands(call, signal)).find((hand) => hand.slot === slot);
}

/**
 * The hand of the slot that such an event after the call itself speaks of. A call that is run again finds what it did the
 * first time, instead of doing it to the next hand of the slot.
 */
export async function handOfLaterEvent(
  call: BrainCall,
  type: "hand.released" | "hand.handed_over",
  slot: string,
  signal: AbortSignal,
): Promise<{ handId: string; payload: Record<string, unknown> } | undefined> {
  const { server, sessionId, eventId } = call;
  const { events } = await server.sessions.getEvents(
    { sessionId, afterEventId: eventId, types: [type], limit: MAX_EVENTS },
    { signal, deadlineMs: CALL_WITHIN_MS },
  );
  for (const payload of events.map(payloadOf)) {
    if (payload.slot === slot) return { handId: String(payload.hand_id), payload };
  }
  return undefined;
}

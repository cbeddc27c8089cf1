/** From what a caller names to the positions that bound a slice. */
import { notFound } from "../../kit/errors.ts";
import { isId } from "../../kit/ids.ts";
import { EventOrder, type GetEventsRequest } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { EventStore } from "../store/events.ts";
import { startOf } from "./watch.ts";

export interface SliceBounds {
  readonly afterPosition: number;
  readonly beforePosition: number | undefined;
  readonly descending: boolean;
}

/** NOT_FOUND for an event that a cursor names, RESYNC for a position that the log has not reached. */
export async function boundsOf(
  events: Pick<EventStore, "positionOf" | "firstOfTypes">,
  request: GetEventsRequest,
  head: number,
): Promise<SliceBounds> {
  const { sessionId, afterEventId, beforeEventId, untilTypes } = request;
  const find = async (eventId: string): Promise<number> => {
    const position = isId("event", eventId) ? await events.positionOf(sessionId, eventId) : undefined;
    if (position === undefined) throw notFound("event", eventId);
    return position;
  };
  const descending = request.order === EventOrder.DESCENDING;
  let after = startOf(sessionId, request.afterPosition, head);
  let before = request.beforePosition === 0n ? Number.POSITIVE_INFINITY : Number(request.beforePosition);
  if (afterEventId !== "") after = Math.max(after, await find(afterEventId));
  if (beforeEventId !== "") before = Math.min(before, await find(beforeEventId));
  // No log is longer than what a number holds exactly.
  const beforePosition = () => (before > Number.MAX_SAFE_INTEGER ? undefined : before);
  if (untilTypes.length > 0) {
    const slice = {
      sessionId,
      afterPosition: after,
      beforePosition: beforePosition(),
      descending,
      types: untilTypes,
    };
    const end = await events.firstOfTypes(slice);
    // What is appended meanwhile lies behind the end that was found; without one there is none yet.
    if (end !== undefined && descending) after = end - 1;
    else if (end !== undefined) before = end + 1;
  }
  return { afterPosition: after, beforePosition: beforePosition(), descending };
}

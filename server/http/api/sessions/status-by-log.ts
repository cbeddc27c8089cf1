/** How sessions stand, where their logs say more than they do themselves. */
import { type Session, SessionStatus, StopReason } from "../../../../proto/gen/tendon/v1/session_pb.js";
import { EventOrder, SessionService } from "../../../../proto/gen/tendon/v1/session_service_pb.js";
import { hasTurnBegun, MOST_TURN_EVENTS, TURN_EVENTS } from "../../../store/begun-turn.ts";
import type { ServiceCaller } from "../service-caller.ts";

const IDLE = "session.status_idle";
const THREADS = [IDLE, "session.threads_ask", "session.threads_go_on"];
/** What is said in a turn may be large, and is not needed to tell how the session stands. */
const INLINE_BYTES = 65_536;

/**
 * A session runs from the moment it is told something, not only once a brain has come to it. Its last idle event ends that,
 * also while the brain still is about to give the session back. One that waits for threads is idle while these wait for a
 * client. Undefined where the log says no more.
 */
export async function statusByLog(
  services: ServiceCaller,
  { id, status, stopReason, hasWork }: Session,
): Promise<"running" | "idle" | undefined> {
  if (status !== SessionStatus.IDLE) return undefined;
  const newest = async (types: readonly string[], limit: number) => {
    const back = { order: EventOrder.DESCENDING, limit, untilTypes: [IDLE], inlineLimitBytes: INLINE_BYTES };
    const request = { sessionId: id, types: [...types], ...back };
    return (await services.call(SessionService.method.getEvents, request)).events;
  };
  if (stopReason === StopReason.WAITING_FOR_THREADS)
    return (await newest(THREADS, 1))[0]?.type === "session.threads_ask" ? "idle" : undefined;
  if (!hasWork || stopReason === StopReason.BUDGET_REACHED) return undefined;
  const said = (await newest(TURN_EVENTS, MOST_TURN_EVENTS)).filter(({ threadId }) => threadId === "");
  return hasTurnBegun(said, stopReason === StopReason.REQUIRES_ACTION) ? "running" : undefined;
}

/** How sessions stand, where their logs say more than they do themselves. */
import { type Session, SessionStatus, StopReason } from "../../../../proto/gen/tendon/v1/session_pb.js";
import { EventOrder, SessionService } from "../../../../proto/gen/tendon/v1/session_service_pb.js";
import type { ServiceCaller } from "../service-caller.ts";

const IDLE = "session.status_idle";
/** What a brain begins to work on once it is said. */
const BEGINS = ["user.message", "user.define_outcome"];
const ASK = "session.threads_ask";
const GO_ON = "session.threads_go_on";
/** What is said to a session that rests for these reasons waits for something else. */
const WAITS: ReadonlySet<StopReason> = new Set([StopReason.REQUIRES_ACTION, StopReason.BUDGET_REACHED]);

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
  const newest = async (...types: string[]) => {
    const request = { sessionId: id, types, order: EventOrder.DESCENDING, limit: 1 };
    const { events } = await services.call(SessionService.method.getEvents, request);
    return events[0]?.type;
  };
  if (stopReason === StopReason.WAITING_FOR_THREADS)
    return (await newest(IDLE, ASK, GO_ON)) === ASK ? "idle" : undefined;
  if (!hasWork || WAITS.has(stopReason)) return undefined;
  const type = await newest(IDLE, ...BEGINS);
  return type !== undefined && type !== IDLE ? "running" : undefined;
}

/**
 * Calls that no client has answered in the time that their agent allows get the answer that their event names for that case.
 * The server gives it, because nobody holds a session that waits.
 */
import { create } from "@bufbuild/protobuf";
import { type FailureOrigin, isTendonError, messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import { type EventInput, EventInputSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import type { SessionLog } from "../ports/session-log.ts";
import type { ClientCallStore, OverdueSession, WaitingCall } from "../store/client-calls.ts";

export interface OverdueDeps {
  readonly clientCalls: Pick<ClientCallStore, "overdue" | "setDue">;
  readonly sessionLog: Pick<SessionLog, "append">;
  readonly log: Logger;
}

/** Sessions that are looked at in one round. */
const SESSIONS_AT_ONCE = 100;

/** One failure keeps no other session waiting; what is left is found in the next round. */
export async function answerOverdue({ clientCalls, sessionLog, log }: OverdueDeps): Promise<void> {
  for (const session of await clientCalls.overdue(SESSIONS_AT_ONCE)) {
    const { sessionId, head } = session;
    const { events, nextMs } = verdictsFor(session);
    try {
      if (events.length > 0) await sessionLog.append({ sessionId, events, expectedPosition: BigInt(head) });
      await clientCalls.setDue(sessionId, nextMs);
    } catch (error) {
      // Somebody said something meanwhile: whether there is still a call to answer is looked at anew.
      if (isTendonError(error, "POSITION_MISMATCH")) continue;
      log.warn({ sessionId, error: messageOf(error) }, "could not answer a call whose time is over");
    }
  }
}

/** What the server says now, and in how many milliseconds it has to look again (pure). */
export function verdictsFor({ calls }: Pick<OverdueSession, "calls">): {
  events: EventInput[];
  nextMs: number | undefined;
} {
  const events: EventInput[] = [];
  let nextMs: number | undefined;
  for (const call of calls) {
    const { timeoutMs, verdict } = termsOf(call);
    if (timeoutMs === undefined) continue;
    if (call.waitedMs >= timeoutMs) events.push(answer(call, timeoutMs, verdict));
    else nextMs = Math.min(nextMs ?? Number.POSITIVE_INFINITY, timeoutMs - call.waitedMs);
  }
  return { events, nextMs };
}

/** As the brain recorded them with the call, when its agent had them. */
function termsOf({ payload }: WaitingCall): { timeoutMs: number | undefined; verdict: "allow" | "deny" } {
  const { answer_timeout_ms: timeoutMs, timeout_verdict: verdict } = JSON.parse(payload) as Record<
    string,
    unknown
  >;
  const isTime = typeof timeoutMs === "number" && Number.isFinite(timeoutMs) && timeoutMs > 0;
  return { timeoutMs: isTime ? timeoutMs : undefined, verdict: verdict === "allow" ? "allow" : "deny" };
}

function answer(call: WaitingCall, timeoutMs: number, verdict: "allow" | "deny"): EventInput {
  const why = `Nobody answered within ${timeoutMs / 1000} s.`;
  if (call.type === "agent.custom_tool_use") {
    const content = [{ type: "text", text: why }];
    const failure: FailureOrigin = { part: "client", reason: "NOT_ANSWERED" };
    const payload = { custom_tool_use_id: call.eventId, content, is_error: true, failure, timed_out: true };
    return event("user.custom_tool_result", payload);
  }
  const deny = verdict === "deny" ? { deny_message: why } : {};
  return event("user.tool_confirmation", {
    tool_use_id: call.eventId,
    result: verdict,
    ...deny,
    timed_out: true,
  });
}

function event(type: string, payload: object): EventInput {
  return create(EventInputSchema, { type, payload: JSON.stringify(payload) });
}

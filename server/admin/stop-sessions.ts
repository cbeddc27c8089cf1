/** Interrupts what runs: the brain of each session sees a `user.interrupt` as if its user had sent it. */
import { create } from "@bufbuild/protobuf";
import { isTendonError, messageOf } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { Logger } from "../../kit/log.ts";
import { EventInputSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import type { SessionLog } from "../ports/session-log.ts";
import type { WorkspaceStore } from "../store/workspaces.ts";

export interface StopSessionsDeps {
  readonly store: { readonly workspaces: Pick<WorkspaceStore, "runningSessions"> };
  readonly sessionLog: Pick<SessionLog, "append">;
  readonly log: Logger;
}

/** Appends of many sessions share commits; more at once would only wait in line. */
const AT_ONCE = 32;

/**
 * Returns the sessions that were running. One that ended meanwhile is passed over; another failure is thrown after the
 * rest has been tried, so that a repeat interrupts what is left.
 */
export async function stopSessions(
  { store, sessionLog, log }: StopSessionsDeps,
  workspaceId: string | undefined,
  signal: AbortSignal,
): Promise<string[]> {
  const sessionIds = await store.workspaces.runningSessions(workspaceId);
  const waiting = [...sessionIds];
  let failure: unknown;
  const interruptNext = async () => {
    for (let sessionId = waiting.shift(); sessionId !== undefined; sessionId = waiting.shift()) {
      signal.throwIfAborted();
      try {
        const event = create(EventInputSchema, { id: newId("event"), type: "user.interrupt", payload: "{}" });
        await sessionLog.append({ sessionId, events: [event] });
      } catch (error) {
        if (isTendonError(error, "NOT_FOUND") || isTendonError(error, "SESSION_ARCHIVED")) continue;
        log.warn({ sessionId, error: messageOf(error) }, "a session could not be interrupted");
        failure = error;
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, interruptNext));
  if (failure !== undefined) throw failure;
  return sessionIds;
}

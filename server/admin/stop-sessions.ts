/** Interrupts what runs: each tree from its root down. The brains see a `user.interrupt` as if their user had sent it. */
import { isTendonError, messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type { SessionTrees } from "../ports/session-trees.ts";

export interface StopSessionsDeps {
  readonly trees: SessionTrees;
  readonly log: Logger;
}

/** Appends of many sessions share commits; more at once would only wait in line. */
const AT_ONCE = 32;

/**
 * Returns the sessions and threads that were interrupted. One that ended meanwhile is passed over; another failure is thrown
 * after the rest has been tried, so that a repeat interrupts what is left.
 */
export async function stopSessions(
  { trees, log }: StopSessionsDeps,
  workspaceId: string | undefined,
  signal: AbortSignal,
): Promise<string[]> {
  const waiting = await trees.active(workspaceId);
  const stopped: string[] = [];
  let failure: unknown;
  const stopNext = async () => {
    for (let tree = waiting.shift(); tree !== undefined; tree = waiting.shift()) {
      signal.throwIfAborted();
      try {
        await trees.stop(tree);
        stopped.push(...tree.sessionIds);
      } catch (error) {
        if (isTendonError(error, "NOT_FOUND") || isTendonError(error, "SESSION_ARCHIVED")) continue;
        const { rootSessionId: sessionId } = tree;
        log.warn({ sessionId, error: messageOf(error) }, "a session could not be interrupted");
        failure = error;
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, stopNext));
  if (failure !== undefined) throw failure;
  return stopped.sort();
}

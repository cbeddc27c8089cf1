/** Appends what clients say, with an eye on calls that they speak of: what was read of those still holds when it is appended. */
import { isTendonError } from "../../kit/errors.ts";
import type { ClientCallStore } from "../store/client-calls.ts";
import type { Appended, AppendRequest, EventStore } from "../store/events.ts";
import type { OutcomeStore } from "../store/outcomes.ts";
import { repeatsOf, spokenOf } from "./client-answers.ts";
import { definesOutcome } from "./outcome-definitions.ts";

export interface ClientAppendDeps {
  readonly events: Pick<EventStore, "append" | "keepTrace" | "repeated">;
  readonly outcomes: Pick<OutcomeStore, "append">;
  readonly clientCalls: Pick<ClientCallStore, "find">;
}

/** Others may append between reading and appending; a log that never rests for so long has its calls decided by its brain. */
const MAX_TRIES = 20;

/**
 * As EventStore.append; with `isWorker` an answer that comes too late gets the receipt of the one that stands. Also CALL_ALREADY_ANSWERED for confirmations that come too late, INVALID_FIELD for those of
 * other calls, and OUTCOME_ACTIVE.
 */
export async function appendClientEvents(
  deps: ClientAppendDeps,
  request: AppendRequest,
  isWorker = false,
): Promise<Appended> {
  const callIds = spokenOf(request.events);
  if (callIds.length === 0) return append(deps, request);
  for (let tries = 1; ; tries++) {
    const { head, calls } = await deps.clientCalls.find(request.sessionId, callIds);
    if (calls.length === 0) return append(deps, request);
    const repeats = repeatsOf(request.events, calls, isWorker);
    const events = request.events.filter((_, at) => repeats[at] === undefined);
    const isBound = request.expectedPosition !== undefined || tries >= MAX_TRIES;
    const expectedPosition = isBound ? request.expectedPosition : BigInt(head);
    try {
      const appended: Appended =
        events.length === 0
          ? { receipts: [], head, hasWork: false, added: [] }
          : await append(deps, { ...request, events, expectedPosition });
      const receipts = [...appended.receipts];
      return {
        ...appended,
        receipts: repeats.map((repeat) =>
          repeat === undefined
            ? receipts.shift()!
            : { id: repeat.eventId, position: repeat.position, duplicate: true },
        ),
      };
    } catch (error) {
      if (isBound || !isTendonError(error, "POSITION_MISMATCH")) throw error;
    }
  }
}

async function append({ events, outcomes }: ClientAppendDeps, request: AppendRequest): Promise<Appended> {
  if (!request.events.some(definesOutcome)) return events.append(request);
  const appended = await outcomes.append(request);
  const { sessionId, traceParent } = request;
  return traceParent === undefined ? appended : events.keepTrace(sessionId, appended, traceParent);
}

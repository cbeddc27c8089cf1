/**
 * A session's log as workers of its environment see it. A worker runs every tool use that it sees without an answer of its
 * own kind, so what it sees decides what it runs:
 *
 * V1 Of tool uses it is shown those that are its to run, while it holds the session's item (W2); never what a brain or a
 *    hand agent runs.
 * V2 Every result of such a call is shown as one that a worker gave: whatever answered a call, no worker runs it again.
 */

import { create } from "@bufbuild/protobuf";
import { type Event, EventSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import type { Principal } from "../ports/principal.ts";
import type { EventStore } from "../store/events.ts";
import type { WorkStore } from "../store/work.ts";
import { isWorkersCall, WORKER_RESULT } from "../store/worker-calls.ts";

export interface WorkerViewDeps {
  readonly work: Pick<WorkStore, "show">;
  readonly events: Pick<EventStore, "readText">;
}

export type WorkerPrincipal = Extract<Principal, { kind: "worker" | "work_item" }>;

const CALL = "agent.tool_use";
const RESULT = "agent.tool_result";
const MAX_PAYLOAD_BYTES = 64 * 1024 * 1024;

export function isWorker(principal: Principal): principal is WorkerPrincipal {
  return principal.kind === "worker" || principal.kind === "work_item";
}

export async function shownToWorker(
  deps: WorkerViewDeps,
  principal: WorkerPrincipal,
  sessionId: string,
  events: readonly Event[],
): Promise<Event[]> {
  const calls: string[] = [];
  for (const event of events) {
    if (event.type === CALL && isWorkersCall(await payloadOf(deps, sessionId, event))) calls.push(event.id);
  }
  const caller =
    principal.kind === "worker"
      ? ({ kind: "key", environmentKeyId: principal.keyId } as const)
      : ({ kind: "claim", workId: principal.workId, claim: principal.claim } as const);
  const shown = calls.length === 0 ? new Set<string>() : await deps.work.show(sessionId, caller, calls);
  return events
    .filter(({ id, type }) => type !== CALL || shown.has(id))
    .map((event) => (event.type === RESULT ? create(EventSchema, { ...event, type: WORKER_RESULT }) : event));
}

/** Also of an event that came without it for its size. */
async function payloadOf({ events }: WorkerViewDeps, sessionId: string, event: Event): Promise<string> {
  if (event.payloadOmitted === undefined) return event.payload;
  const part = await events.readText({
    sessionId,
    eventId: event.id,
    text: "payload",
    offsetBytes: 0,
    maxBytes: MAX_PAYLOAD_BYTES,
  });
  return part === undefined ? "{}" : Buffer.from(part.chunk).toString();
}

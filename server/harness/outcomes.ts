/** Events that the server appends when no brain can. */
import { create } from "@bufbuild/protobuf";
import { type EventInput, EventInputSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import type { Deaths } from "./rules.ts";

const event = (type: string, payload: object): EventInput =>
  create(EventInputSchema, { type, payload: JSON.stringify(payload) });

/** A session that says `running` has had no brain for too long (E3). */
export function rescheduledEvent(): EventInput {
  return event("session.status_rescheduled", { reason: { part: "harness", reason: "NO_LIVE_LEASE" } });
}

/** In a row: whatever the newer ones left in the log, they were no more than these. */
export function deathsOf({ silentDeaths, barrenDeaths }: Deaths): number {
  return Math.max(silentDeaths, barrenDeaths);
}

/** A session that kills whoever runs it stops until a client says something new (E4). */
export function giveUpEvents(deaths: number): EventInput[] {
  const message = `The harness running this session died ${deaths} times in a row before it got anywhere, the last time with no other session beside this one. The turn was given up.`;
  return [
    event("session.error", {
      error: {
        type: "unknown_error",
        message,
        retry_status: { type: "exhausted" },
        part: "harness",
        reason: "HARNESS_DIED",
      },
    }),
    event("session.status_idle", { stop_reason: { type: "retries_exhausted" }, stop_details: null }),
  ];
}

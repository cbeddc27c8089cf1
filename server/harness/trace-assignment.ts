/** Where an assignment stands in the trace of the newest event that came with one. */
import { parseTraceParent, type Tracing } from "../../kit/trace.ts";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";

/** A span without length: when, to which harness's lease, and what the session had been waiting with. */
export function traceAssignment(
  tracing: Tracing,
  { sessionId, leaseId, epoch }: { sessionId: string; leaseId: string; epoch: bigint },
  tail: readonly Event[],
): void {
  if (!tracing.isOn) return;
  const traced = tail.findLast(({ traceParent }) => traceParent !== "");
  const parent = parseTraceParent(traced?.traceParent);
  if (parent === undefined) return;
  const attributes = {
    "tendon.session_id": sessionId,
    "tendon.lease_id": leaseId,
    "tendon.epoch": Number(epoch),
  };
  tracing.start("assign", { parent, attributes }).end();
}

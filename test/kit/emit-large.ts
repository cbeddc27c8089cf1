/** Emits two events, the second with its texts in pieces. */
import { newId } from "../../kit/ids.ts";
import { EventText } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { event, type Sessions } from "./session-callers.ts";

export async function emitLarge(
  who: Sessions,
  sessionId: string,
  payload: string,
  extra: { lease?: { leaseId: string; epoch: bigint }; internal?: string } = {},
) {
  const { lease: held, internal } = extra;
  const type = held ? "agent.message" : "acme.noted";
  const call = who.emitLargeEvents();
  const request = {
    sessionId,
    events: [event(type), { type, id: newId("event") }],
    ...(held && { lease: held }),
  };
  await call.send({ kind: { case: "request", value: request } });
  const pieces = async (text: EventText, bytes: Buffer) => {
    // Cut inside characters too.
    for (let at = 0; at < bytes.length; at += 1_000_003) {
      const chunk = bytes.subarray(at, at + 1_000_003);
      await call.send({ kind: { case: "piece", value: { eventIndex: 1, text, chunk } } });
    }
  };
  try {
    await pieces(EventText.PAYLOAD, Buffer.from(payload));
    if (internal !== undefined) await pieces(EventText.INTERNAL, Buffer.from(internal));
    await call.send({ kind: { case: "end", value: {} } });
  } catch {
    // The call's own error says why.
  }
  return call.end();
}

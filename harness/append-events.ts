/** Appends as EmitEvents does, whatever the size: what does not fit into one message goes in pieces. */
import { MAX_GRPC_MESSAGE_BYTES } from "../kit/limits.ts";
import type { CallOptions, Client } from "../kit/rpc/client.ts";
import type { EventInput, EventReceipt, LeaseProof } from "../proto/gen/tendon/v1/event_pb.js";
import { EventText, type SessionService } from "../proto/gen/tendon/v1/session_service_pb.js";

export interface AppendRequest {
  readonly sessionId: string;
  readonly events: readonly EventInput[];
  readonly lease: LeaseProof;
  /** Of the newest event that there may be before these. POSITION_MISMATCH. */
  readonly expectedPosition?: bigint;
}

/** Of texts; the rest of a message is for ids, types and what encoding adds. */
const MAX_TEXT_BYTES = MAX_GRPC_MESSAGE_BYTES - 512 * 1024;
const PIECE_BYTES = 1024 * 1024;

type Sessions = Client<typeof SessionService>;

/** Receipts in the events' order. May be repeated when the events have ids. */
export async function appendEvents(
  sessions: Sessions,
  request: AppendRequest,
  options: CallOptions,
): Promise<EventReceipt[]> {
  const bytes = request.events.reduce(
    (sum, { payload, internal }) => sum + sizeOf(payload) + sizeOf(internal),
    0,
  );
  if (bytes > MAX_TEXT_BYTES) return appendInPieces(sessions, request, options);
  const { receipts } = await sessions.emitEvents({ ...request, events: [...request.events] }, options);
  return receipts;
}

async function appendInPieces(
  sessions: Sessions,
  { sessionId, events, ...rest }: AppendRequest,
  options: CallOptions,
): Promise<EventReceipt[]> {
  const call = sessions.emitLargeEvents(options);
  const bare = events.map((event) => ({ ...event, payload: "", internal: "" }));
  try {
    await call.send({ kind: { case: "request", value: { sessionId, events: bare, ...rest } } });
    for (const [eventIndex, { payload, internal }] of events.entries()) {
      for (const chunk of piecesOf(payload)) {
        await call.send({ kind: { case: "piece", value: { eventIndex, text: EventText.PAYLOAD, chunk } } });
      }
      for (const chunk of piecesOf(internal)) {
        await call.send({ kind: { case: "piece", value: { eventIndex, text: EventText.INTERNAL, chunk } } });
      }
    }
    await call.send({ kind: { case: "end", value: {} } });
  } catch {
    // The server has ended the call: its own error, below, says why.
  }
  const { receipts } = await call.end();
  return receipts;
}

function* piecesOf(text: string): Generator<Uint8Array> {
  const bytes = Buffer.from(text, "utf8");
  for (let at = 0; at < bytes.length; at += PIECE_BYTES) yield bytes.subarray(at, at + PIECE_BYTES);
}

function sizeOf(text: string): number {
  return Buffer.byteLength(text, "utf8");
}

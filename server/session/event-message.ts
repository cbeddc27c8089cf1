/** An event of the log, and what is signed there, as the contract shows them. */
import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { Checkpoint } from "../../kit/chain/checkpoint.ts";
import {
  type Checkpoint as CheckpointMessage,
  CheckpointSchema,
  type Event,
  EventSchema,
  type OmittedText,
  OmittedTextSchema,
} from "../../proto/gen/tendon/v1/event_pb.js";
import type { EventRecord, OmittedRecord } from "../store/events.ts";

/** `internal` is shown only where the caller has proven its lease. */
export function toEventMessage(record: EventRecord, withInternal: boolean): Event {
  const event = create(EventSchema, {
    id: record.id,
    position: BigInt(record.position),
    type: record.type,
    createdAt: timestampFromDate(record.createdAt),
    threadId: record.threadId,
    payload: record.payload ?? "",
  });
  if (record.payloadOmitted) event.payloadOmitted = toOmitted(record.payloadOmitted);
  if (record.processedAt) event.processedAt = timestampFromDate(record.processedAt);
  if (withInternal) {
    event.internal = record.internal ?? "";
    event.traceParent = record.traceParent ?? "";
    if (record.internalOmitted) event.internalOmitted = toOmitted(record.internalOmitted);
  }
  return event;
}

export function toCheckpointMessage(checkpoint: Checkpoint): CheckpointMessage {
  const { sessionId, position, hash, signedAt, publicKey, signature } = checkpoint;
  return create(CheckpointSchema, {
    sessionId,
    position: BigInt(position),
    hash,
    signedAt: timestampFromDate(signedAt),
    publicKey: Buffer.from(publicKey, "base64url"),
    signature,
  });
}

function toOmitted({ sizeBytes, sha256 }: OmittedRecord): OmittedText {
  return create(OmittedTextSchema, { sizeBytes: BigInt(sizeBytes), sha256 });
}

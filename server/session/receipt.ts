import { create } from "@bufbuild/protobuf";
import { type EventReceipt, EventReceiptSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import type { AppendReceipt } from "../store/events.ts";

export function toReceipt({ id, position, duplicate }: AppendReceipt): EventReceipt {
  return create(EventReceiptSchema, { id, position: BigInt(position), duplicate });
}

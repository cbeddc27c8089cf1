/** Messages to bytes and back, with the errors that each side can act on. */
import type { DescMessage, Message } from "@bufbuild/protobuf";
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import { messageOf, TendonError } from "../errors.ts";
import { MAX_GRPC_MESSAGE_BYTES } from "../limits.ts";
import { bufferOf } from "./service.ts";

/** grpc-js hands bytes through untouched; both mounts encode and decode themselves. */
export const passBytes = (bytes: Buffer): Buffer => bytes;

const sharedEncodings = new WeakMap<Message, Buffer | undefined>();

/** For a message that goes to many: it is encoded once, and must not be changed any more. */
export function encodedOnce<M extends Message>(message: M): M {
  if (!sharedEncodings.has(message)) sharedEncodings.set(message, undefined);
  return message;
}

/** Throws MESSAGE_TOO_LARGE above the bound that the other side would refuse. */
export function encode(schema: DescMessage, message: Message): Buffer {
  const known = sharedEncodings.get(message);
  if (known !== undefined) return known;
  const bytes = bufferOf(toBinary(schema, message));
  if (bytes.length > MAX_GRPC_MESSAGE_BYTES) {
    throw new TendonError(
      "MESSAGE_TOO_LARGE",
      `${schema.typeName} has ${bytes.length} bytes, at most ${MAX_GRPC_MESSAGE_BYTES} may be sent`,
      { bytes: String(bytes.length), limit: String(MAX_GRPC_MESSAGE_BYTES) },
    );
  }
  if (sharedEncodings.has(message)) sharedEncodings.set(message, bytes);
  return bytes;
}

/** Throws INVALID_FIELD when the bytes are no such message. */
export function decode(schema: DescMessage, bytes: Buffer): Message {
  try {
    return fromBinary(schema, new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.length));
  } catch (error) {
    throw new TendonError(
      "INVALID_FIELD",
      `the bytes received are no ${schema.typeName}: ${messageOf(error)}`,
    );
  }
}

/** Puts the pieces of a large result of a web tool together. */
import { type ByteBudget, checkBytes } from "../../kit/byte-budget.ts";
import { invalidField } from "../../kit/errors.ts";
import type {
  FinishLargeWebCallRequest,
  FinishWebCallRequest,
} from "../../proto/gen/tendon/v1/credential_service_pb.js";

const MAX_CONTENT_BYTES = 16 * 1024 * 1024;

/** Reads the stream to its end, and gives `use` the whole. INVALID_FIELD, MESSAGE_TOO_LARGE, UNAVAILABLE. */
export async function withLargeResult<T>(
  requests: AsyncIterable<FinishLargeWebCallRequest>,
  budget: ByteBudget,
  use: (request: FinishWebCallRequest) => Promise<T>,
): Promise<T> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  let request: FinishWebCallRequest | undefined;
  let isWhole = false;
  try {
    for await (const { kind } of requests) {
      if (isWhole) throw invalidField("end", "must be the last message of the stream");
      if (request === undefined) {
        if (kind.case !== "request") throw invalidField("request", "must be the first message of the stream");
        request = kind.value;
        if (request.content !== "") throw invalidField("request.content", "comes in pieces");
      } else if (kind.case === "piece") {
        checkBytes(bytes + kind.value.length, MAX_CONTENT_BYTES, "content");
        budget.take(kind.value.length);
        bytes += kind.value.length;
        pieces.push(kind.value);
      } else if (kind.case === "end") isWhole = true;
      else throw invalidField("piece", "after the first message come pieces, then the end");
    }
    if (request === undefined) throw invalidField("request", "must be the first message of the stream");
    if (!isWhole) throw invalidField("end", "is missing: the stream broke off, and nothing was stored");
    return await use({ ...request, content: textOf(pieces) });
  } finally {
    budget.giveBack(bytes);
  }
}

function textOf(pieces: readonly Uint8Array[]): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Buffer.concat(pieces));
  } catch {
    throw invalidField("content", "is not UTF-8");
  }
}

/** Reads the messages of a grpc-js stream at the consumer's pace. */
import type { Readable } from "node:stream";
import { STREAM_READ_AHEAD } from "../limits.ts";

/**
 * The stream's messages; leaving the loop early leaves the stream open. At most `STREAM_READ_AHEAD` messages are read
 * ahead. grpc-js makes its streams with Node's default of sixteen and has no option for it; with messages of 3 MiB
 * that would be 48 MiB a stream.
 */
export function readAhead<T>(stream: Readable): AsyncIterable<T> {
  const { _readableState: state } = stream as unknown as { _readableState?: { highWaterMark: number } };
  if (state !== undefined) state.highWaterMark = STREAM_READ_AHEAD;
  return stream.iterator({ destroyOnReturn: false }) as AsyncIterable<T>;
}

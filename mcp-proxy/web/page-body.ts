/** Reads the body of a page, up to a bound, whatever it is packed into. */
import { pipeline, Readable, type Transform } from "node:stream";
import type { ReadableStream } from "node:stream/web";
import { constants, createBrotliDecompress, createGunzip, createInflate } from "node:zlib";
import { WebFailure } from "./failure.ts";

export interface PageBody {
  readonly bytes: Buffer;
  /** There was more. */
  readonly isCut: boolean;
}

/** What `accept-encoding` says. */
export const ENCODINGS = "gzip, deflate, br";

export interface BodyBounds {
  /** Of what is sent. */
  readonly sentBytes: number;
  /** Of what comes out of it, by its beginning: a kilobyte of it, or all where it has less. What it throws is thrown. */
  bytesOf(head: Buffer): number;
}

const HEAD_BYTES = 1024;

/** A small answer that unpacks to a huge one is cut like a huge one. Rejects with a WebFailure, or the signal's reason. */
export async function readPageBody(
  response: Response,
  { sentBytes, bytesOf }: BodyBounds,
  signal: AbortSignal,
): Promise<PageBody> {
  if (response.body === null) return { bytes: Buffer.alloc(0), isCut: false };
  const decoder = decoderOf(response);
  const raw = Readable.fromWeb(response.body as ReadableStream<Uint8Array>);
  let isCut = false;
  const cut = () => {
    isCut = true;
  };
  const sent = firstBytes(raw, sentBytes, cut);
  // Its failures are those of its end, which is read below.
  if (decoder !== undefined) pipeline(sent, decoder, () => {});
  try {
    const bytes = await boundedBytes(decoder ?? sent, bytesOf, cut);
    signal.throwIfAborted();
    return { bytes, isCut };
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof WebFailure) throw error;
    const problem = "the answer broke off, or could not be unpacked";
    throw new WebFailure("url_not_accessible", problem, "broken_answer");
  } finally {
    decoder?.destroy();
    raw.destroy();
  }
}

async function boundedBytes(
  source: AsyncIterable<Uint8Array>,
  bytesOf: BodyBounds["bytesOf"],
  onCut: () => void,
): Promise<Buffer> {
  const parts: Buffer[] = [];
  let bytes = 0;
  let most: number | undefined;
  for await (const chunk of source) {
    parts.push(Buffer.from(chunk));
    bytes += chunk.length;
    if (bytes < HEAD_BYTES) continue;
    most ??= bytesOf(Buffer.concat(parts));
    if (bytes <= most) continue;
    onCut();
    break;
  }
  const whole = Buffer.concat(parts);
  return whole.subarray(0, most ?? bytesOf(whole));
}

/** Leaves the rest unread. */
async function* firstBytes(
  source: AsyncIterable<Uint8Array>,
  maxBytes: number,
  onCut: () => void,
): AsyncGenerator<Buffer> {
  let left = maxBytes;
  for await (const chunk of source) {
    const part = Buffer.from(chunk).subarray(0, left);
    left -= part.length;
    yield part;
    if (part.length === chunk.length) continue;
    onCut();
    return;
  }
}

function decoderOf(response: Response): Transform | undefined {
  // What was cut is unpacked as far as it goes.
  const options = { finishFlush: constants.Z_SYNC_FLUSH };
  const encoding = (response.headers.get("content-encoding") ?? "").trim().toLowerCase();
  switch (encoding) {
    case "":
    case "identity":
      return undefined;
    case "gzip":
    case "x-gzip":
      return createGunzip(options);
    case "deflate":
      return createInflate(options);
    case "br":
      return createBrotliDecompress({ finishFlush: constants.BROTLI_OPERATION_FLUSH });
    default:
      throw new WebFailure("unsupported_content_type", "the answer is packed in a way that is not read");
  }
}

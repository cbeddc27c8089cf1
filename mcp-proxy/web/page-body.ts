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

/**
 * At most `maxBytes` are taken of what is sent, and at most so many of what comes out of it: a small answer that unpacks to a
 * huge one is cut like a huge one. Rejects with a WebFailure, or the signal's reason.
 */
export async function readPageBody(
  response: Response,
  maxBytes: number,
  signal: AbortSignal,
): Promise<PageBody> {
  if (response.body === null) return { bytes: Buffer.alloc(0), isCut: false };
  const decoder = decoderOf(response);
  const raw = Readable.fromWeb(response.body as ReadableStream<Uint8Array>);
  let isCut = false;
  const cut = () => {
    isCut = true;
  };
  const sent = firstBytes(raw, maxBytes, cut);
  // Its failures are those of its end, which is read below.
  if (decoder !== undefined) pipeline(sent, decoder, () => {});
  const parts: Buffer[] = [];
  try {
    for await (const part of firstBytes(decoder ?? sent, maxBytes, cut)) parts.push(part);
    signal.throwIfAborted();
  } catch {
    signal.throwIfAborted();
    const problem = "the answer broke off, or could not be unpacked";
    throw new WebFailure("url_not_accessible", problem, "broken_answer");
  } finally {
    decoder?.destroy();
    raw.destroy();
  }
  return { bytes: Buffer.concat(parts), isCut };
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

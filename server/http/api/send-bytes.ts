/** Answers that are bytes: passed on at the pace at which they are read. */
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { HttpExchange } from "../router.ts";
import type { ApiAnswer } from "./api-route.ts";

/** What cannot be read from its beginning is a failure, not half an answer. A HEAD reads nothing. */
export async function sendBytes(
  { request, response }: HttpExchange,
  content: AsyncGenerator<{ chunk: Uint8Array }>,
  { head, signal }: { head: Readonly<Record<string, string>>; signal: AbortSignal },
): Promise<ApiAnswer> {
  const first = request.method === "HEAD" ? undefined : await content.next();
  response.writeHead(200, { ...head, "cache-control": "no-store", "x-content-type-options": "nosniff" });
  if (first === undefined || first.done) response.end();
  else await pipeline(Readable.from(chunksOf(first.value.chunk, content)), response, { signal });
  return { written: true };
}

async function* chunksOf(first: Uint8Array, rest: AsyncIterable<{ chunk: Uint8Array }>) {
  yield first;
  for await (const { chunk } of rest) yield chunk;
}

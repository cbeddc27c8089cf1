/** Passes an MCP server's answer on as it comes, as fast as its client reads, without known secret values. */
import type { ServerResponse } from "node:http";
import { Readable, Transform } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { ReadableStream } from "node:stream/web";
import { Redactor } from "./redactor.ts";
import { type Answer, SESSION_HEADER } from "./upstream.ts";

const PASSED = ["content-type", "mcp-protocol-version", "retry-after", "allow", "x-accel-buffering"];

/** `ownId`: the MCP session as the client knows it. Rejects when either side breaks off. */
export async function passAnswer(
  { response: answer, secrets }: Answer,
  response: ServerResponse,
  ownId: string | undefined,
): Promise<void> {
  const headers: Record<string, string> = {};
  for (const name of PASSED) {
    const value = answer.headers.get(name);
    if (value !== null && !secrets.some((secret) => value.includes(secret))) headers[name] = value;
  }
  const given = answer.headers.get(SESSION_HEADER);
  if (given !== null) headers[SESSION_HEADER] = ownId ?? given;
  if (headers["content-type"]?.startsWith("text/event-stream"))
    headers["cache-control"] = "no-cache, no-transform";
  response.writeHead(answer.status, headers);
  if (answer.body === null) {
    response.end();
    return;
  }
  // A stream whose first event is far away is open all the same.
  response.flushHeaders();
  const body = Readable.fromWeb(answer.body as ReadableStream<Uint8Array>);
  if (secrets.length === 0) return pipeline(body, response);
  const redactor = new Redactor(secrets);
  const without = new Transform({
    transform: (chunk: Buffer, _, done) => done(null, redactor.push(Buffer.from(chunk))),
    flush: (done) => done(null, redactor.end()),
  });
  return pipeline(body, without, response);
}

/**
 * The least that Node's HTTP server can be asked to do with open responses, in a process of its own. Says its port on standard
 * output and ends when standard input does.
 *
 * GET opens a response that stays open. POST has its body written to all of them; the answer is when that began: nanoseconds
 * of the machine's monotonic clock.
 */
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

const streams = new Set<ServerResponse>();

const server = createServer((request, response) => {
  if (request.method === "GET") {
    streams.add(response);
    response.on("close", () => streams.delete(response));
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.flushHeaders();
    return;
  }
  const chunks: Buffer[] = [];
  request.on("data", (chunk: Buffer) => chunks.push(chunk));
  request.on("end", () => {
    const bytes = Buffer.concat(chunks);
    const began = process.hrtime.bigint();
    for (const stream of streams) stream.write(bytes);
    response.end(String(began));
  });
});

server.listen(0, "127.0.0.1", () => {
  process.stdout.write(`${(server.address() as AddressInfo).port}\n`);
});

process.stdin.resume();
process.stdin.on("end", () => process.exit(0));

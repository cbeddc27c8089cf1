import { once } from "node:events";
import { createServer, get, type ServerResponse } from "node:http";
import { type AddressInfo, connect } from "node:net";
import { text } from "node:stream/consumers";
import { afterEach, describe, expect, it } from "vitest";
import { SharedFrame } from "./shared-frame.ts";

const servers: ReturnType<typeof createServer>[] = [];
afterEach(() => {
  for (const server of servers.splice(0)) server.close();
});

async function portOf(answer: (response: ServerResponse, path: string) => void): Promise<number> {
  const server = createServer((request, response) => answer(response, request.url ?? ""));
  servers.push(server);
  await once(server.listen(0, "127.0.0.1"), "listening");
  return (server.address() as AddressInfo).port;
}

const frame = new SharedFrame("data: Grüße\n\n");

function mixed(response: ServerResponse): void {
  response.writeHead(200);
  response.flushHeaders();
  response.write("first\n");
  frame.writeTo(response);
  response.write("between\n");
  frame.writeTo(response);
  response.end("last\n");
}

describe("a frame that goes to many responses", () => {
  const whole = "first\ndata: Grüße\n\nbetween\ndata: Grüße\n\nlast\n";

  it("arrives in its place between what is written to one response alone", async () => {
    const port = await portOf(mixed);
    const [answer] = await once(get({ host: "127.0.0.1", port }), "response");
    expect(await text(answer)).toBe(whole);
  });

  it("has no marks of a chunk for a client of HTTP/1.0", async () => {
    const port = await portOf(mixed);
    const socket = connect(port, "127.0.0.1", () => socket.write("GET / HTTP/1.0\r\n\r\n"));
    const [, body] = (await text(socket)).split(/\r\n\r\n/);
    expect(body).toBe(whole);
  });

  it("waits behind the response that its connection owes first", async () => {
    let first: ServerResponse | undefined;
    const port = await portOf((response, path) => {
      if (path === "/first") {
        first = response;
        return;
      }
      mixed(response);
      first?.end("the first\n");
    });
    const socket = connect(port, "127.0.0.1", () =>
      socket.write(
        "GET /first HTTP/1.1\r\nhost: here\r\n\r\nGET /second HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n",
      ),
    );
    const [, firstBody = "", ...second] = (await text(socket)).split("HTTP/1.1 200 OK");
    expect(firstBody).toContain("the first\n");
    expect(second.join("").match(/Grüße/g)).toHaveLength(2);
  });

  it("says who tells of room when the reader is slow", async () => {
    const large = new SharedFrame("x".repeat(1024 * 1024));
    let full: ReturnType<SharedFrame["writeTo"]>;
    const port = await portOf((response) => {
      response.writeHead(200);
      response.flushHeaders();
      while (full === undefined) full = large.writeTo(response);
      full.once("drain", () => response.end("the end"));
    });
    const [answer] = await once(get({ host: "127.0.0.1", port }), "response");
    expect((await text(answer)).endsWith("the end")).toBe(true);
  });
});

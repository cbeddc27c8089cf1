import { once } from "node:events";
import { createServer, get, type ServerResponse } from "node:http";
import { type AddressInfo, connect } from "node:net";
import { text } from "node:stream/consumers";
import { afterEach, describe, expect, it } from "vitest";
import { Frame, FrameWriter } from "./frame-writer.ts";

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

const frame = new Frame("data: Grüße\n\n");

function mixed(response: ServerResponse): void {
  response.writeHead(200);
  response.flushHeaders();
  const writer = new FrameWriter(response);
  for (const each of [new Frame("first\n"), frame, new Frame("between\n"), frame]) writer.write(each);
  response.end();
}

describe("frames of an open response", () => {
  const whole = "first\ndata: Grüße\n\nbetween\ndata: Grüße\n\n";

  it("arrive in their order, those of one response and those that go to many", async () => {
    const port = await portOf(mixed);
    const [answer] = await once(get({ host: "127.0.0.1", port }), "response");
    expect(await text(answer)).toBe(whole);
  });

  it("have no marks of a chunk for a client of HTTP/1.0", async () => {
    const port = await portOf(mixed);
    const socket = connect(port, "127.0.0.1", () => socket.write("GET / HTTP/1.0\r\n\r\n"));
    const [, body] = (await text(socket)).split(/\r\n\r\n/);
    expect(body).toBe(whole);
  });

  it("wait behind the response that their connection owes first", async () => {
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
    expect(second.join("").replace(/^[0-9a-f]+\r\n|\r\n/gm, "")).toContain(whole);
  });

  it("come with who tells of room when the reader is slow", async () => {
    const large = new Frame("x".repeat(1024 * 1024));
    let full: ReturnType<FrameWriter["write"]>;
    const port = await portOf((response) => {
      response.writeHead(200);
      response.flushHeaders();
      const writer = new FrameWriter(response);
      while (full === undefined) full = writer.write(large);
      full.once("drain", () => {
        writer.write(new Frame("the end"));
        response.end();
      });
    });
    const [answer] = await once(get({ host: "127.0.0.1", port }), "response");
    expect((await text(answer)).endsWith("the end")).toBe(true);
  });
});

import net, { type AddressInfo, type Socket } from "node:net";
import tls from "node:tls";
import { expect, test } from "vitest";
import { readServerName, serverNameOf } from "./server-name.ts";

/** Runs `act` against a server on loopback; resolves with what `serve` makes of its only connection. */
async function withServer<T>(
  serve: (socket: Socket) => Promise<T>,
  act: (port: number) => Socket,
): Promise<T> {
  const server = net.createServer({ allowHalfOpen: true });
  const served = new Promise<T>((resolve, reject) => {
    server.on("connection", (socket) => {
      socket.on("error", () => {});
      serve(socket)
        .finally(() => socket.destroy())
        .then(resolve, reject);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const client = act((server.address() as AddressInfo).port);
  client.on("error", () => {});
  try {
    return await served;
  } finally {
    client.destroy();
    await new Promise((resolve) => server.close(resolve));
  }
}

/** What is read of a client that sends these pieces and ends, and what is left for whoever reads on. */
function seen(pieces: readonly Buffer[]): Promise<{ value: string | undefined; rest: Buffer }> {
  return withServer(
    async (socket) => {
      const { name: value, unsent } = await readServerName(socket);
      const rest: Buffer[] = [unsent];
      for await (const chunk of socket) rest.push(chunk as Buffer);
      return { value, rest: Buffer.concat(rest) };
    },
    (port) => {
      const client = net.connect({ port, host: "127.0.0.1", noDelay: true });
      void (async () => {
        for (const piece of pieces) await new Promise((resolve) => client.write(piece, resolve));
        client.end();
      })();
      return client;
    },
  );
}

/** The first bytes of a real client. */
function helloFor(servername: string | undefined): Promise<Buffer> {
  return withServer(
    (socket) => new Promise((resolve) => socket.once("data", resolve)),
    (port) => tls.connect({ host: "127.0.0.1", port, ...(servername === undefined ? {} : { servername }) }),
  );
}

test("the name of a real client's hello is read, whole or byte by byte, and every byte is left for the server", async () => {
  const hello = await helloFor("web.example");
  const whole = await seen([hello, Buffer.from("more")]);
  expect(whole.value).toBe("web.example");
  expect(whole.rest).toEqual(Buffer.concat([hello, Buffer.from("more")]));
  const bytes = await seen([...hello].map((byte) => Buffer.from([byte])));
  expect(bytes).toEqual({ value: "web.example", rest: hello });
});

test("a hello in several records is put together", async () => {
  const hello = await helloFor("web.example");
  const body = hello.subarray(5);
  const records: Buffer[] = [];
  for (let at = 0; at < body.length; at += 40) {
    const part = body.subarray(at, at + 40);
    records.push(Buffer.from([22, 3, 1, 0, part.length]), part);
  }
  expect(await seen([Buffer.concat(records)])).toEqual({
    value: "web.example",
    rest: Buffer.concat(records),
  });
});

test("what is no TLS, has no name, or is cut has none, and passes as it came", async () => {
  for (const bytes of [
    await helloFor(undefined),
    Buffer.from("SSH-2.0-x\r\n"),
    Buffer.from([22]),
    Buffer.from([22, 3, 1, 0, 0]),
    Buffer.from([22, 3, 1, 255, 255, 1]),
    Buffer.alloc(0),
    (await helloFor("web.example")).subarray(0, 80),
  ]) {
    expect(await seen([bytes])).toEqual({ value: undefined, rest: bytes });
  }
});

test("no twisted hello makes the reader fail", async () => {
  const body = (await helloFor("web.example")).subarray(9);
  for (let at = 0; at < body.length; at += 1) {
    const twisted = Buffer.from(body);
    twisted[at] = 255;
    expect(["string", "undefined"]).toContain(typeof serverNameOf(twisted));
    expect(["string", "undefined"]).toContain(typeof serverNameOf(body.subarray(0, at)));
  }
});

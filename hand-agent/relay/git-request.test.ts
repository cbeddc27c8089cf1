import { once } from "node:events";
import net, { type AddressInfo, type Socket } from "node:net";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ByteSource } from "./byte-source.ts";
import { readFirstRequest } from "./git-request.ts";

let server: net.Server;
beforeAll(async () => {
  server = net.createServer({ pauseOnConnect: true });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
});
afterAll(() => new Promise<void>((resolve) => server.close(() => resolve())));

/** What is made of a connection that sends these pieces, and what whoever reads on finds. */
async function read(pieces: readonly string[], { ends = false } = {}) {
  const client = net.connect((server.address() as AddressInfo).port, "127.0.0.1").setNoDelay(true);
  const [socket] = (await once(server, "connection")) as [Socket];
  try {
    const source = new ByteSource(socket);
    const found = readFirstRequest(source);
    for (const piece of pieces) await new Promise((resolve) => client.write(piece, resolve));
    if (ends) client.end();
    const { kind, ...rest } = await found;
    const target = "target" in rest ? rest.target : undefined;
    const text = source.buffered.toString("latin1");
    return { kind, host: target && `${JSON.stringify(target.host)} ${target.port}`, text };
  } finally {
    client.destroy();
    socket.destroy();
  }
}

test("a request for /git/<host>/ is git to that host, by whatever pieces it comes, and none of it is lost", async () => {
  const line = "GET /git/git.example/owner/repository/info/refs?service=git-upload-pack HTTP/1.1\r\n";
  const whole = await read([line]);
  expect(whole).toEqual({
    kind: "git",
    host: '{"kind":"name","name":"git.example"} 443',
    text: line,
  });
  const begun = await read(["PO", "ST /g", "it/GIT.example:84", "43/x"]);
  expect(begun).toMatchObject({ kind: "git", host: '{"kind":"name","name":"git.example"} 8443' });
  expect("POST /git/GIT.example:8443/x".startsWith(begun.text)).toBe(true);
});

test("everything else is left to the proxy's other ways, as soon as that is known", async () => {
  for (const line of [
    "CONNECT git.example:443 HTTP/1.1",
    "GET http://a/git/b/ HTTP/1.1",
    "GET /gitx/",
    "\x16\x03\x01",
  ])
    expect(await read([line])).toMatchObject({ kind: "other", text: line });
});

test("git without a host that is one is git without a target; who ends before it is known is gone", async () => {
  for (const line of [
    "GET /git/2130706433/x ",
    "GET /git//x ",
    "GET /git/a@b/x ",
    `GET /git/${"a".repeat(500)}`,
  ])
    expect(await read([line])).toMatchObject({ kind: "git", host: undefined });
  expect(await read(["GET /gi"], { ends: true })).toMatchObject({ kind: "gone" });
});

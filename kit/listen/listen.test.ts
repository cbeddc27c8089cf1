import { execFile } from "node:child_process";
import http from "node:http";
import net from "node:net";
import tls from "node:tls";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { Health } from "../../proto/gen/grpc/health/v1/health_pb.js";
import { eventually } from "../../test/kit/eventually.ts";
import { EchoService } from "../../test/kit/proto/echo_pb.ts";
import {
  emptyMessage,
  GRPC_JS,
  grpcCall,
  jsonCall,
  type ListenCertificates,
  request,
  UNARY,
  useListenRig,
} from "../../test/kit/use-listen-rig.ts";
import { createClient } from "../rpc/client.ts";

let certificates: ListenCertificates["certificates"];
let identity: ListenCertificates["identity"];
let ca: ListenCertificates["ca"];

const { cleanups, start, open, connectHttp2 } = useListenRig((made) => {
  ({ certificates, identity, ca } = made);
});

async function postJson(url: string, body: unknown): Promise<unknown> {
  const headers = { "content-type": "application/json" };
  return (await fetch(url, { method: "POST", headers, body: JSON.stringify(body) })).json();
}

test("without TLS one port answers gRPC, plain HTTP and Connect", async () => {
  const { listener } = await start();
  const base = `http://127.0.0.1:${listener.port}`;
  expect((await open(listener.port).echo.unary({ text: "grpc" })).text).toBe("grpc");
  expect(await (await fetch(`${base}/readyz?x=1`)).json()).toEqual({ url: "/readyz?x=1", version: "1.1" });
  expect(await postJson(base + UNARY, { text: "connect" })).toEqual({ text: "connect" });
  const grpc = await request(connectHttp2(base), grpcCall, emptyMessage);
  expect(grpc.headers["grpc-accept-encoding"]).toBe(GRPC_JS);
  expect(grpc.trailers["grpc-status"]).toBe("0");
});

test("Connect and gRPC-Web answer errors with the same reason", async () => {
  const { listener } = await start();
  const base = `http://127.0.0.1:${listener.port}`;
  const failed = (await postJson(base + UNARY, { text: "x", failWith: "NOT_FOUND" })) as {
    code: string;
    details: { debug: { reason: string; domain: string } }[];
  };
  expect(failed.code).toBe("not_found");
  expect(failed.details[0]?.debug).toMatchObject({ reason: "NOT_FOUND", domain: "tendon.dev" });
  const hidden = (await postJson(base + UNARY, { failWith: "bug" })) as { code: string; message: string };
  expect([hidden.code, hidden.message]).toEqual(["internal", "internal error"]);
  const invalid = (await postJson(base + UNARY, { inner: { name: "much too long" } })) as { message: string };
  expect(invalid.message).toContain("inner.name: ");
  const web = await fetch(base + UNARY, {
    method: "POST",
    headers: { "content-type": "application/grpc-web+proto" },
    body: emptyMessage,
  });
  expect(Buffer.from(await web.arrayBuffer()).toString("latin1")).toContain("grpc-status: 0");
});

test("a Connect call above 3 MiB is refused", async () => {
  const { listener } = await start();
  const url = `http://127.0.0.1:${listener.port}${UNARY}`;
  expect(await postJson(url, { text: "x".repeat(4 * 1024 * 1024) })).toMatchObject({
    code: "resource_exhausted",
  });
});

test("a Connect client that goes away aborts the implementation", async () => {
  const { listener, recorder } = await start();
  const controller = new AbortController();
  const url = `http://127.0.0.1:${listener.port}${UNARY}`;
  const call = fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ failWith: "wait" }),
    signal: controller.signal,
  });
  await eventually(() => recorder.started === 1);
  controller.abort();
  await expect(call).rejects.toThrow();
  await eventually(() => recorder.finished.includes("unary"));
  expect(recorder.aborted[0]).toMatchObject({ reason: "CANCELLED" });
});

test("with h2c mixed, clear HTTP/2 answers gRPC, Connect and plain HTTP on one connection", async () => {
  const { listener } = await start({ h2c: "mixed" });
  const session = connectHttp2(`http://127.0.0.1:${listener.port}`);
  const grpc = await request(session, grpcCall, emptyMessage);
  expect(grpc.headers["grpc-accept-encoding"]).not.toBe(GRPC_JS);
  expect(grpc.trailers["grpc-status"]).toBe("0");
  expect((await request(session, jsonCall, '{"text":"h2"}')).body.toString()).toBe('{"text":"h2"}');
  expect((await request(session, { ":path": "/healthz" })).body.toString()).toContain('"version":"2.0"');
  const { echo } = open(listener.port);
  const bidi = echo.bidi();
  await bidi.send({ text: "over compat" });
  expect((await bidi.responses[Symbol.asyncIterator]().next()).value.text).toBe("over compat");
  bidi.cancel();
});

test("the HTTP/2 preface may come byte by byte, and a request line that begins like it is HTTP/1.1", async () => {
  const { listener } = await start();
  const slow = net.connect(listener.port, "127.0.0.1");
  cleanups.push(() => slow.destroy() && undefined);
  slow.setNoDelay(true);
  const received: Buffer[] = [];
  slow.on("data", (chunk) => received.push(chunk));
  for (const byte of Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")) {
    await new Promise((resolve) => slow.write(Buffer.from([byte]), resolve));
  }
  slow.write(Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]));
  // The server's SETTINGS frame: type 4.
  await eventually(() => Buffer.concat(received)[3] === 4);

  const odd = net.connect(listener.port, "127.0.0.1");
  const text: string[] = [];
  odd.on("data", (chunk) => text.push(String(chunk)));
  odd.write("PRI");
  odd.write("NT / HTTP/1.1\r\nhost: x\r\n\r\n");
  await eventually(() => text.join("").startsWith("HTTP/1.1 400"));
  odd.destroy();
});

test("a client that ends its half after the request still gets the answer", async () => {
  const { listener } = await start();
  const socket = net.connect(listener.port, "127.0.0.1");
  const text: string[] = [];
  socket.on("data", (chunk) => text.push(String(chunk)));
  socket.end("GET /half HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
  await eventually(() => text.join("").includes("/half"));
});

test("a request without a host does not bring the server down", async () => {
  const { listener } = await start();
  const socket = net.connect(listener.port, "127.0.0.1");
  const text: string[] = [];
  socket.on("data", (chunk) => text.push(String(chunk)));
  socket.write(`POST ${UNARY} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}`);
  await eventually(() => text.join("").includes(" 400 "));
  socket.destroy();
  expect((await open(listener.port).echo.unary({ text: "alive" })).text).toBe("alive");
});

test("a connection that says nothing is closed, with and without TLS", async () => {
  for (const secure of [undefined, identity]) {
    const { listener } = await start({ tls: secure, firstBytesMs: 50 });
    const silent = net.connect(listener.port, "127.0.0.1");
    silent.on("error", () => {}).resume();
    await eventually(() => silent.closed);
    if (secure === undefined) continue;
    const mute = tls.connect({ port: listener.port, host: "127.0.0.1", ca, ALPNProtocols: ["h2"] });
    mute.on("error", () => {}).resume();
    await eventually(() => mute.closed);
  }
});

test("connections above the bound are dropped", async () => {
  const { listener } = await start({ maxConnections: 2 });
  const first = [net.connect(listener.port, "127.0.0.1"), net.connect(listener.port, "127.0.0.1")];
  await eventually(() => listener.connections === 2);
  const third = net.connect(listener.port, "127.0.0.1");
  third.on("error", () => {}).resume();
  await eventually(() => third.closed);
  for (const socket of first) socket.destroy();
  await eventually(() => listener.connections === 0);
});

test("a port in use, and an address that is not here, are one clear line", async () => {
  const { listener } = await start();
  const port = listener.port;
  await expect(start({ port })).rejects.toThrow(
    `cannot listen on 127.0.0.1:${port}: another program uses this port`,
  );
  await expect(start({ host: "192.0.2.1", port: 7400 })).rejects.toThrow(
    "cannot listen on 192.0.2.1:7400: this machine has no such address",
  );
});

test("destroyPeer cuts a connection whose other end is silent, over TLS too", async () => {
  for (const secure of [undefined, identity]) {
    const { listener, recorder } = await start({ tls: secure });
    const relay = await startRelay(listener.port);
    const { echo } = open(relay.port, secure !== undefined);
    const bidi = echo.bidi();
    const read = bidi.responses[Symbol.asyncIterator]().next();
    await bidi.send({ text: "here" });
    await read;
    relay.freeze();
    expect(recorder.finished).toEqual([]);
    expect(listener.destroyPeer(recorder.peers[0]!)).toBe(true);
    await eventually(() => recorder.finished.includes("bidi"));
    expect(recorder.aborted[0]).toMatchObject({ reason: "CANCELLED" });
    await eventually(() => listener.connections === 0);
    expect(listener.destroyPeer(recorder.peers[0]!)).toBe(false);
    bidi.cancel();
  }
});

test("closing lets calls finish within their grace and takes no new ones", async () => {
  const { listener, recorder } = await start();
  const { echo } = open(listener.port);
  const bidi = echo.bidi();
  const responses = bidi.responses[Symbol.asyncIterator]();
  await bidi.send({ text: "one" });
  await responses.next();
  let closed = false;
  const closing = listener.close({ graceMs: 10_000 }).then(() => {
    closed = true;
  });
  const refused = net.connect(listener.port, "127.0.0.1");
  refused.on("error", () => {}).resume();
  await eventually(() => refused.closed);
  await bidi.send({ text: "two" });
  expect((await responses.next()).value.text).toBe("two");
  expect(closed).toBe(false);
  bidi.end();
  expect((await responses.next()).done).toBe(true);
  await closing;
  expect(recorder.finished).toEqual(["bidi"]);
});

test("closing cuts what is left after the grace: gRPC, HTTP/1.1 and silent connections", async () => {
  const { listener, recorder } = await start();
  const { echo } = open(listener.port);
  const stuck = echo.unary({ failWith: "wait" });
  const connectCall = fetch(`http://127.0.0.1:${listener.port}${UNARY}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ failWith: "wait" }),
  });
  const silent = net.connect(listener.port, "127.0.0.1");
  silent.on("error", () => {}).resume();
  await eventually(() => recorder.started === 2 && listener.connections === 3);
  const outcomes = Promise.allSettled([stuck, connectCall]);
  await listener.close({ graceMs: 100 });
  expect((await outcomes).map(({ status }) => status)).toEqual(["rejected", "rejected"]);
  await eventually(() => recorder.finished.length === 2 && silent.closed);
  expect(listener.connections).toBe(0);
});

test("an idle keep-alive connection does not hold up closing", async () => {
  const { listener } = await start();
  const agent = new http.Agent({ keepAlive: true });
  cleanups.push(() => agent.destroy());
  await new Promise<void>((resolve) => {
    http.get({ port: listener.port, host: "127.0.0.1", path: "/", agent }, (response) => {
      response.resume().on("end", resolve);
    });
  });
  await listener.close({ graceMs: 5_000 });
  expect(listener.connections).toBe(0);
});

test("health tells the state of the server and of each service, and its changes", async () => {
  const { listener, health } = await start();
  const { channel } = open(listener.port);
  const client = createClient(Health, channel);
  expect((await client.check({})).status).toBe(2);
  const watching = client.watch({ service: EchoService.typeName })[Symbol.asyncIterator]();
  expect((await watching.next()).value.status).toBe(2);
  health.set(true);
  expect((await watching.next()).value.status).toBe(1);
  expect((await client.check({})).status).toBe(1);
  await expect(client.check({ service: "no.such" })).rejects.toMatchObject({ reason: "NOT_FOUND" });
  await watching.return?.(undefined);
});

test("buf curl finds the services by reflection and calls them, clear and over TLS", async () => {
  for (const secure of [undefined, identity]) {
    const { listener } = await start({ tls: secure });
    const base = `${secure ? "https" : "http"}://127.0.0.1:${listener.port}`;
    const options = secure ? ["--cacert", certificates.caFile] : ["--http2-prior-knowledge"];
    const curl = async (...args: string[]) => {
      const run = promisify(execFile);
      return (await run("node_modules/.bin/buf", ["curl", "--protocol", "grpc", ...options, ...args])).stdout;
    };
    const listed = await curl("--list-methods", base);
    expect(listed).toContain("tendon.test.v1.EchoService/Bidi");
    expect(listed).toContain("grpc.health.v1.Health/Check");
    expect(JSON.parse(await curl("-d", '{"text":"curl"}', base + UNARY))).toEqual({ text: "curl" });
  }
});

/** A TCP relay that can stop passing anything on while both its connections stay open. */
async function startRelay(port: number): Promise<{ port: number; freeze(): void }> {
  const sockets: net.Socket[] = [];
  const relay = net.createServer((near) => {
    const far = net.connect(port, "127.0.0.1");
    sockets.push(near, far);
    for (const socket of [near, far]) socket.on("error", () => {});
    near.pipe(far).pipe(near);
  });
  await new Promise<void>((resolve) => relay.listen(0, "127.0.0.1", resolve));
  cleanups.push(() => {
    for (const socket of sockets) socket.destroy();
    relay.close();
  });
  return {
    port: (relay.address() as net.AddressInfo).port,
    freeze() {
      for (const socket of sockets) socket.unpipe().pause();
    },
  };
}

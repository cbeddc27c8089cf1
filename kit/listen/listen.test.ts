import { execFile } from "node:child_process";
import { copyFile, readFile } from "node:fs/promises";
import http from "node:http";
import http2 from "node:http2";
import https from "node:https";
import net from "node:net";
import { join } from "node:path";
import tls from "node:tls";
import { promisify } from "node:util";
import { Channel, credentials } from "@grpc/grpc-js";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { Health } from "../../proto/gen/grpc/health/v1/health_pb.js";
import { type EchoServer, startEchoServer } from "../../test/kit/echo-server.ts";
import { eventually } from "../../test/kit/eventually.ts";
import { EchoService } from "../../test/kit/proto/echo_pb.ts";
import { createCertificates, type TestCertificates } from "../../test/kit/test-certificates.ts";
import { createClient } from "../rpc/client.ts";
import type { ListenOptions } from "./listen.ts";

let certificates: TestCertificates;
let identity: { certFile: string; keyFile: string };
let ca: Buffer;

beforeAll(async () => {
  certificates = await createCertificates();
  identity = await certificates.issue("server.test");
  ca = await readFile(certificates.caFile);
});
afterAll(() => certificates.remove());

const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) await cleanup();
});

async function start(options: Partial<ListenOptions> = {}): Promise<EchoServer> {
  const server = await startEchoServer(options);
  cleanups.push(() => server.listener.close({ graceMs: 0 }));
  return server;
}

function open(port: number, secure = false) {
  const creds = secure ? credentials.createSsl(ca) : credentials.createInsecure();
  const channel = new Channel(`localhost:${port}`, creds, { "grpc.use_local_subchannel_pool": 1 });
  cleanups.push(() => channel.close());
  return { channel, echo: createClient(EchoService, channel) };
}

/** Node's client offers h2 alone by itself. */
function connectHttp2(url: string, ALPNProtocols?: string[]): http2.ClientHttp2Session {
  const { hostname: host, port } = new URL(url);
  const connect = () => tls.connect({ host, port: Number(port), ca, ALPNProtocols: ALPNProtocols ?? [] });
  const session = http2.connect(url, ALPNProtocols === undefined ? {} : { createConnection: connect });
  session.on("error", () => {});
  cleanups.push(() => session.destroy());
  return session;
}

interface Answer {
  headers: http2.IncomingHttpHeaders;
  trailers: http2.IncomingHttpHeaders;
  body: Buffer;
}

function request(
  session: http2.ClientHttp2Session,
  headers: http2.OutgoingHttpHeaders,
  body?: Buffer | string,
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const stream = session.request(headers);
    const answer: Answer = { headers: {}, trailers: {}, body: Buffer.alloc(0) };
    stream.on("response", (received) => Object.assign(answer.headers, received));
    stream.on("trailers", (received) => Object.assign(answer.trailers, received));
    stream.on("data", (chunk) => {
      answer.body = Buffer.concat([answer.body, chunk]);
    });
    stream.on("error", reject);
    stream.on("close", () => resolve(answer));
    stream.end(body);
  });
}

const UNARY = "/tendon.test.v1.EchoService/Unary";
const jsonCall = { ":method": "POST", ":path": UNARY, "content-type": "application/json" };
const grpcCall = { ":method": "POST", ":path": UNARY, "content-type": "application/grpc", te: "trailers" };
const emptyMessage = Buffer.alloc(5);

/** Tells grpc-js from connect-node: each names the compressions that it can read. */
const GRPC_JS = "identity,deflate,gzip";

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

test("with TLS a client that offers only h2 gets grpc-js", async () => {
  const { listener, recorder } = await start({ tls: identity });
  const { echo } = open(listener.port, true);
  expect((await echo.unary({ text: "secure" })).text).toBe("secure");
  expect(recorder.peers[0]).toMatch(/^127\.0\.0\.1:\d+$/);
  const session = connectHttp2(`https://127.0.0.1:${listener.port}`, ["h2"]);
  const grpc = await request(session, grpcCall, emptyMessage);
  expect(grpc.headers["grpc-accept-encoding"]).toBe(GRPC_JS);
});

test("with TLS a client that offers h2 and http/1.1 gets HTTP/2 that answers everything", async () => {
  const { listener } = await start({ tls: identity });
  const session = connectHttp2(`https://127.0.0.1:${listener.port}`, ["h2", "http/1.1"]);
  expect((await request(session, { ":path": "/console" })).body.toString()).toContain('"version":"2.0"');
  expect((await request(session, jsonCall, '{"text":"tls"}')).body.toString()).toBe('{"text":"tls"}');
  const grpc = await request(session, grpcCall, emptyMessage);
  expect(grpc.trailers["grpc-status"]).toBe("0");
  expect(grpc.headers["grpc-accept-encoding"]).not.toBe(GRPC_JS);
});

test("with TLS a client that offers http/1.1 or nothing gets HTTP/1.1", async () => {
  const { listener } = await start({ tls: identity });
  for (const ALPNProtocols of [["http/1.1"], undefined]) {
    const body = await new Promise<string>((resolve, reject) => {
      const offered = ALPNProtocols === undefined ? {} : { ALPNProtocols };
      const options = {
        host: "127.0.0.1",
        port: listener.port,
        path: "/plain",
        ca,
        agent: false,
        ...offered,
      };
      const call = https.get(options as https.RequestOptions, (response) => {
        response.setEncoding("utf8").on("data", resolve);
      });
      call.on("error", reject);
    });
    expect(body).toContain('"version":"1.1"');
  }
});

test("a client certificate is demanded when an authority for it is set", async () => {
  const { listener } = await start({ tls: { ...identity, clientCaFile: certificates.caFile } });
  await expect(open(listener.port, true).echo.unary({})).rejects.toMatchObject({ reason: "UNAVAILABLE" });
  const [key, cert] = await Promise.all([readFile(identity.keyFile), readFile(identity.certFile)]);
  const channel = new Channel(`localhost:${listener.port}`, credentials.createSsl(ca, key, cert), {});
  cleanups.push(() => channel.close());
  expect((await createClient(EchoService, channel).unary({ text: "known" })).text).toBe("known");
});

test("TLS files that change are read again, and files that do not fit together change nothing", async () => {
  const next = await certificates.issue("next.test");
  const live = {
    certFile: join(certificates.directory, "live.crt"),
    keyFile: join(certificates.directory, "live.key"),
  };
  await copyFile(identity.certFile, live.certFile);
  await copyFile(identity.keyFile, live.keyFile);
  const { listener } = await start({ tls: live, tlsPollMs: 20 });
  expect(await servedName(listener.port)).toBe("server.test");
  await copyFile(next.certFile, live.certFile);
  expect(await servedName(listener.port)).toBe("server.test");
  await copyFile(next.keyFile, live.keyFile);
  await eventually(async () => (await servedName(listener.port)) === "next.test");
});

function servedName(port: number): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    const socket = tls.connect({ port, host: "127.0.0.1", ca, ALPNProtocols: ["h2"] }, () => {
      resolve(String(socket.getPeerCertificate().subject.CN));
      socket.destroy();
    });
    socket.on("error", reject);
  });
}

test("missing or broken TLS files are named at the start", async () => {
  const certFile = join(certificates.directory, "absent.crt");
  await expect(start({ tls: { ...identity, certFile } })).rejects.toThrow("absent.crt");
  await expect(start({ tls: { ...identity, keyFile: certificates.caFile } })).rejects.toThrow("cannot use");
});

test("a connection that says nothing is closed, with and without TLS", async () => {
  for (const secure of [undefined, identity]) {
    const { listener } = await start({ tls: secure, firstBytesMs: 50 });
    const silent = net.connect(listener.port, "127.0.0.1");
    silent.on("error", () => {}).resume();
    await eventually(() => silent.closed, { withinMs: 2_000 });
    if (secure === undefined) continue;
    const mute = tls.connect({ port: listener.port, host: "127.0.0.1", ca, ALPNProtocols: ["h2"] });
    mute.on("error", () => {}).resume();
    await eventually(() => mute.closed, { withinMs: 2_000 });
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
}, 4_000);

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
}, 60_000);

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

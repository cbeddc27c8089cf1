import http from "node:http";
import net from "node:net";
import { afterEach, expect, test } from "vitest";
import { startEchoServer } from "../../test/kit/echo-server.ts";
import { eventually } from "../../test/kit/eventually.ts";
import { freePort } from "../../test/kit/free-port.ts";
import { EchoService } from "../../test/kit/proto/echo_pb.ts";
import { createCertificates } from "../../test/kit/test-certificates.ts";
import { type DialOptions, dial, parseServerUrl } from "./dial.ts";
import { isLoopback, proxyFor } from "./proxy-rules.ts";

const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) await cleanup();
});

async function start(options: Parameters<typeof startEchoServer>[0] = {}) {
  const server = await startEchoServer(options);
  cleanups.push(() => server.listener.close({ graceMs: 0 }));
  return server;
}

function open(options: Partial<DialOptions> & { url: string }) {
  const connection = dial({ proxy: {}, ...options });
  cleanups.push(() => connection.close());
  return connection;
}

/** A CONNECT proxy that sends every connection to one port, whatever name was asked for. */
async function startProxy(port: number) {
  const asked: { target: string | undefined; authorization: string | undefined }[] = [];
  const sockets = new Set<net.Socket>();
  const server = http.createServer();
  server.on("connect", (request, near: net.Socket) => {
    asked.push({ target: request.url, authorization: request.headers["proxy-authorization"] });
    const far = net.connect(port, "127.0.0.1", () => {
      near.write("HTTP/1.1 200 Connection established\r\n\r\n");
      near.pipe(far).pipe(near);
    });
    for (const socket of [near, far]) sockets.add(socket.on("error", () => {}));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  cleanups.push(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return { asked, port: (server.address() as net.AddressInfo).port };
}

test("a clear connection carries the token, asked for at each call", async () => {
  const { listener } = await start();
  let token: string | undefined = "first";
  const seen: (string | undefined)[] = [];
  const connection = open({ url: `http://127.0.0.1:${listener.port}`, token: () => token });
  const watching = await start({
    interceptors: [{ onCall: (context) => void seen.push(context.requestHeaders.get("authorization")) }],
  });
  const watched = open({ url: `http://127.0.0.1:${watching.listener.port}`, token: () => token });
  const echo = watched.client(EchoService);
  await echo.unary({});
  token = "second";
  await echo.unary({});
  token = undefined;
  await echo.unary({});
  expect(seen).toEqual(["Bearer first", "Bearer second", undefined]);
  expect((await connection.client(EchoService).unary({ text: "clear" })).text).toBe("clear");
});

test("a secure connection trusts the given authority, and by default none that it does not know", async () => {
  const certificates = await createCertificates();
  cleanups.push(() => certificates.remove());
  const { listener } = await start({ tls: await certificates.issue("server.test") });
  const url = `https://localhost:${listener.port}`;
  const trusted = open({ url, caFile: certificates.caFile });
  expect((await trusted.client(EchoService).unary({ text: "secure" })).text).toBe("secure");
  await expect(open({ url }).client(EchoService).unary({})).rejects.toMatchObject({ reason: "UNAVAILABLE" });
  expect(() => open({ url, caFile: "/nowhere/ca.pem" })).toThrow("cannot read /nowhere/ca.pem");
});

test("the certificate of a server that is named by its address is checked against the address", async () => {
  const certificates = await createCertificates();
  cleanups.push(() => certificates.remove());
  const { caFile } = certificates;
  const tls = await certificates.issue("server.test");
  const named = await start({ tls });
  const good = open({ url: `https://127.0.0.1:${named.listener.port}`, caFile });
  expect((await good.client(EchoService).unary({ text: "by address" })).text).toBe("by address");
  const unnamed = await start({ tls, host: "127.0.0.2" });
  const bad = open({ url: `https://127.0.0.2:${unnamed.listener.port}`, caFile });
  await expect(bad.client(EchoService).unary({})).rejects.toMatchObject({
    message: expect.stringContaining("127.0.0.2 is not in the cert's list"),
  });
});

test("a proxy is used by setting, with its credentials, and the server's certificate is checked by its own name", async () => {
  const certificates = await createCertificates();
  cleanups.push(() => certificates.remove());
  const { listener } = await start({ tls: await certificates.issue("server.test") });
  const proxy = await startProxy(listener.port);
  const settings = { httpsProxy: `http://ada:p%40ss@127.0.0.1:${proxy.port}` };
  const named = open({ url: "https://server.test:7400", caFile: certificates.caFile, proxy: settings });
  expect((await named.client(EchoService).unary({ text: "through" })).text).toBe("through");
  expect(proxy.asked).toEqual([
    {
      target: "server.test:7400",
      authorization: `Basic ${Buffer.from("ada:p@ss").toString("base64")}`,
    },
  ]);
  const other = open({ url: "https://other.test:7400", caFile: certificates.caFile, proxy: settings });
  await expect(other.client(EchoService).unary({})).rejects.toMatchObject({ reason: "UNAVAILABLE" });
});

test("loopback and exempt names are not proxied, and the variables that grpc-js reads are ignored", async () => {
  const { listener } = await start();
  const proxy = await startProxy(listener.port);
  const httpsProxy = `http://127.0.0.1:${proxy.port}`;
  const names = ["grpc_proxy", "https_proxy", "http_proxy"];
  const before = names.map((name) => process.env[name]);
  for (const name of names) process.env[name] = httpsProxy;
  try {
    const direct = open({ url: `http://127.0.0.1:${listener.port}`, proxy: { httpsProxy } });
    expect((await direct.client(EchoService).unary({ text: "direct" })).text).toBe("direct");
    const unset = open({ url: `http://localhost:${listener.port}` });
    expect((await unset.client(EchoService).unary({ text: "direct" })).text).toBe("direct");
  } finally {
    for (const [index, name] of names.entries()) {
      if (before[index] === undefined) delete process.env[name];
      else process.env[name] = before[index];
    }
  }
  expect(proxy.asked).toEqual([]);
});

test("a connection comes back after the server did", async () => {
  const port = await freePort();
  const first = await start({ port });
  const echo = open({ url: `http://127.0.0.1:${port}` }).client(EchoService);
  await echo.unary({});
  await first.listener.close({ graceMs: 0 });
  await expect(echo.unary({}, { deadlineMs: 30_000 })).rejects.toMatchObject({ reason: "UNAVAILABLE" });
  await start({ port });
  await eventually(() => echo.unary({}, { deadlineMs: 5_000 }));
});

test("closing ends open calls", async () => {
  const { listener, recorder } = await start();
  const connection = open({ url: `http://127.0.0.1:${listener.port}` });
  const call = connection.client(EchoService).unary({ failWith: "wait" });
  await eventually(() => recorder.started === 1);
  connection.close();
  await expect(call).rejects.toMatchObject({ reason: "CANCELLED" });
  await eventually(() => recorder.finished.includes("unary"));
});

test("URLs of servers are checked", () => {
  expect(parseServerUrl("http://localhost:7400")).toEqual({ host: "localhost", port: 7400, secure: false });
  expect(parseServerUrl("https://tendon.example/")).toEqual({
    host: "tendon.example",
    port: 443,
    secure: true,
  });
  expect(parseServerUrl("http://[::1]:1")).toEqual({ host: "[::1]", port: 1, secure: false });
  for (const bad of ["localhost:7400", "ftp://x", "http://", "http://u:p@h", "http://h/path", "http://h?x"]) {
    expect(() => parseServerUrl(bad)).toThrow();
  }
});

test("NO_PROXY names hosts, domains, networks and ports", () => {
  const httpsProxy = "http://proxy:3128";
  const proxied = (host: string, noProxy: string, port = 443) =>
    proxyFor(host, port, { httpsProxy, noProxy }) !== undefined;
  expect(proxyFor("a.example", 443, {})).toBeUndefined();
  expect(proxyFor("a.example", 443, { httpsProxy })).toEqual({
    host: "proxy",
    port: 3128,
    credentials: undefined,
  });
  expect(proxied("a.example", "*")).toBe(false);
  expect(proxied("a.example", "b.example, example")).toBe(false);
  expect(proxied("a.example", ".example")).toBe(false);
  expect(proxied("a.example", "*.example")).toBe(false);
  expect(proxied("notexample", "example")).toBe(true);
  expect(proxied("A.Example", "a.example:443")).toBe(false);
  expect(proxied("a.example", "a.example:8443")).toBe(true);
  expect(proxied("10.1.2.3", "10.0.0.0/8")).toBe(false);
  expect(proxied("11.1.2.3", "10.0.0.0/8,garbage/99")).toBe(true);
  expect(() => proxyFor("a", 1, { httpsProxy: "https://u:secret@proxy" })).toThrow(/^(?!.*secret)/);
  for (const host of ["localhost", "127.9.9.9", "[::1]", "x.localhost"]) expect(isLoopback(host)).toBe(true);
  for (const host of ["127.example", "example", "10.0.0.1"]) expect(isLoopback(host)).toBe(false);
});

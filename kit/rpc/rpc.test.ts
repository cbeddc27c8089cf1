import { Writable } from "node:stream";
import { create, toBinary } from "@bufbuild/protobuf";
import {
  Channel,
  type ChannelOptions,
  credentials,
  Client as GrpcClient,
  Metadata,
  ServerCredentials,
  status,
} from "@grpc/grpc-js";
import { pino } from "pino";
import { afterEach, expect, test } from "vitest";
import { type EchoServer, startEchoServer } from "../../test/kit/echo-server.ts";
import { eventually } from "../../test/kit/eventually.ts";
import { failure } from "../../test/kit/failure.ts";
import { EchoRequestSchema, EchoService } from "../../test/kit/proto/echo_pb.ts";
import { TendonError } from "../errors.ts";
import { MAX_GRPC_MESSAGE_BYTES } from "../limits.ts";
import { createLogger } from "../log.ts";
import { type CallOptions, type Client, createClient } from "./client.ts";
import { createContextKey } from "./context.ts";
import { createGrpcServer, mountGrpc } from "./mount-grpc.ts";
import type { RpcInterceptor } from "./pipeline.ts";
import { bindService, bufferOf } from "./service.ts";
import { RemoteError } from "./status.ts";

const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) await cleanup();
});

async function start(options: Parameters<typeof startEchoServer>[0] = {}) {
  const server = await startEchoServer(options);
  cleanups.push(() => server.listener.close({ graceMs: 0 }));
  return server;
}

function open(
  server: EchoServer,
  options: ChannelOptions = {},
): { echo: Client<typeof EchoService>; channel: Channel } {
  const channel = new Channel(`127.0.0.1:${server.listener.port}`, credentials.createInsecure(), {
    "grpc.use_local_subchannel_pool": 1,
    ...options,
  });
  cleanups.push(() => channel.close());
  return { echo: createClient(EchoService, channel), channel };
}

async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const item of items) all.push(item);
  return all;
}

test("a unary call carries headers, trailers and the deadline both ways", async () => {
  const { echo } = open(await start());
  const seen: (string | undefined)[] = [];
  const options: CallOptions = {
    headers: { "x-request": "hello" },
    deadlineMs: 5_000,
    onHeaders: (headers) => seen.push(headers.get("x-echo-header")),
    onTrailers: (trailers) => seen.push(trailers.get("x-echo-trailer")),
  };
  const reply = await echo.unary({ text: "hi", data: new Uint8Array([1, 2]) }, options);
  expect(reply.text).toBe("hi");
  expect([...reply.data]).toEqual([1, 2]);
  expect(seen).toEqual(["hello", "true"]);
});

test("streams of every kind deliver all messages in order", async () => {
  const { echo } = open(await start());
  const indexes = (await collect(echo.serverStream({ count: 1000, size: 10 }))).map(({ index }) => index);
  expect(indexes).toEqual(Array.from({ length: 1000 }, (_, index) => index));

  const upload = echo.clientStream();
  for (const text of ["a", "b", "c"]) await upload.send({ text });
  expect((await upload.end()).text).toBe("a,b,c");

  const bidi = echo.bidi();
  for (const text of ["x", "y"]) await bidi.send({ text });
  bidi.end();
  expect((await collect(bidi.responses)).map(({ text }) => text)).toEqual(["x", "y"]);
});

test("the metadata of the client is asked for at each call", async () => {
  const server = await start();
  const { channel } = open(server);
  let token = "one";
  const echo = createClient(EchoService, channel, { metadata: () => ({ "x-request": token }) });
  const seen: (string | undefined)[] = [];
  const onHeaders: CallOptions["onHeaders"] = (headers) => seen.push(headers.get("x-echo-header"));
  await echo.unary({}, { onHeaders });
  token = "two";
  await echo.unary({}, { onHeaders });
  expect(seen).toEqual(["one", "two"]);
});

test("a TendonError arrives with reason, code, message and metadata", async () => {
  const { echo } = open(await start());
  const error = await failure(echo.unary({ text: "é 100% \ud800", failWith: "LEASE_FENCED" }));
  expect(error.reason).toBe("LEASE_FENCED");
  expect(error.code).toBe(status.FAILED_PRECONDITION);
  expect(error.message).toBe("failed: é 100% \ufffd");
  expect(error.metadata).toEqual({ text: "é 100% \ufffd" });
});

test("an error with a very long text still arrives, cut", async () => {
  const { echo } = open(await start());
  const error = await failure(echo.unary({ text: "漢".repeat(50_000), failWith: "NOT_FOUND" }));
  expect(error.reason).toBe("NOT_FOUND");
  expect(encodeURI(error.message).length).toBeLessThan(2100);
  expect(error.message.endsWith("…")).toBe(true);
});

test("the text of a bug stays inside, is logged with method and request id, and both ends share that id", async () => {
  const lines: string[] = [];
  const log = pino(
    { level: "error" },
    new Writable({
      write(chunk, _encoding, done) {
        lines.push(String(chunk));
        done();
      },
    }),
  );
  const { echo } = open(await start({ log }));
  const error = await failure(echo.unary({ failWith: "bug" }));
  expect(error.message).toBe("internal error");
  expect(error.reason).toBe("INTERNAL");
  expect(error.metadata.request_id).toMatch(/^req_/);
  const logged = JSON.parse(lines[0]!);
  expect(logged).toMatchObject({
    method: "/tendon.test.v1.EchoService/Unary",
    requestId: error.metadata.request_id,
  });
  expect(logged.err.message).toContain("hunter2");
});

test("a request that breaks a rule of the proto is refused with the field's path", async () => {
  const server = await start();
  const { echo } = open(server);
  const error = await failure(echo.unary({ inner: { name: "much too long" } }));
  expect(error.reason).toBe("INVALID_FIELD");
  expect(error.metadata.field).toBe("inner.name");
  expect(error.message).toContain("inner.name: ");
  expect(server.recorder.started).toBe(0);
});

test("every message of a client's stream is validated", async () => {
  const { echo } = open(await start());
  const bidi = echo.bidi();
  await bidi.send({ text: "fine" });
  const responses = bidi.responses[Symbol.asyncIterator]();
  expect((await responses.next()).value.text).toBe("fine");
  await bidi.send({ count: -1 });
  const error = await failure(responses.next());
  expect(error.metadata.field).toBe("count");
});

test("bytes that are no message are the caller's fault", async () => {
  const { channel } = open(await start());
  const raw = new GrpcClient("", credentials.createInsecure(), { channelOverride: channel });
  const code = await new Promise((resolve) => {
    const garbage = Buffer.from([0x0a, 0xff, 0xff, 0x01]);
    const same = (bytes: Buffer) => bytes;
    raw.makeUnaryRequest(
      "/tendon.test.v1.EchoService/Unary",
      same,
      same,
      garbage,
      new Metadata(),
      {},
      (error) => resolve(error?.code),
    );
  });
  expect(code).toBe(status.INVALID_ARGUMENT);
});

test("cancelling a unary call aborts the implementation's signal", async () => {
  const { recorder, ...server } = await start();
  const { echo } = open({ recorder, ...server });
  const controller = new AbortController();
  const call = failure(echo.unary({ failWith: "wait" }, { signal: controller.signal }));
  await eventually(() => recorder.started === 1);
  controller.abort(new TendonError("DRAINING", "going away"));
  expect((await call).reason).toBe("DRAINING");
  await eventually(() => recorder.finished.includes("unary"));
  expect(recorder.aborted[0]).toMatchObject({ reason: "CANCELLED" });
});

test("a deadline ends the call on both sides", async () => {
  const { recorder, ...server } = await start();
  const { echo } = open({ recorder, ...server });
  const error = await failure(echo.unary({ failWith: "wait" }, { deadlineMs: 100 }));
  expect(error.reason).toBe("DEADLINE_EXCEEDED");
  await eventually(() => recorder.finished.includes("unary"));
  // The caller's clock may be the faster one, and then the server hears of its hanging up first.
  expect(recorder.aborted[0]).toMatchObject({
    reason: expect.stringMatching(/^(DEADLINE_EXCEEDED|CANCELLED)$/),
  });
});

test("a call that was given up before it began is never sent", async () => {
  const { recorder, ...server } = await start();
  const { echo } = open({ recorder, ...server });
  const error = await failure(echo.unary({}, { signal: AbortSignal.abort() }));
  expect(error.reason).toBe("CANCELLED");
  expect(recorder.started).toBe(0);
});

test("leaving the loop over a stream runs the implementation's finally", async () => {
  const { recorder, ...server } = await start();
  const { echo } = open({ recorder, ...server });
  for await (const { index } of echo.serverStream({ count: 3, failWith: "wait" })) if (index === 2) break;
  await eventually(() => recorder.finished.includes("serverStream"));
  expect(recorder.aborted[0]).toMatchObject({ reason: "CANCELLED" });
});

test("cancelling a bidi call ends the implementation's loop over the requests", async () => {
  const { recorder, ...server } = await start();
  const { echo } = open({ recorder, ...server });
  const bidi = echo.bidi();
  await bidi.send({ text: "one" });
  await eventually(() => recorder.received === 1);
  bidi.cancel();
  expect((await failure(collect(bidi.responses))).reason).toBe("CANCELLED");
  await eventually(() => recorder.finished.includes("bidi"));
  expect((await failure(bidi.send({ text: "late" }))).reason).toBe("CANCELLED");
});

test("a stream that ends in an error throws it after the messages, and trailers follow a good end", async () => {
  const { echo } = open(await start());
  const seen: unknown[] = [];
  const read = async () => {
    for await (const { index } of echo.serverStream({ count: 2, failWith: "RESYNC" })) seen.push(index);
  };
  expect((await failure(read())).reason).toBe("RESYNC");
  const trailers: unknown[] = [];
  await collect(
    echo.serverStream({ count: 1 }, { onTrailers: (t) => trailers.push(t.get("x-echo-trailer")) }),
  );
  expect(trailers).toEqual(["stream"]);
});

test("an error of the server ends a sender that still has messages", async () => {
  const { echo } = open(await start());
  const bidi = echo.bidi();
  await bidi.send({ failWith: "DRAINING" });
  const error = await failure(collect(bidi.responses));
  expect(error.reason).toBe("DRAINING");
  expect((await failure(bidi.send({ text: "more" }))).reason).toBe("DRAINING");
});

test("an error right after a message reaches a caller that goes on asking, while its requests are being read", async () => {
  const methods = new Map<string, never>();
  for (const { localName } of EchoService.methods) methods.set(localName, (() => {}) as never);
  async function* bidi(requests: AsyncIterable<{ text: string }>) {
    const iterator = requests[Symbol.asyncIterator]();
    const first = await iterator.next();
    iterator.next().catch(() => {});
    yield { text: first.value?.text };
    throw new TendonError("NOT_FOUND", "it is gone");
  }
  methods.set("bidi", bidi as never);
  const server = createGrpcServer();
  mountGrpc(server, [{ service: EchoService, methods }], {
    interceptors: [],
    log: createLogger("test", "silent"),
  });
  const port = await new Promise<number>((resolve, reject) => {
    server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, bound) =>
      error ? reject(error) : resolve(bound),
    );
  });
  cleanups.push(() => server.forceShutdown());
  const channel = new Channel(`127.0.0.1:${port}`, credentials.createInsecure(), {});
  cleanups.push(() => channel.close());
  for (let round = 0; round < 20; round += 1) {
    const call = createClient(EchoService, channel).bidi();
    await call.send({ text: "x" });
    expect((await failure(collect(call.responses))).reason).toBe("NOT_FOUND");
  }
});

test("a status from elsewhere keeps its code and claims no reason of ours", async () => {
  const server = await start();
  const channel = new Channel("127.0.0.1:1", credentials.createInsecure(), {});
  cleanups.push(() => channel.close());
  const unavailable = await failure(createClient(EchoService, channel).unary({}));
  expect(unavailable).toBeInstanceOf(RemoteError);
  expect([unavailable.reason, unavailable.code]).toEqual(["UNAVAILABLE", status.UNAVAILABLE]);

  const aborting = createGrpcServer();
  aborting.register(
    "/tendon.test.v1.EchoService/Unary",
    (_call: unknown, callback: (error: { code: status; details: string }) => void) =>
      callback({ code: status.ABORTED, details: "elsewhere" }),
    (bytes: Buffer) => bytes,
    (bytes: Buffer) => bytes,
    "unary",
  );
  const port = await new Promise<number>((resolve) =>
    aborting.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (_error, bound) => resolve(bound)),
  );
  cleanups.push(() => aborting.forceShutdown());
  const other = new Channel(`127.0.0.1:${port}`, credentials.createInsecure(), {});
  cleanups.push(() => other.close());
  const aborted = await failure(createClient(EchoService, other).unary({}));
  expect([aborted.reason, aborted.code]).toEqual(["INTERNAL", status.ABORTED]);
  expect(server.recorder.started).toBe(0);
});

test("a message above 3 MiB is refused cleanly and the connection lives on", async () => {
  const server = await start();
  const { echo, channel } = open(server, { "grpc.max_send_message_length": -1 });
  await echo.unary({});
  const raw = new GrpcClient("", credentials.createInsecure(), { channelOverride: channel });
  const big = create(EchoRequestSchema, { data: new Uint8Array(4 * 1024 * 1024) });
  const same = (bytes: Buffer) => bytes;
  const code = await new Promise((resolve) => {
    const bytes = bufferOf(toBinary(EchoRequestSchema, big));
    raw.makeUnaryRequest(
      "/tendon.test.v1.EchoService/Unary",
      same,
      same,
      bytes,
      new Metadata(),
      {},
      (error) => resolve(error?.code),
    );
  });
  expect(code).toBe(status.RESOURCE_EXHAUSTED);
  await echo.unary({ data: new Uint8Array(MAX_GRPC_MESSAGE_BYTES - 100) });
  expect(new Set(server.recorder.peers).size).toBe(1);
  expect((await failure(echo.unary({ data: new Uint8Array(4 * 1024 * 1024) }))).reason).toBe(
    "MESSAGE_TOO_LARGE",
  );
  expect((await failure(collect(echo.serverStream({ count: 1, size: 4 * 1024 * 1024 })))).reason).toBe(
    "MESSAGE_TOO_LARGE",
  );
});

test("a producer of 200 MB waits for a reader that does not read, in bounded memory", async () => {
  const { recorder, ...server } = await start();
  const { echo } = open({ recorder, ...server });
  const size = 256 * 1024;
  const count = 800;
  const before = process.memoryUsage().rss;
  const call = echo.serverStream({ count, size });
  const reader = call[Symbol.asyncIterator]();
  await reader.next();
  const stalledAt = await stable(() => recorder.yielded);
  // Read ahead on both sides, the windows of HTTP/2 and the sockets' buffers.
  expect(stalledAt * size).toBeLessThan(16 * 1024 * 1024);
  expect(process.memoryUsage().rss - before).toBeLessThan(100 * 1024 * 1024);
  let read = 1;
  while (!(await reader.next()).done) read += 1;
  expect(read).toBe(count);
});

test("a client's stream waits for a server that does not read", async () => {
  const { recorder, ...server } = await start();
  const { echo } = open({ recorder, ...server });
  const bidi = echo.bidi();
  const size = 256 * 1024;
  let sent = 0;
  await bidi.send({ failWith: "stall" });
  const sending = (async () => {
    for (; sent < 800; sent++) await bidi.send({ data: new Uint8Array(size) });
  })();
  const outcome = failure(sending);
  await eventually(() => recorder.received === 1);
  expect((await stable(() => sent)) * size).toBeLessThan(16 * 1024 * 1024);
  bidi.cancel();
  expect((await outcome).reason).toBe("CANCELLED");
});

test("interceptors run in order, share values, see every message and one end", async () => {
  const principal = createContextKey<string>("principal");
  const seen: string[] = [];
  const interceptors: RpcInterceptor[] = [
    {
      async onCall(context) {
        context.set(principal, context.requestHeaders.get("x-request") ?? "nobody");
        seen.push(`authenticate ${context.method.name}`);
      },
      onEnd: (_context, end) => seen.push(`end ${status[end.code]}`),
    },
    {
      onCall(context) {
        if (context.get(principal) === "nobody") throw new TendonError("UNAUTHENTICATED", "who are you");
      },
      onRequest: (context) => {
        seen.push(`request of ${context.get(principal)}`);
      },
    },
  ];
  const server = await start({ interceptors });
  const { echo } = open(server);
  const headers = { "x-request": "ada" };
  await echo.unary({}, { headers });
  const bidi = echo.bidi({ headers });
  await bidi.send({});
  await bidi.send({});
  bidi.end();
  await collect(bidi.responses);
  expect((await failure(echo.unary({}))).reason).toBe("UNAUTHENTICATED");
  expect((await failure(collect(echo.bidi().responses))).reason).toBe("UNAUTHENTICATED");
  expect(seen).toEqual([
    ...["authenticate Unary", "request of ada", "end OK"],
    ...["authenticate Bidi", "request of ada", "request of ada", "end OK"],
    ...["authenticate Unary", "end UNAUTHENTICATED", "authenticate Bidi", "end UNAUTHENTICATED"],
  ]);
  expect(server.recorder.started).toBe(2);
});

test("a service without one of its methods, or mounted twice, does not start", () => {
  expect(() => bindService(EchoService, {} as never)).toThrow("has no implementation of unary");
  const services = [bindService(EchoService, new Proxy({}, { get: () => async () => ({}) }) as never)];
  const server = createGrpcServer();
  const options = { interceptors: [], log: createLogger("test", "silent") };
  mountGrpc(server, services, options);
  expect(() => mountGrpc(server, services, options)).toThrow("mounted twice");
});

/** The value once it has been the same for a while: what a writer reached before it had to wait. */
async function stable(value: () => number): Promise<number> {
  let last = -1;
  let sameFor = 0;
  return eventually(() => {
    sameFor = value() === last ? sameFor + 1 : 0;
    last = value();
    return sameFor >= 25 && last > 0 ? last : undefined;
  });
}

import { connect as connectHttp2 } from "node:http2";
import { Writable } from "node:stream";
import { create, toBinary } from "@bufbuild/protobuf";
import {
  Channel,
  credentials,
  Client as GrpcClient,
  Metadata,
  type ServiceError,
  status,
} from "@grpc/grpc-js";
import { pino } from "pino";
import { afterEach, expect, test } from "vitest";
import { startEchoServer } from "../../test/kit/echo-server.ts";
import { EchoRequestSchema } from "../../test/kit/proto/echo_pb.ts";
import { passBytes } from "./codec.ts";
import { errorFromStatus } from "./status.ts";

const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) await cleanup();
});

const logged: string[] = [];

async function start(options: Parameters<typeof startEchoServer>[0] = {}) {
  logged.length = 0;
  const log = pino(
    { level: "info" },
    new Writable({
      write(chunk, _encoding, done) {
        logged.push(String(chunk));
        done();
      },
    }),
  );
  const server = await startEchoServer({ log, ...options });
  cleanups.push(() => server.listener.close({ graceMs: 0 }));
  return server;
}

interface Answer {
  code: string;
  message: string;
  reason: string | undefined;
  field: string | undefined;
  requestId: string | undefined;
}

const NOT_UTF8 = Buffer.concat([
  Buffer.from('{"text":"'),
  Buffer.from([0xff, 0xfe, 0xc3]),
  Buffer.from('"}'),
]);
const SECRET = "hunter2-hunter2";

/** A body that is no request, what it is called, and what the answer says. */
const JSON_BODIES: [string, Buffer, RegExp, string | undefined][] = [
  ["bytes that are not UTF-8", NOT_UTF8, /^the body is not valid UTF-8$/, undefined],
  ["half a surrogate pair", Buffer.from('{"text":"\\ud800"}'), /text: .*surrogate/, "text"],
  ["what is no JSON", Buffer.from(`{"text":"${SECRET}" oops`), /^the body is not valid JSON/, undefined],
  ["a JSON array", Buffer.from("[1]"), /EchoRequest/, undefined],
  ["an unknown field", Buffer.from('{"texd":"a"}'), /^texd: .*unknown/, "texd"],
  ["an unknown field inside", Buffer.from('{"inner":{"nam":"a"}}'), /^nam: .*unknown.*Inner/, "nam"],
  ["a wrong type", Buffer.from('{"text":17}'), /^text: .*string/, "text"],
  ["a number out of range", Buffer.from(`{"count":"${SECRET}"}`), /^count: /, "count"],
];
const NO_MESSAGE = Buffer.from([0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
const PROTO_BODIES: [string, Buffer, RegExp, string | undefined][] = [
  ["a varint that never ends", NO_MESSAGE, /no tendon\.test\.v1\.EchoRequest/, undefined],
  ["a truncated message", Buffer.from([0x0a, 0x10, 0x61]), /no tendon\.test\.v1\.EchoRequest/, undefined],
  ["a string that is not UTF-8", Buffer.from([0x0a, 0x02, 0xff, 0xfe]), /UTF-8|utf-8/, undefined],
];

const envelope = (bytes: Buffer) => {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(bytes.length, 1);
  return Buffer.concat([head, bytes]);
};

async function post(port: number, method: string, contentType: string, body: Buffer): Promise<Response> {
  return fetch(`http://127.0.0.1:${port}/tendon.test.v1.EchoService/${method}`, {
    method: "POST",
    headers: { "content-type": contentType },
    body: new Uint8Array(body),
  });
}

type ConnectErrorJson = {
  code: string;
  message: string;
  details?: { debug?: { reason?: string; metadata?: { field?: string } } }[];
};

function answerOf(error: ConnectErrorJson, requestId: string | null | undefined): Answer {
  const info = error.details?.[0]?.debug;
  return {
    code: error.code,
    message: error.message,
    reason: info?.reason,
    field: info?.metadata?.field,
    requestId: requestId ?? undefined,
  };
}

async function connectUnary(port: number, contentType: string, body: Buffer): Promise<Answer> {
  const response = await post(port, "Unary", contentType, body);
  expect(response.status).toBe(400);
  return answerOf((await response.json()) as ConnectErrorJson, response.headers.get("request-id"));
}

async function connectStream(
  port: number,
  method: string,
  contentType: string,
  body: Buffer,
): Promise<Answer> {
  const response = await post(port, method, contentType, envelope(body));
  const bytes = Buffer.from(await response.arrayBuffer());
  const end = JSON.parse(bytes.subarray(5).toString()) as { error: ConnectErrorJson };
  return answerOf(end.error, response.headers.get("request-id"));
}

/** The trailers of an answer on a gRPC wire as the error that our clients make of them. */
function fromTrailers(trailers: Map<string, string>): Answer {
  const metadata = new Metadata();
  const details = trailers.get("grpc-status-details-bin");
  if (details !== undefined) metadata.set("grpc-status-details-bin", Buffer.from(details, "base64"));
  const error = errorFromStatus({
    code: Number(trailers.get("grpc-status")),
    details: decodeURIComponent(trailers.get("grpc-message") ?? ""),
    metadata,
  });
  return {
    code: status[error.code]!.toLowerCase(),
    message: error.message,
    reason: error.reason,
    field: error.metadata.field,
    requestId: trailers.get("request-id"),
  };
}

async function grpcWeb(port: number, contentType: string, body: Buffer): Promise<Answer> {
  const response = await post(port, "Unary", contentType, envelope(body));
  const bytes = Buffer.from(await response.arrayBuffer());
  expect(bytes[0]).toBe(0x80);
  const lines = bytes.subarray(5).toString().trim().split("\r\n");
  return fromTrailers(new Map(lines.map((line) => line.split(/: ?(.*)/s, 2) as [string, string])));
}

async function grpcOverNodesHttp2(port: number, body: Buffer): Promise<Answer> {
  const session = connectHttp2(`http://127.0.0.1:${port}`);
  try {
    const request = session.request({
      ":method": "POST",
      ":path": "/tendon.test.v1.EchoService/Unary",
      "content-type": "application/grpc",
      te: "trailers",
    });
    const trailers = new Promise<Map<string, string>>((resolve, reject) => {
      request.on("trailers", (headers) => resolve(new Map(Object.entries(headers) as [string, string][])));
      request.on("error", reject);
    });
    request.resume().end(envelope(body));
    return fromTrailers(await trailers);
  } finally {
    session.destroy();
  }
}

async function grpc(port: number, body: Buffer): Promise<Answer> {
  const channel = new Channel(`127.0.0.1:${port}`, credentials.createInsecure(), {});
  cleanups.push(() => channel.close());
  const client = new GrpcClient("", credentials.createInsecure(), { channelOverride: channel });
  const failed = await new Promise<ServiceError>((resolve, reject) => {
    const path = "/tendon.test.v1.EchoService/Unary";
    client.makeUnaryRequest(path, passBytes, passBytes, body, new Metadata(), {}, (error) =>
      error === null ? reject(new Error("it was accepted")) : resolve(error),
    );
  });
  const error = errorFromStatus(failed);
  return {
    code: status[error.code]!.toLowerCase(),
    message: error.message,
    reason: error.reason,
    field: error.metadata.field,
    requestId: failed.metadata.get("request-id")[0] as string | undefined,
  };
}

function expectRefusal(answer: Answer, message: RegExp, field: string | undefined): void {
  expect(answer).toMatchObject({ code: "invalid_argument", reason: "INVALID_FIELD" });
  expect(answer.field).toBe(field);
  expect(answer.message).toMatch(message);
  expect(answer.message).not.toContain(SECRET);
  expect(answer.requestId).toMatch(/^req_/);
}

test.each(JSON_BODIES)(
  "%s is refused on every wire that carries JSON",
  async (_name, body, message, field) => {
    const { listener, recorder } = await start();
    const { port } = listener;
    expectRefusal(await connectUnary(port, "application/json", body), message, field);
    for (const method of ["ServerStream", "ClientStream"]) {
      expectRefusal(await connectStream(port, method, "application/connect+json", body), message, field);
    }
    expectRefusal(await grpcWeb(port, "application/grpc-web+json", body), message, field);
    expect(recorder.started).toBe(0);
    expect(logged).toEqual([]);
  },
);

test.each(PROTO_BODIES)("%s is refused on every wire that carries protobuf", async (_name, body, message) => {
  const { listener, recorder } = await start();
  const { port } = listener;
  expectRefusal(await connectUnary(port, "application/proto", body), message, undefined);
  for (const method of ["ServerStream", "ClientStream"]) {
    expectRefusal(await connectStream(port, method, "application/connect+proto", body), message, undefined);
  }
  expectRefusal(await grpcWeb(port, "application/grpc-web+proto", body), message, undefined);
  expectRefusal(await grpc(port, body), message, undefined);
  const mixed = await start({ h2c: "mixed" });
  expectRefusal(await grpcOverNodesHttp2(mixed.listener.port, body), message, undefined);
  expect(recorder.started + mixed.recorder.started).toBe(0);
  expect(logged).toEqual([]);
});

test("a long refusal is short, also for a client that takes compressed answers", async () => {
  const { listener } = await start();
  const body = Buffer.from(`{"${"x".repeat(100_000)}":1}`);
  const answer = await connectUnary(listener.port, "application/json", body);
  expect(answer.reason).toBe("INVALID_FIELD");
  expect(answer.message.length).toBeLessThan(2_100);
});

test("a body above the bound is too large on every wire", async () => {
  const { listener } = await start();
  const body = Buffer.from(JSON.stringify({ text: "x".repeat(4 * 1024 * 1024) }));
  const response = await post(listener.port, "Unary", "application/json", body);
  const answer = answerOf((await response.json()) as ConnectErrorJson, response.headers.get("request-id"));
  expect(answer).toMatchObject({ code: "resource_exhausted", reason: "MESSAGE_TOO_LARGE" });
  expect(answer.requestId).toMatch(/^req_/);
});

test("the request id comes with successes and with failures, on every wire", async () => {
  const { listener } = await start();
  const { port } = listener;
  const good = await post(port, "Unary", "application/json", Buffer.from('{"text":"hi"}'));
  expect(await good.json()).toEqual({ text: "hi" });
  expect(good.headers.get("request-id")).toMatch(/^req_/);
  const asked = { text: "x", failWith: "NOT_FOUND" };
  const failed = await post(port, "Unary", "application/json", Buffer.from(JSON.stringify(asked)));
  expect(failed.status).toBe(404);
  expect(failed.headers.get("request-id")).toMatch(/^req_/);
  const bytes = Buffer.from(toBinary(EchoRequestSchema, create(EchoRequestSchema, asked)));
  for (const answer of [
    await connectStream(port, "ServerStream", "application/connect+json", Buffer.from(JSON.stringify(asked))),
    await grpcWeb(port, "application/grpc-web+proto", bytes),
    await grpc(port, bytes),
    await grpcOverNodesHttp2((await start({ h2c: "mixed" })).listener.port, bytes),
  ]) {
    expect(answer).toMatchObject({ code: "not_found", reason: "NOT_FOUND" });
    expect(answer.requestId).toMatch(/^req_/);
  }
});

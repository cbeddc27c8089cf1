/** Servers at a real port and clients of them, for tests of what one port answers: each closed after its test. */
import { readFile } from "node:fs/promises";
import http2 from "node:http2";
import tls from "node:tls";
import { Channel, credentials } from "@grpc/grpc-js";
import { afterAll, afterEach, beforeAll } from "vitest";
import type { ListenOptions } from "../../kit/listen/listen.ts";
import { type Client, createClient } from "../../kit/rpc/client.ts";
import { type EchoServer, startEchoServer } from "./echo-server.ts";
import { EchoService } from "./proto/echo_pb.ts";
import { createCertificates, type TestCertificates } from "./test-certificates.ts";

/** What a server speaks TLS with, and who vouches for it. */
export interface ListenCertificates {
  certificates: TestCertificates;
  identity: { certFile: string; keyFile: string };
  ca: Buffer;
}

export interface ListenRig {
  /** Run after the test, the newest first. */
  cleanups: (() => Promise<void> | void)[];
  start(options?: Partial<ListenOptions>): Promise<EchoServer>;
  open(port: number, secure?: boolean): { channel: Channel; echo: Client<typeof EchoService> };
  /** Node's client offers h2 alone by itself. */
  connectHttp2(url: string, ALPNProtocols?: string[]): http2.ClientHttp2Session;
}

/** For all tests of a file; `take` gets the certificates before the first one begins. */
export function useListenRig(take: (made: ListenCertificates) => void): ListenRig {
  let made: ListenCertificates;
  beforeAll(async () => {
    const certificates = await createCertificates();
    const identity = await certificates.issue("server.test");
    made = { certificates, identity, ca: await readFile(certificates.caFile) };
    take(made);
  });
  afterAll(() => made.certificates.remove());

  const cleanups: ListenRig["cleanups"] = [];
  afterEach(async () => {
    for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) await cleanup();
  });

  return {
    cleanups,
    async start(options = {}) {
      const server = await startEchoServer(options);
      cleanups.push(() => server.listener.close({ graceMs: 0 }));
      return server;
    },
    open(port, secure = false) {
      const creds = secure ? credentials.createSsl(made.ca) : credentials.createInsecure();
      const channel = new Channel(`localhost:${port}`, creds, { "grpc.use_local_subchannel_pool": 1 });
      cleanups.push(() => channel.close());
      return { channel, echo: createClient(EchoService, channel) };
    },
    connectHttp2(url, ALPNProtocols) {
      const { hostname: host, port } = new URL(url);
      const { ca } = made;
      const connect = () => tls.connect({ host, port: Number(port), ca, ALPNProtocols: ALPNProtocols ?? [] });
      const session = http2.connect(url, ALPNProtocols === undefined ? {} : { createConnection: connect });
      session.on("error", () => {});
      cleanups.push(() => session.destroy());
      return session;
    },
  };
}

interface Answer {
  headers: http2.IncomingHttpHeaders;
  trailers: http2.IncomingHttpHeaders;
  body: Buffer;
}

export function request(
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

export const UNARY = "/tendon.test.v1.EchoService/Unary";
export const jsonCall = { ":method": "POST", ":path": UNARY, "content-type": "application/json" };
export const grpcCall = {
  ":method": "POST",
  ":path": UNARY,
  "content-type": "application/grpc",
  te: "trailers",
};
export const emptyMessage = Buffer.alloc(5);

/** Tells grpc-js from connect-node: each names the compressions that it can read. */
export const GRPC_JS = "identity,deflate,gzip";

/** The baseline of calls and streams: bytes passed by plain grpc-js to a process that does nothing with them, and back. */
import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { type ClientReadableStream, credentials, Client as GrpcClient } from "@grpc/grpc-js";
import { type Arrivals, atMs } from "./arrivals.ts";
import type { BenchContext } from "./bench.ts";

export const BARE_PATHS = { echo: "/bare.Bare/Echo", watch: "/bare.Bare/Watch", push: "/bare.Bare/Push" };
export const ALL_STREAMS = 0xffffffff;

export interface BareGrpc {
  /** Of the process that does nothing. */
  readonly pid: number;
  /** One unary call; the answer has the same bytes. */
  echo(bytes: Buffer): Promise<void>;
  /**
   * Opens so many streams more, 100 on each connection unless told otherwise; each message on one of them arrives at
   * `arrivals`. Resolves when all of them stand.
   */
  openStreams(count: number, arrivals: Arrivals, perConnection?: number): Promise<void>;
  /** Has the bytes written to a stream, by its number from 0, or to all; says when that began, see `atMs`. */
  push(stream: number, bytes: Buffer): Promise<number>;
}

const STREAMS_PER_CONNECTION = 100;
const pass = (bytes: Buffer) => bytes;

/** `environment` holds variables for its process besides those of this one. */
export async function startBareGrpc(
  context: BenchContext,
  environment: Readonly<Record<string, string>> = {},
): Promise<BareGrpc> {
  const program = fileURLToPath(new URL("./bare-grpc-program.ts", import.meta.url));
  const child = spawn(process.execPath, ["--import", "tsx", program], {
    stdio: ["pipe", "pipe", "inherit"],
    env: { ...process.env, ...environment },
  });
  context.defer(() => end(child));
  const port = await portOf(child);
  const clients: GrpcClient[] = [];
  const streams: ClientReadableStream<Buffer>[] = [];
  context.defer(() => {
    for (const stream of streams) stream.cancel();
    for (const client of clients) client.close();
  });
  const connect = () => {
    const client = new GrpcClient(`127.0.0.1:${port}`, credentials.createInsecure(), {
      "grpc.use_local_subchannel_pool": 1,
      "grpc.enable_channelz": 0,
    });
    clients.push(client);
    return client;
  };
  const caller = connect();
  const call = (path: string, bytes: Buffer) =>
    new Promise<Buffer>((resolve, reject) => {
      caller.makeUnaryRequest(path, pass, pass, bytes, (error, answer) =>
        answer === undefined ? reject(error) : resolve(answer),
      );
    });
  return {
    pid: child.pid ?? 0,
    async echo(bytes) {
      await call(BARE_PATHS.echo, bytes);
    },
    async openStreams(count, arrivals, perConnection = STREAMS_PER_CONNECTION) {
      const standing: Promise<void>[] = [];
      let client: GrpcClient | undefined;
      for (let n = 0; n < count; n++) {
        if (client === undefined || n % perConnection === 0) client = connect();
        const stream = client.makeServerStreamRequest(BARE_PATHS.watch, pass, pass, numbered(streams.length));
        streams.push(stream);
        standing.push(follow(stream, arrivals));
      }
      await Promise.all(standing);
    },
    async push(stream, bytes) {
      const answer = await call(BARE_PATHS.push, Buffer.concat([numbered(stream), bytes]));
      return Number(answer.readBigUInt64BE()) / 1e6;
    },
  };
}

/** Resolves with the stream's first message; the others are arrivals. */
function follow(stream: ClientReadableStream<Buffer>, arrivals: Arrivals): Promise<void> {
  return new Promise((resolve, reject) => {
    stream.on("error", reject); // also when it is cancelled at the end, which nobody hears any more
    stream.once("data", () => {
      stream.on("data", () => arrivals.arrived(atMs()));
      resolve();
    });
  });
}

function numbered(stream: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(stream);
  return bytes;
}

function portOf(child: ChildProcess): Promise<number> {
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout! }).once("line", (line) => resolve(Number(line)));
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`the bare server ended with ${code}`)));
  });
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGTERM");
  await ended;
}

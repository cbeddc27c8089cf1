/**
 * The least that grpc-js can be asked to do, in a process of its own: bytes in, bytes out. Says its port on standard
 * output and ends when standard input does.
 *
 * Echo: the same bytes back. Watch: a stream that stays open, numbered by its first four bytes. Push: its first four
 * bytes number the stream, or name all of them with 0xffffffff; the rest is written there, and the answer is when that
 * began: nanoseconds of the machine's monotonic clock.
 */
import {
  Server,
  ServerCredentials,
  type ServerUnaryCall,
  type ServerWritableStream,
  type sendUnaryData,
} from "@grpc/grpc-js";
import { ALL_STREAMS, BARE_PATHS } from "./bare-grpc.ts";

type OpenStream = ServerWritableStream<Buffer, Buffer>;
type UnaryCall = ServerUnaryCall<Buffer, Buffer>;
type Answer = sendUnaryData<Buffer>;

const pass = (bytes: Buffer) => bytes;
const streams = new Map<number, OpenStream>();
const server = new Server({ "grpc.enable_channelz": 0 });

server.register<Buffer, Buffer>(
  BARE_PATHS.echo,
  (call: UnaryCall, done: Answer) => done(null, call.request),
  pass,
  pass,
  "unary",
);

server.register<Buffer, Buffer>(
  BARE_PATHS.watch,
  (call: OpenStream) => {
    const number = call.request.readUInt32BE(0);
    streams.set(number, call);
    call.on("cancelled", () => streams.delete(number));
    // The first message says that the stream stands.
    call.write(Buffer.alloc(0));
  },
  pass,
  pass,
  "serverStream",
);

server.register<Buffer, Buffer>(
  BARE_PATHS.push,
  (call: UnaryCall, done: Answer) => {
    const number = call.request.readUInt32BE(0);
    const bytes = call.request.subarray(4);
    const answer = Buffer.alloc(8);
    answer.writeBigUInt64BE(process.hrtime.bigint());
    if (number === ALL_STREAMS) for (const stream of streams.values()) stream.write(bytes);
    else streams.get(number)?.write(bytes);
    done(null, answer);
  },
  pass,
  pass,
  "unary",
);

server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, port) => {
  if (error) throw error;
  console.log(port);
});
process.stdin.resume().on("end", () => server.forceShutdown());

/** Mounts services on a grpc-js server. */
import type { EventEmitter } from "node:events";
import type { DescMethod, Message } from "@bufbuild/protobuf";
import {
  Metadata,
  Server,
  type ServerDuplexStream,
  type ServerReadableStream,
  type ServerUnaryCall,
  type ServerWritableStream,
  type StatusObject,
  type sendUnaryData,
} from "@grpc/grpc-js";
import { type Clock, systemClock } from "../clock.ts";
import { TendonError } from "../errors.ts";
import { MAX_GRPC_MESSAGE_BYTES } from "../limits.ts";
import { ByteWindow } from "./byte-window.ts";
import { decode, encode, passBytes } from "./codec.ts";
import { CallContext, REQUEST_ID_HEADER } from "./context.ts";
import { Pipeline, type PipelineOptions } from "./pipeline.ts";
import { readAhead } from "./read-ahead.ts";
import {
  type BoundService,
  methodPath,
  streamsRequests,
  streamsResponses,
  type UntypedMethod,
} from "./service.ts";
import { grpcStatus, wireFailure } from "./status.ts";

export interface MountOptions extends PipelineOptions {
  clock?: Clock;
}

type SingleRequestCall = ServerUnaryCall<Buffer, Buffer> | ServerWritableStream<Buffer, Buffer>;
type ManyRequestsCall = ServerReadableStream<Buffer, Buffer> | ServerDuplexStream<Buffer, Buffer>;
type AnyCall = SingleRequestCall | ManyRequestsCall;
type ManyResponsesCall = ServerWritableStream<Buffer, Buffer> | ServerDuplexStream<Buffer, Buffer>;

/** A call may open this many streams at once on one connection. */
const MAX_STREAMS_PER_CONNECTION = 2000;

/** A grpc-js server with the contract's bounds. It has no port of its own: `listen` hands it connections. */
export function createGrpcServer(): Server {
  return new Server({
    "grpc.max_receive_message_length": MAX_GRPC_MESSAGE_BYTES,
    "grpc.max_send_message_length": MAX_GRPC_MESSAGE_BYTES,
    "grpc.max_concurrent_streams": MAX_STREAMS_PER_CONNECTION,
    "grpc.enable_channelz": 0,
  });
}

/** Makes the server answer these services' methods. Throws if one of them is already mounted. */
export function mountGrpc(server: Server, services: readonly BoundService[], options: MountOptions): void {
  const pipeline = new Pipeline(options);
  const clock = options.clock ?? systemClock;
  for (const { service, methods } of services) {
    for (const method of service.methods) {
      const run = methods.get(method.localName)!;
      const path = methodPath(method);
      const handler = streamsResponses(method)
        ? manyResponses(pipeline, method, run, clock)
        : oneResponse(pipeline, method, run, clock);
      if (!server.register(path, handler, passBytes, passBytes, grpcKind(method))) {
        throw new Error(`${path} is mounted twice`);
      }
    }
  }
}

function grpcKind(method: DescMethod): string {
  switch (method.methodKind) {
    case "unary":
      return "unary";
    case "client_streaming":
      return "clientStream";
    case "server_streaming":
      return "serverStream";
    case "bidi_streaming":
      return "bidi";
  }
}

function oneResponse(pipeline: Pipeline, method: DescMethod, run: UntypedMethod, clock: Clock) {
  return async (call: ServerUnaryCall<Buffer, Buffer>, callback: sendUnaryData<Buffer>) => {
    const context = openContext(call, method, clock);
    try {
      const response = await pipeline.single(method, run, inputOf(call, method, context), context);
      const bytes = encode(method.output, response);
      context.end();
      sendHeaders(call, context);
      callback(null, bytes, metadataOf(context.responseTrailers));
    } catch (error) {
      context.end();
      callback(failedStatus(error, context));
    }
  };
}

function manyResponses(pipeline: Pipeline, method: DescMethod, run: UntypedMethod, clock: Clock) {
  return async (call: ManyResponsesCall) => {
    const window = new ByteWindow(call);
    const context = openContext(call, method, clock, (reason) => window.close(() => reason));
    try {
      let first = true;
      for await (const response of pipeline.many(method, run, inputOf(call, method, context), context)) {
        if (context.aborted !== undefined) return;
        if (first) sendHeaders(call, context);
        first = false;
        const full = window.write(encode(method.output, response));
        if (full !== undefined) await full;
      }
      context.end();
      if (first) sendHeaders(call, context);
      call.end(metadataOf(context.responseTrailers));
    } catch (error) {
      // While something waits to be written, the end of the loop over the requests would come before the status, and
      // destroy the call without one: its caller would wait for ever.
      await window.flushed();
      if (context.aborted !== undefined) return;
      context.end();
      call.emit("error", failedStatus(error, context));
    }
  };
}

function openContext(
  call: AnyCall,
  method: DescMethod,
  clock: Clock,
  onAbort?: (reason: Error) => void,
): CallContext {
  const deadline = Number(call.getDeadline());
  const deadlineMs = Number.isFinite(deadline) ? Math.max(0, deadline - clock.nowMs()) : undefined;
  const context = new CallContext({
    method,
    requestHeaders: { get: (name) => headerText(call.metadata, name) },
    peer: call.getPeer(),
    deadlineMs,
  });
  const startedMs = clock.monotonicMs();
  // grpc-js says "cancelled" at every end of a call; the context knows which ends were early.
  (call as EventEmitter).once("cancelled", () => {
    if (context.isOver) return;
    const late = deadlineMs !== undefined && clock.monotonicMs() - startedMs >= deadlineMs - 1;
    const reason = late
      ? new TendonError("DEADLINE_EXCEEDED", "the caller's deadline passed")
      : new TendonError("CANCELLED", "the caller cancelled the call or its connection broke");
    context.abort(reason);
    onAbort?.(reason);
  });
  context.onFail = (error) => {
    onAbort?.(error);
    // Ends the loop over the requests; on a call with many responses it is also what sends the status.
    call.emit("error", failedStatus(error, context));
  };
  return context;
}

function inputOf(call: AnyCall, method: DescMethod, context: CallContext): Message | AsyncIterable<Message> {
  return streamsRequests(method)
    ? requestsOf(call as ManyRequestsCall, method, context)
    : decode(method.input, (call as SingleRequestCall).request);
}

async function* requestsOf(
  call: ManyRequestsCall,
  method: DescMethod,
  context: CallContext,
): AsyncGenerator<Message> {
  try {
    for await (const bytes of readAhead<Buffer>(call)) yield decode(method.input, bytes);
  } catch (error) {
    throw context.aborted ?? error;
  }
  if (context.aborted !== undefined) throw context.aborted;
}

function sendHeaders(call: AnyCall, context: CallContext): void {
  const metadata = metadataOf(context.responseHeaders) ?? new Metadata();
  metadata.set(REQUEST_ID_HEADER, context.requestId);
  context.responseHeaders = undefined;
  call.sendMetadata(metadata);
}

/** The request id is in the trailers too: a call that fails may have sent no headers. */
function failedStatus(error: unknown, context: CallContext): StatusObject {
  const failed = grpcStatus(wireFailure(error));
  failed.metadata.set(REQUEST_ID_HEADER, context.requestId);
  return failed;
}

function metadataOf(values: ReadonlyMap<string, string> | undefined): Metadata | undefined {
  if (values === undefined) return undefined;
  const metadata = new Metadata();
  for (const [name, value] of values) metadata.set(name, value);
  return metadata;
}

function headerText(metadata: Metadata, name: string): string | undefined {
  const value = metadata.get(name)[0];
  return typeof value === "string" ? value : undefined;
}

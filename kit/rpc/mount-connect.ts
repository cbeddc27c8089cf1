/** Mounts the same services for Connect and gRPC-Web, and for gRPC over Node's own HTTP/2 server. */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Http2ServerRequest, Http2ServerResponse } from "node:http2";
import type { DescMethod, DescService, Message } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  type ConnectRouter,
  type ContextKey,
  createContextKey,
  createContextValues,
  type HandlerContext,
} from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { ErrorInfoSchema } from "../../proto/gen/google/rpc/error_details_pb.js";
import { messageOf, TendonError } from "../errors.ts";
import { MAX_GRPC_MESSAGE_BYTES } from "../limits.ts";
import { CallContext } from "./context.ts";
import type { MountOptions } from "./mount-grpc.ts";
import { Pipeline } from "./pipeline.ts";
import { type BoundService, streamsResponses, type UntypedMethod } from "./service.ts";
import { wireFailure } from "./status.ts";

/** Answers an HTTP/1.1 request, or an HTTP/2 request through Node's compatibility API. */
export type HttpHandler = (
  request: IncomingMessage | Http2ServerRequest,
  response: ServerResponse | Http2ServerResponse,
) => void;

export interface MountConnectOptions extends MountOptions {
  /** Answers every path that is no method of the services. */
  fallback: HttpHandler;
}

const peerKey: ContextKey<string> = createContextKey("unknown");

/** A handler for the methods' paths; all other requests go to `fallback`. Never throws. */
export function mountConnect(services: readonly BoundService[], options: MountConnectOptions): HttpHandler {
  const pipeline = new Pipeline(options);
  const handler = connectNodeAdapter({
    routes: (router) => {
      for (const bound of services) addRoutes(router, bound, pipeline);
    },
    fallback: options.fallback as Parameters<typeof connectNodeAdapter>[0]["fallback"] & {},
    readMaxBytes: MAX_GRPC_MESSAGE_BYTES,
    writeMaxBytes: MAX_GRPC_MESSAGE_BYTES,
    contextValues: ({ socket }) =>
      createContextValues().set(peerKey, `${socket.remoteAddress}:${socket.remotePort}`),
  });
  return (request, response) => {
    try {
      handler(request, response);
    } catch (error) {
      // The adapter throws on what it cannot make a URL of, such as a request without a host.
      options.log.debug(`bad request: ${messageOf(error)}`);
      if (response.headersSent) response.destroy();
      else (response as ServerResponse).writeHead(400, { "content-type": "text/plain" }).end("bad request\n");
    }
  };
}

function addRoutes(router: ConnectRouter, bound: BoundService, pipeline: Pipeline): void {
  const implementation: Record<string, unknown> = {};
  for (const method of bound.service.methods) {
    const run = bound.methods.get(method.localName)!;
    implementation[method.localName] = streamsResponses(method)
      ? manyResponses(pipeline, method, run)
      : oneResponse(pipeline, method, run);
  }
  router.service(bound.service as DescService, implementation as never);
}

type Input = Message | AsyncIterable<Message>;

function oneResponse(pipeline: Pipeline, method: DescMethod, run: UntypedMethod) {
  return async (input: Input, handler: HandlerContext): Promise<Message> => {
    const context = openContext(method, handler);
    try {
      const response = await pipeline.single(method, run, requestsOf(input, context), context);
      sendMetadata(handler, context, true);
      return response;
    } catch (error) {
      throw connectError(error);
    } finally {
      context.end();
    }
  };
}

function manyResponses(pipeline: Pipeline, method: DescMethod, run: UntypedMethod) {
  return async function* (input: Input, handler: HandlerContext): AsyncGenerator<Message> {
    const context = openContext(method, handler);
    try {
      for await (const response of pipeline.many(method, run, requestsOf(input, context), context)) {
        if (context.aborted !== undefined) throw context.aborted;
        sendMetadata(handler, context, false);
        yield response;
      }
      sendMetadata(handler, context, true);
    } catch (error) {
      throw connectError(error);
    } finally {
      context.end();
    }
  };
}

function openContext(method: DescMethod, handler: HandlerContext): CallContext {
  const deadlineMs = handler.timeoutMs();
  const context = new CallContext({
    method,
    requestHeaders: { get: (name) => handler.requestHeader.get(name) ?? undefined },
    peer: handler.values.get(peerKey),
    deadlineMs,
  });
  const onAbort = () => {
    const left = handler.timeoutMs();
    context.abort(
      left !== undefined && left <= 0
        ? new TendonError("DEADLINE_EXCEEDED", "the caller's deadline passed")
        : new TendonError("CANCELLED", "the caller cancelled the call or its connection broke"),
    );
  };
  if (handler.signal.aborted) onAbort();
  else handler.signal.addEventListener("abort", onAbort, { once: true });
  return context;
}

function requestsOf(input: Input, context: CallContext): Input {
  return Symbol.asyncIterator in input ? abortable(input, context) : input;
}

async function* abortable(requests: AsyncIterable<Message>, context: CallContext): AsyncGenerator<Message> {
  const iterator = requests[Symbol.asyncIterator]();
  try {
    for (;;) {
      const next = await nextUnlessFailed(iterator, context);
      if (next.done) return;
      yield next.value;
    }
  } catch (error) {
    throw context.aborted ?? (error instanceof ConnectError ? fromConnect(error) : error);
  } finally {
    // Not awaited: it waits behind a read that may never end.
    iterator.return?.().catch(() => {});
  }
}

function nextUnlessFailed(
  iterator: AsyncIterator<Message>,
  context: CallContext,
): Promise<IteratorResult<Message>> {
  return new Promise((resolve, reject) => {
    context.onFail = reject;
    if (context.aborted !== undefined) reject(context.aborted);
    iterator.next().then(resolve, reject);
  });
}

/** What the library itself finds wrong with a request stream is the caller's to mend. */
function fromConnect(error: ConnectError): TendonError {
  const reason = error.code === Code.ResourceExhausted ? "MESSAGE_TOO_LARGE" : "INVALID_FIELD";
  return new TendonError(reason, error.rawMessage, {}, { cause: error });
}

function sendMetadata(handler: HandlerContext, context: CallContext, last: boolean): void {
  for (const [name, value] of context.responseHeaders ?? []) handler.responseHeader.set(name, value);
  context.responseHeaders = undefined;
  if (!last) return;
  for (const [name, value] of context.responseTrailers ?? []) handler.responseTrailer.set(name, value);
}

function connectError(error: unknown): ConnectError {
  const { code, message, info } = wireFailure(error);
  return new ConnectError(message, code as number as Code, undefined, [
    { desc: ErrorInfoSchema, value: info },
  ]);
}

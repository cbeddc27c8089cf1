/** Mounts the same services for Connect and gRPC-Web, and for gRPC over Node's own HTTP/2 server. */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Http2ServerRequest, Http2ServerResponse } from "node:http2";
import type { DescMethod, Message } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  type ConnectRouter,
  type ContextKey,
  createConnectRouter,
  createContextKey,
  createContextValues,
  type HandlerContext,
  type Interceptor,
} from "@connectrpc/connect";
import type { UniversalHandler, UniversalServerResponse } from "@connectrpc/connect/protocol";
import {
  compressionBrotli,
  compressionGzip,
  universalRequestFromNodeRequest,
  universalResponseToNodeResponse,
} from "@connectrpc/connect-node";
import { messageOf, TendonError } from "../errors.ts";
import { newId } from "../ids.ts";
import { MAX_GRPC_MESSAGE_BYTES } from "../limits.ts";
import type { Logger } from "../log.ts";
import { CallContext, REQUEST_ID_HEADER } from "./context.ts";
import type { MountOptions } from "./mount-grpc.ts";
import { Pipeline } from "./pipeline.ts";
import { connectError, refusalOf, refusalResponse, strictJson } from "./refusal.ts";
import { type BoundService, streamsResponses, type UntypedMethod } from "./service.ts";

/** Answers an HTTP/1.1 request, or an HTTP/2 request through Node's compatibility API. */
export type HttpHandler = (
  request: IncomingMessage | Http2ServerRequest,
  response: ServerResponse | Http2ServerResponse,
) => void;

export interface MountConnectOptions extends MountOptions {
  /** Answers every path that is no method of the services. */
  fallback: HttpHandler;
}

/** What the adapter knows of a call before the library does, and whether the call reached its method. */
interface Arrival {
  peer: string;
  reached: boolean;
  /** Of a call that was refused before it reached its method. */
  requestId?: string;
}

/** Of an answer in JSON: names, ids, times. */
const MAX_JSON_FRAME_BYTES = 1024 * 1024;

const arrivalKey: ContextKey<Arrival> = createContextKey({ peer: "unknown", reached: false });

/** A handler for the methods' paths; all other requests go to `fallback`. Never throws. */
export function mountConnect(services: readonly BoundService[], options: MountConnectOptions): HttpHandler {
  const pipeline = new Pipeline(options);
  const connect = handlersOf(services, pipeline, "connect");
  const grpc = handlersOf(services, pipeline, "grpc");
  return (request, response) => {
    const wire = request.headers["content-type"]?.startsWith("application/grpc") ? grpc : connect;
    const handler = wire.get(request.url?.split("?", 1)[0] ?? "");
    if (handler !== undefined) {
      answer(handler, request, response).catch((error) => endBroken(response, error, options.log));
      return;
    }
    try {
      options.fallback(request, response);
    } catch (error) {
      endBroken(response, error, options.log);
    }
  };
}

function handlersOf(
  services: readonly BoundService[],
  pipeline: Pipeline,
  wire: "connect" | "grpc",
): ReadonlyMap<string, UniversalHandler> {
  const router = createConnectRouter({
    acceptCompression: [compressionGzip, compressionBrotli],
    connect: wire === "connect",
    grpc: wire === "grpc",
    grpcWeb: wire === "grpc",
    interceptors: [refusalInterceptor],
    jsonOptions: strictJson,
    readMaxBytes: MAX_GRPC_MESSAGE_BYTES,
    // JSON doubles quotes and backslashes of the texts that answers are measured by.
    writeMaxBytes: 2 * MAX_GRPC_MESSAGE_BYTES + MAX_JSON_FRAME_BYTES,
  });
  for (const bound of services) addRoutes(router, bound, pipeline, wire);
  return new Map(router.handlers.map((handler) => [handler.requestPath, handler]));
}

/** Reading the one request of a stream fails inside the interceptors; that of a Connect unary call fails before them. */
const refusalInterceptor: Interceptor = (next) => async (request) => {
  try {
    return await next(request);
  } catch (error) {
    const arrival = request.contextValues.get(arrivalKey);
    if (arrival.reached || !(error instanceof ConnectError)) throw error;
    arrival.requestId = newId("request");
    throw connectError(refusalOf(error, request.method.input.typeName), arrival.requestId);
  }
};

async function answer(
  handler: UniversalHandler,
  request: Parameters<HttpHandler>[0],
  response: Parameters<HttpHandler>[1],
): Promise<void> {
  const { remoteAddress, remotePort } = request.socket;
  const arrival: Arrival = { peer: `${remoteAddress}:${remotePort}`, reached: false };
  const values = createContextValues().set(arrivalKey, arrival);
  // Throws on what it cannot make a URL of, such as a request without a host.
  const universal = universalRequestFromNodeRequest(request, response, undefined, values);
  const answered = await handler(universal);
  const type = handler.method.input.typeName;
  const told = arrival.reached
    ? answered
    : await refused(answered, arrival.requestId ?? newId("request"), type);
  await universalResponseToNodeResponse(told, response);
}

function refused(
  answered: UniversalServerResponse,
  requestId: string,
  type: string,
): UniversalServerResponse | Promise<UniversalServerResponse> {
  const header = new Headers(answered.header);
  header.set(REQUEST_ID_HEADER, requestId);
  const isUnary = answered.status >= 400 && header.get("content-type") === "application/json";
  return isUnary ? refusalResponse({ ...answered, header }, type, requestId) : { ...answered, header };
}

function endBroken(response: Parameters<HttpHandler>[1], error: unknown, log: Logger): void {
  if (ConnectError.from(error).code === Code.Aborted) return;
  if (response.headersSent) {
    log.warn({ err: error }, "an answer over HTTP could not be finished");
    (response as ServerResponse).destroy();
    return;
  }
  log.debug(`bad request: ${messageOf(error)}`);
  (response as ServerResponse).writeHead(400, { "content-type": "text/plain" }).end("bad request\n");
}

function addRoutes(
  router: ConnectRouter,
  bound: BoundService,
  pipeline: Pipeline,
  wire: "connect" | "grpc",
): void {
  for (const method of bound.service.methods) {
    const run = bound.methods.get(method.localName)!;
    if (streamsResponses(method)) router.rpc(method, manyResponses(pipeline, method, run) as never);
    else if (wire === "connect" || method.methodKind !== "unary") {
      router.rpc(method, oneResponse(pipeline, method, run) as never);
    } else {
      // On gRPC's wires the two kinds are the same; as a stream its request is read inside the interceptors.
      const one = oneResponse(pipeline, method, run);
      const asStream = async function* (input: Input, handler: HandlerContext): AsyncGenerator<Message> {
        yield await one(input, handler);
      };
      router.rpc({ ...method, methodKind: "server_streaming" } as DescMethod, asStream as never);
    }
  }
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
      throw failed(handler, context, error);
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
      throw failed(handler, context, error);
    } finally {
      context.end();
    }
  };
}

function openContext(method: DescMethod, handler: HandlerContext): CallContext {
  const deadlineMs = handler.timeoutMs();
  const arrival = handler.values.get(arrivalKey);
  arrival.reached = true;
  const context = new CallContext({
    method,
    requestHeaders: { get: (name) => handler.requestHeader.get(name) ?? undefined },
    peer: arrival.peer,
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
    throw (
      context.aborted ??
      (error instanceof ConnectError ? refusalOf(error, context.method.input.typeName) : error)
    );
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

function sendMetadata(handler: HandlerContext, context: CallContext, last: boolean): void {
  handler.responseHeader.set(REQUEST_ID_HEADER, context.requestId);
  for (const [name, value] of context.responseHeaders ?? []) handler.responseHeader.set(name, value);
  context.responseHeaders = undefined;
  if (!last) return;
  for (const [name, value] of context.responseTrailers ?? []) handler.responseTrailer.set(name, value);
}

/** The request id goes out with the headers where they are still open, and with the error in any case. */
function failed(handler: HandlerContext, context: CallContext, error: unknown): ConnectError {
  handler.responseHeader.set(REQUEST_ID_HEADER, context.requestId);
  return connectError(error, context.requestId);
}

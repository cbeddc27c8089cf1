/** Typed clients over grpc-js for every program that calls the contract. */
import type {
  DescMessage,
  DescMethod,
  DescMethodBiDiStreaming,
  DescMethodClientStreaming,
  DescMethodServerStreaming,
  DescMethodUnary,
  DescService,
  Message,
  MessageInitShape,
  MessageShape,
} from "@bufbuild/protobuf";
import { create } from "@bufbuild/protobuf";
import {
  type Channel,
  type ClientDuplexStream,
  type ClientReadableStream,
  type ClientUnaryCall,
  type ClientWritableStream,
  credentials,
  type CallOptions as GrpcCallOptions,
  Client as GrpcClient,
  Metadata,
  type ServiceError,
  type StatusObject,
  status,
} from "@grpc/grpc-js";
import { type Clock, systemClock } from "../clock.ts";
import { TendonError } from "../errors.ts";
import { ByteWindow } from "./byte-window.ts";
import { decode, encode, passBytes } from "./codec.ts";
import type { RequestHeaders } from "./context.ts";
import { readAhead } from "./read-ahead.ts";
import { methodPath } from "./service.ts";
import { errorFromStatus } from "./status.ts";

/** Options of one call. */
export interface CallOptions {
  /** Cancels the call; it then fails with the signal's reason if that is a TendonError, else with CANCELLED. */
  signal?: AbortSignal;
  /** Milliseconds from now; the call then fails with DEADLINE_EXCEEDED, on both sides. */
  deadlineMs?: number;
  /** Sent with the call; names in lower case. */
  headers?: Readonly<Record<string, string>>;
  onHeaders?(headers: RequestHeaders): void;
  /** Also called for calls that failed. */
  onTrailers?(trailers: RequestHeaders): void;
}

/** Responses in order; read by one loop only. Leaving the loop early cancels the call. */
export interface ServerStreamCall<O extends DescMessage> extends AsyncIterable<MessageShape<O>> {
  cancel(): void;
}

export interface ClientStreamCall<I extends DescMessage, O extends DescMessage> {
  /** Resolves when there is room for the next message; rejects with the call's error once it ended. */
  send(request: MessageInitShape<I>): Promise<void>;
  /** No more requests; resolves with the response. */
  end(): Promise<MessageShape<O>>;
  cancel(): void;
}

export interface BidiCall<I extends DescMessage, O extends DescMessage> {
  /** Resolves when there is room for the next message; rejects with the call's error once it ended. */
  send(request: MessageInitShape<I>): Promise<void>;
  /** No more requests. */
  end(): void;
  /**
   * In order; read by one loop only. Throws the call's error at its end. Leaving the loop early cancels the call.
   * When the server ends a call with an error, responses that were sent just before it may be missing.
   */
  readonly responses: AsyncIterable<MessageShape<O>>;
  /** Resolves when the call is over, also when nobody reads: with its error, or with undefined when it ended well. */
  readonly ended: Promise<TendonError | undefined>;
  cancel(): void;
}

export type ClientMethod<M> =
  M extends DescMethodUnary<infer I, infer O>
    ? (request: MessageInitShape<I>, options?: CallOptions) => Promise<MessageShape<O>>
    : M extends DescMethodServerStreaming<infer I, infer O>
      ? (request: MessageInitShape<I>, options?: CallOptions) => ServerStreamCall<O>
      : M extends DescMethodClientStreaming<infer I, infer O>
        ? (options?: CallOptions) => ClientStreamCall<I, O>
        : M extends DescMethodBiDiStreaming<infer I, infer O>
          ? (options?: CallOptions) => BidiCall<I, O>
          : never;

/** A service's methods as functions. All failures are TendonErrors; none is retried here. */
export type Client<S extends DescService> = {
  [Name in keyof S["method"]]: ClientMethod<S["method"][Name]>;
};

export interface ClientOptions {
  /** Headers of every call, asked for at each call, so that a renewed token counts at once. */
  metadata?: () => Readonly<Record<string, string>>;
  /** Keeps the calls that are open, so that they can be cancelled together: closing a channel lets them go on. */
  openCalls?: OpenCalls;
  clock?: Clock;
}

/** The calls that are open on a connection. */
export class OpenCalls {
  private readonly calls = new Set<AnyCall>();

  add(call: AnyCall): () => void {
    this.calls.add(call);
    return () => this.calls.delete(call);
  }

  /** Each of them fails with CANCELLED, at once and whatever the state of the connection. */
  cancelAll(): void {
    for (const call of [...this.calls]) call.cancel();
  }
}

/** Calls a service over a channel, which stays the caller's to close. */
export function createClient<S extends DescService>(
  service: S,
  channel: Channel,
  options: ClientOptions = {},
): Client<S> {
  const grpc = new GrpcClient("", credentials.createInsecure(), { channelOverride: channel });
  const caller: Caller = { grpc, options, clock: options.clock ?? systemClock };
  const client: Record<string, unknown> = {};
  for (const method of service.methods) client[method.localName] = methodOf(caller, method);
  return client as Client<S>;
}

interface Caller {
  grpc: GrpcClient;
  options: ClientOptions;
  clock: Clock;
}

type AnyCall = ClientUnaryCall | StreamCall;
type StreamCall =
  | ClientReadableStream<Buffer>
  | ClientWritableStream<Buffer>
  | ClientDuplexStream<Buffer, Buffer>;

function methodOf(caller: Caller, method: DescMethod): unknown {
  switch (method.methodKind) {
    case "unary":
      return (request: Message, options?: CallOptions) => callUnary(caller, method, request, options);
    case "server_streaming":
      return (request: Message, options?: CallOptions) => openServerStream(caller, method, request, options);
    case "client_streaming":
      return (options?: CallOptions) => openClientStream(caller, method, options);
    case "bidi_streaming":
      return (options?: CallOptions) => openBidi(caller, method, options);
  }
}

async function callUnary(
  caller: Caller,
  method: DescMethod,
  request: Message,
  options: CallOptions = {},
): Promise<Message> {
  if (options.signal?.aborted) throw failureOf({ code: status.CANCELLED }, options);
  const bytes = encode(method.input, create(method.input, request));
  const { metadata, grpcOptions } = prepare(caller, options);
  const path = methodPath(method);
  let stopWatching = () => {};
  const reply = await new Promise<Buffer>((resolve, reject) => {
    const answered = (error: ServiceError | null, value?: Buffer) => {
      stopWatching();
      if (error === null) resolve(value!);
      else reject(failureOf(error, options));
    };
    const call = caller.grpc.makeUnaryRequest(
      path,
      passBytes,
      passBytes,
      bytes,
      metadata,
      grpcOptions,
      answered,
    );
    stopWatching = watch(caller, call, options);
  });
  return decode(method.output, reply);
}

function openServerStream(
  caller: Caller,
  method: DescMethod,
  request: Message,
  options: CallOptions = {},
): ServerStreamCall<DescMessage> {
  const bytes = encode(method.input, create(method.input, request));
  const { metadata, grpcOptions } = prepare(caller, options);
  const path = methodPath(method);
  const call = caller.grpc.makeServerStreamRequest(path, passBytes, passBytes, bytes, metadata, grpcOptions);
  const ended = endOf(caller, call, options);
  return {
    [Symbol.asyncIterator]: () => responsesOf(call, method, ended),
    cancel: () => call.cancel(),
  };
}

function openClientStream(
  caller: Caller,
  method: DescMethod,
  options: CallOptions = {},
): ClientStreamCall<DescMessage, DescMessage> {
  const { metadata, grpcOptions } = prepare(caller, options);
  let reply: Buffer | undefined;
  const path = methodPath(method);
  const keep = (_error: ServiceError | null, value?: Buffer) => {
    reply = value;
  };
  const call = caller.grpc.makeClientStreamRequest(path, passBytes, passBytes, metadata, grpcOptions, keep);
  const ended = endOf(caller, call, options);
  const window = windowOf(call, ended);
  return {
    send: async (request) => window.write(encode(method.input, create(method.input, request as Message))),
    end: async () => {
      call.end();
      const failure = await ended;
      if (failure !== undefined) throw failure;
      return decode(method.output, reply!);
    },
    cancel: () => call.cancel(),
  };
}

function openBidi(
  caller: Caller,
  method: DescMethod,
  options: CallOptions = {},
): BidiCall<DescMessage, DescMessage> {
  const { metadata, grpcOptions } = prepare(caller, options);
  const call = caller.grpc.makeBidiStreamRequest(
    methodPath(method),
    passBytes,
    passBytes,
    metadata,
    grpcOptions,
  );
  const ended = endOf(caller, call, options);
  const window = windowOf(call, ended);
  return {
    send: async (request) => window.write(encode(method.input, create(method.input, request as Message))),
    end: () => {
      call.end();
    },
    responses: { [Symbol.asyncIterator]: () => responsesOf(call, method, ended) },
    ended,
    cancel: () => call.cancel(),
  };
}

async function* responsesOf(
  call: ClientReadableStream<Buffer> | ClientDuplexStream<Buffer, Buffer>,
  method: DescMethod,
  ended: Promise<TendonError | undefined>,
): AsyncGenerator<Message> {
  let complete = false;
  try {
    for await (const bytes of readAhead<Buffer>(call)) yield decode(method.output, bytes);
    complete = true;
  } catch (error) {
    // The stream's error says what the status says; the status comes right after it.
    complete = !(error instanceof TendonError);
    if (!complete) throw error;
  } finally {
    if (!complete) call.cancel();
  }
  const failure = await ended;
  if (failure !== undefined) throw failure;
}

/** Resolves when the call ended: with its error, or with undefined when it ended well. */
function endOf(caller: Caller, call: StreamCall, options: CallOptions): Promise<TendonError | undefined> {
  const stopWatching = watch(caller, call, options);
  // Errors are told through the status; a stream that nobody reads must not bring the process down.
  call.on("error", () => {});
  return new Promise((resolve) => {
    call.on("status", (received: StatusObject) => {
      stopWatching();
      resolve(received.code === status.OK ? undefined : failureOf(received, options));
    });
  });
}

function windowOf(
  call: ClientWritableStream<Buffer> | ClientDuplexStream<Buffer, Buffer>,
  ended: Promise<TendonError | undefined>,
): ByteWindow {
  const window = new ByteWindow(call);
  void ended.then((failure) =>
    window.close(() => failure ?? new TendonError("CANCELLED", "the server ended the call")),
  );
  return window;
}

function prepare(caller: Caller, options: CallOptions): { metadata: Metadata; grpcOptions: GrpcCallOptions } {
  const metadata = new Metadata();
  for (const headers of [caller.options.metadata?.(), options.headers]) {
    for (const [name, value] of Object.entries(headers ?? {})) setHeader(metadata, name, value);
  }
  const grpcOptions: GrpcCallOptions =
    options.deadlineMs === undefined ? {} : { deadline: caller.clock.nowMs() + options.deadlineMs };
  return { metadata, grpcOptions };
}

/** Checked here because grpc-js would repeat the whole value, which may be a secret, in its error. */
function setHeader(metadata: Metadata, name: string, value: string): void {
  if (!/^[ -~]*$/.test(value)) {
    const problem = `the header ${name} holds a character that no header may hold (a line break?)`;
    throw new TendonError("INVALID_FIELD", problem, { field: name });
  }
  metadata.set(name, value);
}

/** Ties a call to its options and to its connection; the returned function unties it. */
function watch(caller: Caller, call: AnyCall, { signal, onHeaders, onTrailers }: CallOptions): () => void {
  if (onHeaders !== undefined) call.on("metadata", (metadata: Metadata) => onHeaders(headersOf(metadata)));
  if (onTrailers !== undefined) {
    call.on("status", ({ metadata }: StatusObject) => onTrailers(headersOf(metadata)));
  }
  const forget = caller.options.openCalls?.add(call);
  const cancel = () => call.cancel();
  if (signal?.aborted) cancel();
  else signal?.addEventListener("abort", cancel, { once: true });
  return () => {
    forget?.();
    signal?.removeEventListener("abort", cancel);
  };
}

function headersOf(metadata: Metadata): RequestHeaders {
  return {
    get: (name) => {
      const value = metadata.get(name)[0];
      return typeof value === "string" ? value : undefined;
    },
  };
}

function failureOf(received: Partial<StatusObject>, { signal }: CallOptions): TendonError {
  if (received.code === status.CANCELLED && signal?.aborted) {
    if (signal.reason instanceof TendonError) return signal.reason;
    return new TendonError("CANCELLED", "the call was cancelled", {}, { cause: signal.reason });
  }
  return errorFromStatus(received);
}

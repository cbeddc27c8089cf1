/** Services as plain typed functions over generated messages: written once, mounted on every wire. */
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
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import type { MethodDefinition, ServiceDefinition } from "@grpc/grpc-js";
import type { RpcContext } from "./context.ts";

/** One request, one response. */
export type UnaryMethod<I extends DescMessage, O extends DescMessage> = (
  request: MessageShape<I>,
  context: RpcContext,
) => Promise<MessageInitShape<O>>;

/** Usually an async generator; its `finally` runs when the caller goes away. */
export type ServerStreamingMethod<I extends DescMessage, O extends DescMessage> = (
  request: MessageShape<I>,
  context: RpcContext,
) => AsyncIterable<MessageInitShape<O>>;

export type ClientStreamingMethod<I extends DescMessage, O extends DescMessage> = (
  requests: AsyncIterable<MessageShape<I>>,
  context: RpcContext,
) => Promise<MessageInitShape<O>>;

/** Requests may be left unread; reading them after the caller cancelled throws the signal's reason. */
export type BidiStreamingMethod<I extends DescMessage, O extends DescMessage> = (
  requests: AsyncIterable<MessageShape<I>>,
  context: RpcContext,
) => AsyncIterable<MessageInitShape<O>>;

export type MethodImplementation<M> =
  M extends DescMethodUnary<infer I, infer O>
    ? UnaryMethod<I, O>
    : M extends DescMethodServerStreaming<infer I, infer O>
      ? ServerStreamingMethod<I, O>
      : M extends DescMethodClientStreaming<infer I, infer O>
        ? ClientStreamingMethod<I, O>
        : M extends DescMethodBiDiStreaming<infer I, infer O>
          ? BidiStreamingMethod<I, O>
          : never;

/** All methods of a service. A method that is not built yet throws TendonError NOT_IMPLEMENTED. */
export type ServiceImplementation<S extends DescService> = {
  [Name in keyof S["method"]]: MethodImplementation<S["method"][Name]>;
};

/** Any implementation of the shapes above, once its types have been checked. */
export type UntypedMethod = (
  // biome-ignore lint/suspicious/noExplicitAny: the types were checked by `bindService`
  request: any,
  context: RpcContext,
) => unknown;

/** A service and its implementation, ready to be mounted. */
export interface BoundService {
  readonly service: DescService;
  /** By the method's local name. */
  readonly methods: ReadonlyMap<string, UntypedMethod>;
}

/** Pairs a service with its implementation. Methods are called on `implementation`, so it may be a class instance. */
export function bindService<S extends DescService>(
  service: S,
  implementation: ServiceImplementation<S>,
): BoundService {
  const record = implementation as Record<string, UntypedMethod | undefined>;
  const methods = new Map<string, UntypedMethod>();
  for (const { localName } of service.methods) {
    const method = record[localName];
    if (method === undefined) throw new Error(`${service.typeName} has no implementation of ${localName}`);
    methods.set(localName, method.bind(implementation));
  }
  return { service, methods };
}

export function streamsRequests(method: DescMethod): boolean {
  return method.methodKind === "client_streaming" || method.methodKind === "bidi_streaming";
}

export function streamsResponses(method: DescMethod): boolean {
  return method.methodKind === "server_streaming" || method.methodKind === "bidi_streaming";
}

/** The path of a method on the gRPC and Connect wires. */
export function methodPath(method: DescMethod): string {
  return `/${method.parent.typeName}/${method.name}`;
}

/** A grpc-js definition of a generated service, for grpc-js servers and clients that are used directly. */
export function grpcServiceDefinition(service: DescService): ServiceDefinition {
  const codec = (schema: DescMessage) => ({
    serialize: (message: unknown) => bufferOf(toBinary(schema, message as Message)),
    deserialize: (bytes: Buffer) => fromBinary(schema, bytes),
  });
  const definition = (method: DescMethod): MethodDefinition<unknown, unknown> => ({
    path: methodPath(method),
    requestStream: streamsRequests(method),
    responseStream: streamsResponses(method),
    requestSerialize: codec(method.input).serialize,
    requestDeserialize: codec(method.input).deserialize,
    responseSerialize: codec(method.output).serialize,
    responseDeserialize: codec(method.output).deserialize,
  });
  return Object.fromEntries(service.methods.map((method) => [method.localName, definition(method)]));
}

/** The same bytes as a Buffer, without a copy. */
export function bufferOf(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

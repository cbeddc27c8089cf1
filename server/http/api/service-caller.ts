/**
 * Calls methods of the contract inside the process, for translations of other wires: through the same interceptors as a call
 * that came by gRPC, so that credential, rights, rules of the fields, metrics and traces are those of the method.
 */
import {
  create,
  type DescMessage,
  type DescMethod,
  type DescMethodClientStreaming,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  type Message,
  type MessageInitShape,
  type MessageShape,
} from "@bufbuild/protobuf";
import { TendonError } from "../../../kit/errors.ts";
import { CallContext, type RequestHeaders } from "../../../kit/rpc/context.ts";
import type { Pipeline } from "../../../kit/rpc/pipeline.ts";
import { type BoundService, methodPath, type UntypedMethod } from "../../../kit/rpc/service.ts";
import { tooMany, unfitForWire } from "../../../kit/rpc/unfit.ts";
import { refuse } from "../../../kit/rpc/validation.ts";
import { principalOf, scopeOf } from "../../ports/principal.ts";
import { type Admission, admissionKey } from "../../rpc/rate-limit.ts";

export interface CallerFacts {
  /** Of the request that the calls are for. */
  readonly admission: Admission;
  readonly headers: RequestHeaders;
  readonly peer: string;
  readonly requestId: string;
  readonly signal: AbortSignal;
  /** Hears which workspace the caller is one of, unless that is the whole installation. */
  readonly told: (workspaceId: string) => void;
}

/** What the whole server shares. */
export class InProcessServices {
  private readonly methods = new Map<string, UntypedMethod>();
  private readonly pipeline: Pipeline;

  constructor(services: readonly BoundService[], pipeline: Pipeline) {
    this.pipeline = pipeline;
    for (const { service, methods } of services) {
      for (const method of service.methods) {
        const run = methods.get(method.localName);
        if (run !== undefined) this.methods.set(methodPath(method), run);
      }
    }
  }

  as(facts: CallerFacts): ServiceCaller {
    return new ServiceCaller(this.pipeline, (method) => this.find(method), facts);
  }

  private find(method: DescMethod): UntypedMethod {
    const run = this.methods.get(methodPath(method));
    if (run === undefined) throw new TendonError("NOT_IMPLEMENTED", "this is not part of this build");
    return run;
  }
}

/** Calls as one caller. */
export class ServiceCaller {
  private readonly pipeline: Pipeline;
  private readonly find: (method: DescMethod) => UntypedMethod;
  private readonly facts: CallerFacts;

  constructor(pipeline: Pipeline, find: (method: DescMethod) => UntypedMethod, facts: CallerFacts) {
    this.pipeline = pipeline;
    this.find = find;
    this.facts = facts;
  }

  async call<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
  ): Promise<MessageShape<O>> {
    const { context, over } = this.context(method);
    try {
      const input = messageOf(method.input, request);
      return (await this.pipeline.single(method, this.find(method), input, context)) as MessageShape<O>;
    } finally {
      this.tell(context);
      context.end();
      over();
    }
  }

  /** `requests` is read as the method asks for it. */
  async upload<I extends DescMessage, O extends DescMessage>(
    method: DescMethodClientStreaming<I, O>,
    requests: AsyncIterable<MessageInitShape<I>>,
  ): Promise<MessageShape<O>> {
    const { context, over } = this.context(method);
    try {
      const inputs = messagesOf(method.input, requests);
      return (await this.pipeline.single(method, this.find(method), inputs, context)) as MessageShape<O>;
    } finally {
      this.tell(context);
      context.end();
      over();
    }
  }

  async *stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: MessageInitShape<I>,
  ): AsyncGenerator<MessageShape<O>, void, undefined> {
    const { context, over } = this.context(method);
    try {
      const input = messageOf(method.input, request);
      for await (const message of this.pipeline.many(method, this.find(method), input, context)) {
        yield message as MessageShape<O>;
      }
    } finally {
      context.end();
      over();
    }
  }

  private tell(context: CallContext): void {
    const workspaceId = scopeOf(principalOf(context));
    if (workspaceId !== undefined) this.facts.told(workspaceId);
  }

  private context(method: DescMethod): { context: CallContext; over: () => void } {
    const { headers, peer, requestId, signal, admission } = this.facts;
    const context = new CallContext({
      method,
      requestHeaders: headers,
      peer,
      requestId,
      deadlineMs: undefined,
    });
    context.set(admissionKey, admission);
    const gone = () => context.abort(new TendonError("CANCELLED", "the caller went away"));
    if (signal.aborted) gone();
    else signal.addEventListener("abort", gone, { once: true });
    return { context, over: () => signal.removeEventListener("abort", gone) };
  }
}

async function* messagesOf(
  schema: DescMessage,
  requests: AsyncIterable<unknown>,
): AsyncGenerator<Message, void, undefined> {
  for await (const request of requests) yield messageOf(schema, request);
}

/** No wire has refused what its fields cannot have. INVALID_FIELD. */
function messageOf(schema: DescMessage, request: unknown): Message {
  const message = create(schema, request as never) as Message;
  refuse(tooMany(schema, message) ?? unfitForWire(schema, message));
  return message;
}

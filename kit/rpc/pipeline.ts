/** Runs interceptors and implementations the same way for every wire. */
import type { DescMethod, Message } from "@bufbuild/protobuf";
import { create } from "@bufbuild/protobuf";
import { status } from "@grpc/grpc-js";
import { messageOf, TendonError } from "../errors.ts";
import type { Logger } from "../log.ts";
import type { CallContext, RpcContext } from "./context.ts";
import { methodPath, streamsRequests, type UntypedMethod } from "./service.ts";
import { wireFailure } from "./status.ts";

/** How a call ended. */
export interface CallEnd {
  code: status;
  /** What was thrown; may hold text that is not for callers. */
  error?: unknown;
}

/** A step that every call passes. Steps run in order; the first that throws ends the call with its error. */
export interface RpcInterceptor {
  /** Once for each call, before any request is handed on: authentication, policy, limits. */
  onCall?(context: RpcContext): void | Promise<void>;
  /** For each request message: validation. */
  onRequest?(context: RpcContext, request: Message): void | Promise<void>;
  /** Once for each call, also those refused: metrics, audit. Must not throw. */
  onEnd?(context: RpcContext, end: CallEnd): void;
}

export interface PipelineOptions {
  interceptors: readonly RpcInterceptor[];
  log: Logger;
}

export class Pipeline {
  private readonly callSteps: NonNullable<RpcInterceptor["onCall"]>[];
  private readonly requestSteps: NonNullable<RpcInterceptor["onRequest"]>[];
  private readonly endSteps: NonNullable<RpcInterceptor["onEnd"]>[];
  private readonly log: Logger;

  constructor(options: PipelineOptions) {
    const { interceptors } = options;
    this.callSteps = interceptors.flatMap((step) => step.onCall?.bind(step) ?? []);
    this.requestSteps = interceptors.flatMap((step) => step.onRequest?.bind(step) ?? []);
    this.endSteps = interceptors.flatMap((step) => step.onEnd?.bind(step) ?? []);
    this.log = options.log;
  }

  /** Runs a method that has one response. */
  async single(
    method: DescMethod,
    run: UntypedMethod,
    input: Message | AsyncIterable<Message>,
    context: CallContext,
  ): Promise<Message> {
    try {
      await this.open(context);
      const request = await this.checked(method, input, context);
      const response = await (run(request, context) as Promise<Message>);
      const message = create(method.output, response);
      this.end(context);
      return message;
    } catch (error) {
      throw this.end(context, error, true);
    }
  }

  /** Runs a method that has many responses. Returning early ends the implementation. */
  async *many(
    method: DescMethod,
    run: UntypedMethod,
    input: Message | AsyncIterable<Message>,
    context: CallContext,
  ): AsyncGenerator<Message, void, undefined> {
    let failed = false;
    let failure: unknown;
    try {
      await this.open(context);
      const request = await this.checked(method, input, context);
      for await (const response of run(request, context) as AsyncIterable<Message>) {
        yield create(method.output, response);
      }
    } catch (error) {
      failed = true;
      failure = error;
    } finally {
      // Reached by `return` too, when the wire stops asking because the caller went away.
      failed ||= context.aborted !== undefined;
      failure = this.end(context, failure ?? context.aborted, failed);
    }
    if (failed) throw failure;
  }

  private async open(context: RpcContext): Promise<void> {
    for (const step of this.callSteps) {
      const wait = step(context);
      if (wait !== undefined) await wait;
    }
  }

  private async checked(
    method: DescMethod,
    input: Message | AsyncIterable<Message>,
    context: RpcContext,
  ): Promise<Message | AsyncIterable<Message>> {
    if (streamsRequests(method)) return this.checkedStream(input as AsyncIterable<Message>, context);
    await this.check(context, input as Message);
    return input;
  }

  private async *checkedStream(
    requests: AsyncIterable<Message>,
    context: RpcContext,
  ): AsyncGenerator<Message> {
    for await (const request of requests) {
      await this.check(context, request);
      yield request;
    }
  }

  private async check(context: RpcContext, request: Message): Promise<void> {
    for (const step of this.requestSteps) {
      const wait = step(context, request);
      if (wait !== undefined) await wait;
    }
  }

  /** Tells the interceptors and returns the error that goes to the wire. */
  private end(context: CallContext, thrown?: unknown, failed = false): unknown {
    const error = failed ? this.judge(context, thrown) : undefined;
    const end: CallEnd = failed ? { code: wireFailure(error).code, error: thrown } : { code: status.OK };
    for (const step of this.endSteps) step(context, end);
    return error;
  }

  /** Whatever a cancelled call throws is the cancellation; an error that is not for callers is written down here. */
  private judge(context: CallContext, thrown: unknown): unknown {
    if (thrown instanceof TendonError) return thrown;
    if (context.aborted !== undefined) return context.aborted;
    const facts = { err: thrown, method: methodPath(context.method), requestId: context.requestId };
    this.log.error(facts, `a call failed: ${messageOf(thrown)}`);
    return new TendonError("INTERNAL", "internal error", { request_id: context.requestId });
  }
}

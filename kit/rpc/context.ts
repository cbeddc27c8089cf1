/** What an implementation and the interceptors know about one call, whatever wire it came by. */
import type { DescMethod } from "@bufbuild/protobuf";
import type { TendonError } from "../errors.ts";
import { newId } from "../ids.ts";

/** Carries the call's id to its caller, with every answer and every failure. */
export const REQUEST_ID_HEADER = "request-id";

/** Names a value that interceptors leave for the implementation, such as the principal. */
export interface ContextKey<T> {
  readonly name: string;
  /** Only for the type checker. */
  readonly type?: T;
}

export function createContextKey<T>(name: string): ContextKey<T> {
  return { name };
}

export interface RequestHeaders {
  /** The first value of this header, whose name is written in lower case. */
  get(name: string): string | undefined;
}

/** One call, as implementations and interceptors see it. */
export interface RpcContext {
  readonly method: DescMethod;
  /** Names the call in logs and in answers that hide their cause. */
  readonly requestId: string;
  /**
   * Aborts when the caller cancels, its deadline passes or its connection breaks; the reason is a TendonError. It does
   * not abort when the call ends by itself. Whatever waits inside an implementation has to end with it.
   */
  readonly signal: AbortSignal;
  readonly requestHeaders: RequestHeaders;
  /** The address and port of the connection's other end. */
  readonly peer: string;
  /** How long the caller was willing to wait when the call came in; without it, for ever. */
  readonly deadlineMs: number | undefined;
  /**
   * Ends the call from this side, whatever the implementation does: the signal aborts and the caller gets `error`. For
   * interceptors whose condition stopped holding while a stream is open. Has no effect on a call that ended.
   */
  fail(error: TendonError): void;
  /** Must be called before the first response. Names are lower case; a name ending in "-bin" is not supported. */
  setResponseHeader(name: string, value: string): void;
  /** Sent when the call ends well. */
  setResponseTrailer(name: string, value: string): void;
  get<T>(key: ContextKey<T>): T | undefined;
  set<T>(key: ContextKey<T>, value: T): void;
}

export interface CallFacts {
  method: DescMethod;
  requestHeaders: RequestHeaders;
  peer: string;
  deadlineMs: number | undefined;
  /** Of a call that has one already; else one is made when it is first asked for. */
  requestId?: string;
}

/** The context that both wires hand out. Parts that few calls use are made when first asked for. */
export class CallContext implements RpcContext {
  readonly method: DescMethod;
  readonly requestHeaders: RequestHeaders;
  readonly peer: string;
  readonly deadlineMs: number | undefined;
  responseHeaders: Map<string, string> | undefined;
  responseTrailers: Map<string, string> | undefined;
  /** Set by the wire: makes `fail` reach the caller, and readers and writers that wait. */
  onFail: ((error: TendonError) => void) | undefined;
  private readonly values = new Map<ContextKey<unknown>, unknown>();
  private controller: AbortController | undefined;
  private abortReason: unknown;
  private ended = false;
  private id: string | undefined;

  constructor(facts: CallFacts) {
    this.method = facts.method;
    this.requestHeaders = facts.requestHeaders;
    this.peer = facts.peer;
    this.deadlineMs = facts.deadlineMs;
    this.id = facts.requestId;
  }

  get requestId(): string {
    this.id ??= newId("request");
    return this.id;
  }

  get signal(): AbortSignal {
    if (this.controller === undefined) {
      this.controller = new AbortController();
      if (this.abortReason !== undefined) this.controller.abort(this.abortReason);
    }
    return this.controller.signal;
  }

  /** Why the call was given up, or undefined while it was not. */
  get aborted(): unknown {
    return this.abortReason;
  }

  /** It ended, or was given up. */
  get isOver(): boolean {
    return this.ended || this.abortReason !== undefined;
  }

  /** Has no effect on a call that ended. */
  abort(reason: Error): void {
    if (this.isOver) return;
    this.abortReason = reason;
    this.controller?.abort(reason);
  }

  fail(error: TendonError): void {
    if (this.isOver) return;
    this.abort(error);
    this.onFail?.(error);
  }

  /** The call's outcome stands; what the wire reports afterwards is no cancellation. */
  end(): void {
    this.ended = true;
  }

  setResponseHeader(name: string, value: string): void {
    this.responseHeaders ??= new Map();
    this.responseHeaders.set(name, value);
  }

  setResponseTrailer(name: string, value: string): void {
    this.responseTrailers ??= new Map();
    this.responseTrailers.set(name, value);
  }

  get<T>(key: ContextKey<T>): T | undefined {
    return this.values.get(key) as T | undefined;
  }

  set<T>(key: ContextKey<T>, value: T): void {
    this.values.set(key, value);
  }
}

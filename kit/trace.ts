/**
 * Traces: which step belongs to which, across programs. The context travels as W3C `traceparent`, in gRPC metadata and
 * HTTP headers, whether or not anybody records spans; who does is behind `Tracing`.
 *
 * T1 A step without a parent that came from outside still has a trace id: it follows from the id of the event that it began
 *    with, so that whoever reads the log computes the same one.
 * T2 Spans hold names, ids, counts, reason codes and times; never anything that a user or a model said.
 * T3 Nothing waits for a recorder: what it cannot take is dropped.
 */
import { createHash } from "node:crypto";
import type { FailureOrigin } from "./errors.ts";
import { createContextKey, type RpcContext } from "./rpc/context.ts";

/** Name of the header, also as gRPC metadata. */
export const TRACE_HEADER = "traceparent";

/** A place in a trace, under which further steps are put. */
export interface TraceContext {
  /** 32 hex digits, lower case, not all zero. */
  readonly traceId: string;
  /** 16 hex digits, lower case, not all zero. */
  readonly spanId: string;
  /** Whether somebody records it. */
  readonly sampled: boolean;
}

const FORM = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const ZEROS = /^0+$/;

/** Undefined for what is no `traceparent`; by the standard such a header is as good as none. */
export function parseTraceParent(text: string | undefined): TraceContext | undefined {
  const match = text === undefined || text.length > 512 ? null : FORM.exec(text);
  if (match === null) return undefined;
  const [, version, traceId, spanId, flags, more] = match as unknown as string[];
  if (version === "ff" || (version === "00" && more !== undefined)) return undefined;
  if (ZEROS.test(traceId!) || ZEROS.test(spanId!)) return undefined;
  return { traceId: traceId!, spanId: spanId!, sampled: (Number.parseInt(flags!, 16) & 1) === 1 };
}

export function formatTraceParent({ traceId, spanId, sampled }: TraceContext): string {
  return `00-${traceId}-${spanId}-${sampled ? "01" : "00"}`;
}

/** The trace of what began with an event that came without one (T1). */
export function traceOfEvent(eventId: string): TraceContext {
  const digest = createHash("sha256").update(`tendon.trace.1 ${eventId}`).digest("hex");
  return { traceId: digest.slice(0, 32), spanId: digest.slice(32, 48), sampled: false };
}

/** Headers for a call under this context. */
export function traceHeaders(context: TraceContext | undefined): Record<string, string> {
  return context === undefined ? {} : { [TRACE_HEADER]: formatTraceParent(context) };
}

const traceKey = createContextKey<TraceContext>("trace");

/** The context of a call that is being answered: of its own span where one is recorded, else the caller's. */
export function traceOf(context: Pick<RpcContext, "get" | "requestHeaders">): TraceContext | undefined {
  return context.get(traceKey) ?? parseTraceParent(context.requestHeaders.get(TRACE_HEADER));
}

export function setTrace(context: Pick<RpcContext, "set">, trace: TraceContext): void {
  context.set(traceKey, trace);
}

export type SpanKind = "internal" | "server" | "client";
export type SpanAttributes = Readonly<Record<string, string | number | boolean>>;

export interface SpanOptions {
  /** Undefined: the span begins a trace. */
  readonly parent: TraceContext | undefined;
  /** Default: internal. */
  readonly kind?: SpanKind;
  readonly attributes?: SpanAttributes;
}

/** Something that lasts. */
export interface Span {
  /** For what happens inside; undefined when nobody records and nothing came from outside. */
  readonly context: TraceContext | undefined;
  set(attributes: SpanAttributes): void;
  /** Once; later calls do nothing. */
  end(failure?: FailureOrigin): void;
}

export interface Tracing {
  /** Whether spans are recorded. Where they are not, contexts are passed on all the same. */
  readonly isOn: boolean;
  /** Never throws, never waits. */
  start(name: string, options: SpanOptions): Span;
  /** Sends what is there, for a bounded time. */
  stop(): Promise<void>;
}

export const NO_TRACING: Tracing = {
  isOn: false,
  start: (_name, { parent }) => ({ context: parent, set() {}, end() {} }),
  stop: async () => {},
};

/** The attributes with which every program says where something failed. */
export function failureAttributes({ part, reason }: FailureOrigin): SpanAttributes {
  return { "error.type": reason, "tendon.failure.part": part, "tendon.failure.reason": reason };
}

/** How much may wait for a receiver, and for how long, whoever exports: what comes beyond it is dropped (T3). */
export const EXPORT_LIMITS = {
  maxQueueSize: 2_048,
  maxExportBatchSize: 512,
  scheduledDelayMillis: 1_000,
  exportTimeoutMillis: 3_000,
  timeoutMs: 2_500,
} as const;

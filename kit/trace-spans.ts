/** Spans by way of OpenTelemetry's API; which SDK stands behind the tracer is the program's choice. */
import {
  SpanKind as RecordedKind,
  type Span as RecordedSpan,
  ROOT_CONTEXT,
  SpanStatusCode,
  TraceFlags,
  type Tracer,
  trace,
} from "@opentelemetry/api";
import { failureAttributes, type Span, type SpanKind, type TraceContext, type Tracing } from "./trace.ts";

const KINDS: Readonly<Record<SpanKind, RecordedKind>> = {
  internal: RecordedKind.INTERNAL,
  server: RecordedKind.SERVER,
  client: RecordedKind.CLIENT,
};

/** Contexts are passed by hand, never by the call stack: a program's steps outlive the calls that began them. */
export function spansOf(tracer: Tracer, stop: () => Promise<void>): Tracing {
  return {
    isOn: true,
    start(name, { parent, kind = "internal", attributes = {} }) {
      const context =
        parent === undefined ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, remote(parent));
      return span(tracer.startSpan(name, { kind: KINDS[kind], attributes: { ...attributes } }, context));
    },
    stop,
  };
}

function remote({ traceId, spanId, sampled }: TraceContext) {
  const traceFlags = sampled ? TraceFlags.SAMPLED : TraceFlags.NONE;
  return { traceId, spanId, traceFlags, isRemote: true };
}

function span(recorded: RecordedSpan): Span {
  const { traceId, spanId, traceFlags } = recorded.spanContext();
  let isOver = false;
  return {
    context: { traceId, spanId, sampled: (traceFlags & TraceFlags.SAMPLED) !== 0 },
    set: (attributes) => void recorded.setAttributes({ ...attributes }),
    end(failure) {
      if (isOver) return;
      isOver = true;
      if (failure !== undefined) {
        recorded.setAttributes({ ...failureAttributes(failure) });
        recorded.setStatus({ code: SpanStatusCode.ERROR, message: failure.reason });
      }
      recorded.end();
    },
  };
}

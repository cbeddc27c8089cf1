/** A span for each call that belongs to a trace, or that begins something worth following. */
import { status } from "@grpc/grpc-js";
import { isTendonError, originOf } from "../../kit/errors.ts";
import { createContextKey, type RpcContext } from "../../kit/rpc/context.ts";
import type { RpcInterceptor } from "../../kit/rpc/pipeline.ts";
import { methodPath } from "../../kit/rpc/service.ts";
import { type Span, setTrace, type Tracing, traceOf } from "../../kit/trace.ts";

/** Without a caller's trace only these begin one: what reads, or is asked again and again, would drown the rest. */
const BEGINNERS = new Set([
  "EmitEvents",
  "EmitLargeEvents",
  "CreateSession",
  "ForkSession",
  "Execute",
  "Provision",
  "HandOver",
  "CopyIn",
  "CopyOut",
]);
/** Streams that are one step; all others stay open for as long as their caller lives. */
const STEPS = new Set(["Execute", "EmitLargeEvents", "CopyIn", "CopyOut", "ImportSession", "ExportSession"]);

const spanKey = createContextKey<Span>("span");

export function traceInterceptor(tracing: Tracing): RpcInterceptor {
  if (!tracing.isOn) return {};
  return {
    onCall(context) {
      const { name, methodKind } = context.method;
      if (methodKind !== "unary" && !STEPS.has(name)) return;
      const parent = traceOf(context);
      if (parent === undefined && !BEGINNERS.has(name)) return;
      const span = tracing.start(methodPath(context.method), {
        parent,
        kind: "server",
        attributes: { "rpc.system.name": "grpc", "rpc.method": name, "tendon.request_id": context.requestId },
      });
      context.set(spanKey, span);
      if (span.context !== undefined) setTrace(context, span.context);
    },
    onEnd(context, { code, error }) {
      endSpan(context, code, error);
    },
  };
}

function endSpan(context: RpcContext, code: status, error: unknown): void {
  const span = context.get(spanKey);
  if (span === undefined) return;
  span.set({ "rpc.response.status_code": status[code] ?? String(code) });
  const failure = isTendonError(error) ? originOf(error) : ({ part: "server", reason: "INTERNAL" } as const);
  span.end(code === status.OK ? undefined : failure);
}
